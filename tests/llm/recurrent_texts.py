"""Tiny recurrent models whose states last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.made_models import configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model

__all__ = ["alone", "path"]
NAMES = [
    "mamba",
    "mamba2",
    "lfm2",
    "qwen35",
    "qwen3next",
    "granitehybrid",
    "falcon-h1",
    "kimi",
    "rwkv6",
    "rwkv7",
]


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    arch, changes = OTHERS[request.param]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    # states that last: A near 0, so that what comes first still matters in the end
    tensors |= {n: -np.abs(0.05 * a) for n, a in tensors.items() if n.endswith("ssm_a")}
    return write_model(tmp_path / "m.gguf", meta, tensors)


def alone(path: Path, tokens: list[int]) -> np.ndarray:
    return context(path).decode(tokens)
