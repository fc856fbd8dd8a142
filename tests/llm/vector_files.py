"""Writes control vectors for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.frontends.gguf.writer import write_gguf

__all__ = ["Directions", "directions", "write_vector"]

Directions = dict[int, NDArray[np.float32]]


def directions(seed: int, layers: range, n_embd: int, size: float = 1.0) -> Directions:
    """A random direction [n_embd] for each layer."""
    random = np.random.default_rng(seed)
    return {il: (size * random.standard_normal(n_embd)).astype(np.float32) for il in layers}


def write_vector(path: Path, tensors: Mapping[object, NDArray[np.float32]], **meta: object) -> Path:
    """Writes a GGUF file. A tensor is direction.N for a number N, else it has the name given."""
    keys = {"general.architecture": "controlvector", "controlvector.model_hint": "llama"} | meta
    named = {f"direction.{k}" if isinstance(k, int) else str(k): v for k, v in tensors.items()}
    write_gguf(
        path,
        {"controlvector.layer_count": len(named)} | {k: v for k, v in keys.items() if v},
        [(name, "f32", a.shape[::-1], a.tobytes()) for name, a in named.items()],
    )
    return path
