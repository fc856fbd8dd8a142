"""Models of any size that exist on paper: config and weights with sizes, without data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.llm.tiny import metadata
from weft.dtype import find_dtype
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.graph.tensor import Buffer, Tensor
from weft.llm.config_keys import Keys, read_config
from weft.llm.model import Model
from weft.llm.models import find_architecture
from weft.llm.weights import Weights

__all__ = ["LLAMA_7B", "MIXTRAL", "paper_model"]

LLAMA_7B = {
    "context_length": 4096, "embedding_length": 4096, "block_count": 32,
    "feed_forward_length": 11008, "attention.head_count": 32, "attention.head_count_kv": 32,
}  # fmt: skip
MIXTRAL = {
    "context_length": 32768, "embedding_length": 4096, "block_count": 32,
    "feed_forward_length": 14336, "attention.head_count": 32, "attention.head_count_kv": 8,
    "expert_count": 8, "expert_used_count": 2,
}  # fmt: skip


def paper_model(folder: Path, hyper: dict[str, int], dtype: str = "q4_0") -> Model:
    """A llama with these hyper-parameters; its matrices are of type `dtype`."""
    path = folder / "paper.gguf"
    meta = metadata(**{f"llama.{key}": value for key, value in hyper.items()})
    n_embd = hyper["embedding_length"]
    write_gguf(path, meta, [("token_embd.weight", "f32", (n_embd, 1), bytes(4 * n_embd))])
    file = open_gguf(path)
    architecture = find_architecture(file.architecture)
    config = architecture.configure(read_config(file), Keys(file))
    leaves = {}
    for row in architecture.table(config):
        if row.optional and row.name != "output.weight":
            continue
        plain = "norm" in row.name or "gate_inp" in row.name
        kind = find_dtype("f32" if plain else dtype)
        ne = (*row.ne, *[1] * (4 - len(row.ne)))
        nbytes = kind.row_bytes(ne[0]) * ne[1] * ne[2] * ne[3]
        data = np.broadcast_to(np.zeros(1, np.uint8), (nbytes,))  # as large as it says, but empty
        leaves[row.name] = Tensor(kind, ne, name=row.name, buffer=Buffer("weights", None, data))
    model = object.__new__(Model)
    model.towers = ()
    model.architecture, model.config, model.weights = architecture, config, Weights(leaves)
    model.file, model.adapters, model.control_vectors = file, None, None
    return model
