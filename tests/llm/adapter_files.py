"""Writes LoRA adapters for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

__all__ = ["Tensors", "matrices_of", "pairs", "write_adapter"]

Tensors = dict[str, NDArray[np.float32]]
META = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}


def pairs(seed: int, rank: int, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Random A [..., rank, n_in] and B [..., n_out, rank] for matrices [..., n_out, n_in]."""
    random = np.random.default_rng(seed)
    made = {}
    for name, (*outer, n_out, n_in) in shapes.items():
        made[f"{name}.lora_a"] = random.standard_normal((*outer, rank, n_in)).astype(np.float32)
        b = random.standard_normal((*outer, n_out, rank)) / 8
        made[f"{name}.lora_b"] = b.astype(np.float32)
    return made


def write_adapter(path: Path, tensors: Tensors, alpha: float = 8.0, **meta: object) -> Path:
    """Writes a GGUF file; metadata that is None is left out."""
    keys = META | {"adapter.lora.alpha": alpha} | meta
    write_gguf(
        path,
        {k: v for k, v in keys.items() if v is not None},
        [(name, "f32", a.shape[::-1], a.tobytes()) for name, a in tensors.items()],
    )
    return path


def matrices_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the matrices of a model's layers."""
    with open_gguf(path) as file:
        return {
            name: info.ne[1::-1]
            for name, info in file.tensors.items()
            if name.startswith("blk.") and info.n_dims == 2
        }


EMBEDDINGS = "token_embd.weight"


def adapter_of(seed: int, rank: int, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Random matrices; those of embeddings as llama.cpp has them."""
    made = pairs(seed, rank, shapes)
    if EMBEDDINGS in shapes:  # A [n_vocab, rank], B [n_embd, rank]
        a, b = made[f"{EMBEDDINGS}.lora_a"], made[f"{EMBEDDINGS}.lora_b"]
        made |= {f"{EMBEDDINGS}.lora_a": b, f"{EMBEDDINGS}.lora_b": np.ascontiguousarray(a.T)}
    return made
