"""Visitors, a file per family. Importing this package registers all of them."""

from weft.frontends.fx.ops import (  # noqa: F401
    attention,
    binary,
    cache,
    conv,
    generate,
    index,
    matmul,
    move,
    norm,
    quantized,
    recurrent,
    reduce,
    shape,
    unary,
)
