"""The llama graph of the sample model, fed batch by batch without a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType
from weft.graph import Graph, Tensor
from weft.graph.tensor import Buffer
from weft.llm.cache.kv_cache import KVCache
from weft.llm.model import Model

MODEL = Path(__file__).resolve().parent.parent / "data/vectors/models/archs/llama3.gguf"
TOKENS = [1, 171, 262, 206, 69, 214, 28, 107, 286, 36, 118, 8, 93, 289, 50, 263]
BATCHES = (5, 1, 4, 1, 1, 3, 1)
"""Sizes of the batches that `TOKENS` are fed in."""


class LlamaGraph:
    """A graph with a cache of its own, and the inputs of each batch."""

    def __init__(self, *, flash: bool = True, n_ubatch: int = 8) -> None:
        self.model = Model.open(MODEL)
        self.cache = KVCache(self.model.config, 32, type_k="f32", type_v="f32")
        self.graph: Graph = self.model.build(
            self.cache, n_ubatch=n_ubatch, n_outputs=n_ubatch, flash=flash
        )

    def place(self, il: int, buffer_type: BufferType) -> None:
        """Puts the weights and cached values of layer `il` into a device's memory."""
        leaves = [t for t in self.graph.leaves if t.name.startswith(f"blk.{il}.")]
        for leaf in (*leaves, self.cache.k[il], self.cache.v[il]):
            assert leaf.buffer is not None
            data = leaf.buffer.data
            raw = data.host() if hasattr(data, "host") else data.reshape(-1).view(np.uint8)
            memory = buffer_type.allocate(raw.nbytes)
            memory.write(0, raw)
            leaf.buffer = Buffer(leaf.buffer.usage, buffer_type, memory)

    def layer_of(self) -> dict[Tensor, int]:
        """Node -> layer; the embedding is of layer -1, what follows the last layer of the next."""
        results = {}
        il = -1
        for node in self.graph.nodes:
            results[node] = il
            if node.name == "embd" or node.name.startswith("l_out-"):
                il += 1
        return results

    def batches(self, sizes: Sequence[int] = BATCHES) -> Iterator[dict[str, NDArray[Any]]]:
        """Inputs of consecutive batches, each token's logits wanted; the cache fills up."""
        start = 0
        for n in sizes:
            tokens = np.array(TOKENS[start : start + n], np.int32)
            positions = np.arange(start, start + n, dtype=np.int32)
            n_kv = start + n
            mask = np.where(np.arange(n_kv) <= positions[:, None], 0, -np.inf).astype(np.float16)
            yield {
                "tokens": tokens,
                "positions": positions,
                "cells": positions.astype(np.int64),
                "mask": mask,
                "out_ids": np.arange(n, dtype=np.int32),
            }
            start += n
