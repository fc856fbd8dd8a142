"""Tiny models that draft for another model, and models for which they draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.tiny import metadata, write_model
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.llm.config_keys import Keys, read_config
from weft.llm.models import ARCHITECTURES

__all__ = ["N_LAYER", "OWN_IDS", "drafter_of", "drafter_tensors", "target"]

N_LAYER = 6
OWN_IDS = [*range(0, 250, 3), *range(259, 274)]
"""The ids that a model with a vocabulary of its own can guess."""
Tensors = dict[str, NDArray[Any]]

SIZES: dict[str, dict[str, object]] = {
    "eagle3": {
        "block_count": 1, "target_layers": np.array([2, 3, 6], np.int32),
        "target_hidden_size": 16, "feed_forward_length": 24,
    },
    "dflash": {
        "block_count": 2, "target_layers": np.array([1, 3, 5], np.int32), "block_size": 6,
        "attention.key_length": 8, "attention.value_length": 8,
    },
}  # fmt: skip


def target(folder: Path, name: str = "llama") -> Path:
    """Writes the model for which others draft."""
    if name == "gemma4":
        arch, changes = RELATIVES[name]
        meta = keys_of(arch, changes) | {"gemma4.context_length": 256}
        return write_model(folder / "target.gguf", meta, made_up(configure(folder, meta)))
    return write_model(
        folder / "target.gguf",
        metadata(**{"llama.block_count": N_LAYER, "llama.context_length": 256}),
    )


def drafter_tensors(folder: Path, meta: dict[str, Any], n_read: int = 48) -> Tensors:
    """Random tensors for the metadata of a model that drafts and reads `n_read` numbers."""
    arch = meta["general.architecture"]
    few: Tensors = {"fc.weight": np.zeros((1, n_read), np.float32)}
    if arch == "eagle3":
        few["d2t"] = np.zeros(len(OWN_IDS), np.float32)
    file = open_gguf(write_model(folder / "config.gguf", meta, few))
    config = ARCHITECTURES[arch].configure(read_config(file), Keys(file))
    random, tensors = np.random.default_rng(3), dict[str, Any]()
    for row in ARCHITECTURES[arch].table(config):
        if row.optional and row.name not in ("enc.output_norm.weight", "output.weight"):
            continue
        x = random.standard_normal(row.ne[::-1])
        x = 1 + 0.2 * x if "norm" in row.name else 1.5 * x / np.sqrt(row.ne[0])
        tensors[row.name] = x.astype(np.float32)
    if arch == "eagle3":
        tensors["d2t"] = np.array(OWN_IDS, np.int64)
    else:
        tensors.pop("output.weight", None)
    return tensors


def drafter_of(folder: Path, arch: str, changes: dict[str, object] | None = None,
               without: tuple[str, ...] = ()) -> Path:  # fmt: skip
    """Writes a model that drafts for `target`, without some tensors."""
    meta = keys_of(arch, SIZES[arch] | {"context_length": 256} | (changes or {}))
    meta["tokenizer.ggml.mask_token_id"] = 0
    tensors = drafter_tensors(folder, meta)
    rows = [
        (name, "i64" if x.dtype == np.int64 else "f32", x.shape[::-1], x.tobytes())
        for name, x in tensors.items()
        if name not in without
    ]
    write_gguf(path := folder / f"{arch}.gguf", meta, rows)
    return path
