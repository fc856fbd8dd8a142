"""Visitors, a file per family. Importing this package registers all of them."""

from weft.frontends.fx.ops import (
    attention,
    binary,
    cache,
    conv,
    embedding,
    experts,
    generate,
    index,
    matmul,
    move,
    norm,
    quantized,
    reduce,
    shape,
    unary,
)

__all__ = [
    "attention",
    "binary",
    "cache",
    "conv",
    "embedding",
    "experts",
    "generate",
    "index",
    "matmul",
    "move",
    "norm",
    "quantized",
    "reduce",
    "shape",
    "unary",
]
