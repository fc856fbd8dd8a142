"""Weights in the format that the exporter chose."""

from __future__ import annotations

import numpy as np

from weft.dtype import DTYPES, DType
from weft.graph.graph import Graph
from weft.graph.op import NONE, OPS
from weft.graph.tensor import Buffer, Tensor, contiguous_nb
from weft.quants import encode, from_storage

__all__ = ["store_weights"]

_FALLBACKS = {
    "f16": ("f16",),
    "q8_0": ("q8_0", "f16"),
    "q4_0": ("q4_0", "f16"),
    "q4_k": ("q4_K", "q4_0", "f16"),
    "tq2_0": ("tq2_0", "q4_0", "f16"),
}
"""Format -> the formats to try in order: rows must be whole blocks."""


_PRODUCTS = (OPS["MUL_MAT"], OPS["MUL_MAT_ID"])


def store_weights(graph: Graph, weights: str) -> dict[str, str]:
    """Encodes the float matrices that are only ever weights of products; in place.

    Returns the format of each by name."""
    if weights == "f32":
        return {}
    chosen: dict[str, str] = {}
    for leaf in _matrices(graph):
        for name in _FALLBACKS[weights]:
            dtype = DTYPES[name]
            if isinstance(leaf.ne[0], int) and leaf.ne[0] % dtype.block == 0:
                _encode(leaf, dtype)
                chosen[leaf.name] = name
                break
    return chosen


def _matrices(graph: Graph) -> list[Tensor]:
    """Constant float leaves of which all uses are source 0 of MUL_MAT or MUL_MAT_ID."""
    products: dict[Tensor, bool] = {}
    for node in graph.nodes:
        for number, source in enumerate(node.src):
            if source is None or source.op is not NONE or source.buffer is None:
                continue
            fits = node.op in _PRODUCTS and number == 0
            products[source] = products.get(source, True) and fits
    return [
        leaf
        for leaf, fits in products.items()
        if fits
        and leaf.buffer is not None
        and leaf.buffer.usage == "weights"
        and leaf.dtype.name in ("f32", "f16", "bf16")
        and leaf.is_contiguous
        and leaf.ne[1] != 1
    ]


def _encode(leaf: Tensor, dtype: DType) -> None:
    assert leaf.buffer is not None
    if leaf.dtype is dtype:
        return
    raw = leaf.buffer.data.reshape(-1).view(np.uint8)
    raw = raw[leaf.buffer.offset : leaf.buffer.offset + leaf.max_bytes]
    sizes = [int(n) for n in reversed(leaf.ne) if isinstance(n, int)]
    values = from_storage(raw.view(leaf.dtype.storage), leaf.dtype).reshape(sizes)
    leaf.dtype = dtype
    leaf.nb = contiguous_nb(dtype, leaf.ne)
    leaf.buffer = Buffer("weights", leaf.buffer.type, np.ascontiguousarray(encode(values, dtype)))
