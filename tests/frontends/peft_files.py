"""Writes adapters of the models in tests/data/hf as PEFT saves them, with NumPy alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.frontends.hf.safetensors import open_shards

__all__ = ["NAME", "write_peft", "write_safetensors"]

NAME = "Court-Law-7B-v1.2"
"""A name that a converter takes apart."""


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """A safetensors file of f32 tensors, in the order given."""
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": t.shape, "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(t.tobytes() for t in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_peft(folder: Path, model: Path, rank: int = 4, **settings: object) -> Path:
    """A random adapter of rank `rank` of all projections, and of the embeddings where the output is
    a matrix of its own, in a folder NAME. Settings that are None are left out."""
    random = np.random.default_rng(rank)
    config = json.loads((model / "config.json").read_text())
    embeds = not config.get("tie_word_embeddings", True)
    tensors = {}
    for name, stored in sorted(open_shards(model).items()):
        n_out, n_in = stored.shape if len(stored.shape) == 2 else (0, 0)
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        made = lambda *shape: (random.standard_normal(shape) / 4).astype(np.float32)  # noqa: E731
        if name.endswith("_proj.weight"):
            tensors |= {
                f"{stem}.lora_A.weight": made(rank, n_in),
                f"{stem}.lora_B.weight": made(n_out, rank),
            }
        elif name.endswith("embed_tokens.weight") and embeds:
            tensors |= {
                f"{stem}.lora_embedding_A": made(rank, n_out),
                f"{stem}.lora_embedding_B": made(n_in, rank),
            }
    path = folder / NAME
    path.mkdir()
    write_safetensors(path / "adapter_model.safetensors", tensors)
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "base_model_name_or_path": "x/y"}
    about |= settings
    text = json.dumps({key: value for key, value in about.items() if value is not None})
    (path / "adapter_config.json").write_text(text)
    return path
