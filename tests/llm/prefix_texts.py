"""Models whose states last, and texts whose beginnings are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.llm.other_models import OTHERS
from tests.llm.recurrent_texts import write_lasting

__all__ = ["END", "TEMPLATE", "kept_in", "make_lasting", "words"]

END = 2
"""The token that ends a message."""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:"
    "{{ m.content.split('/think')[-1] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def words(seed: int, n: int) -> list[int]:
    """Random tokens, none of which is `END`."""
    return np.random.default_rng(seed).integers(3, 270, n).tolist()


def make_lasting(name: str, folder: Path) -> Path:
    """Writes the model `name` with a chat template and 512 positions; returns its path."""
    more = {f"{OTHERS[name][0]}.context_length": 512, "tokenizer.chat_template": TEMPLATE}
    return write_lasting(folder, name, more)


def kept_in(folder: Path) -> list[Path]:
    """Files of texts in a cache folder."""
    return sorted(folder.glob("*.weftprefix"))
