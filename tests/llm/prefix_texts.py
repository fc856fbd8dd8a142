"""Models whose states last, and texts whose beginnings are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model

__all__ = ["END", "TEMPLATE", "kept_in", "make_lasting", "words"]
END = 2
"""The token that ends a message."""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:"
    "{{ m.content.split('/think')[-1] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def words(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 270, n).tolist()


def make_lasting(name: str, folder: Path) -> Path:
    arch, changes = OTHERS[name]
    more = {f"{arch}.context_length": 512, "tokenizer.chat_template": TEMPLATE}
    meta = keys_of(arch, changes) | more
    tensors = made_up(configure(folder, meta))
    # states that last: A near 0, so that what comes first still matters in the end
    tensors |= {n: -np.abs(0.05 * a) for n, a in tensors.items() if n.endswith("ssm_a")}
    return write_model(folder / f"{name}.gguf", meta, tensors)


def kept_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.weftprefix"))
