"""int8-weights: a product with constant int8 weights that are converted to float becomes one with
blocks.

torchao exports its int8 weights so; the scales of rows multiply the result in a node of their own.
The blocks have a scale of 1, so nothing is rounded. Rows that are not whole blocks become
float32.
"""

from __future__ import annotations

import numpy as np
import torch

from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.ops.matmul import product_of, transposed
from weft.frontends.fx.ops.quantized import blocks
from weft.frontends.fx.rewrite.table import is_call, rewrite
from weft.frontends.fx.value import Value


@rewrite("int8-weights", torch.ops.aten.mm.default)
def int8_weights(b: Builder, call: Call) -> Value | None:
    """The product with blocks, or None where the pattern is another."""
    cast = call.args["mat2"]
    source = b.values.get(cast.args[0]) if is_call(cast, "_to_copy") else None
    if not isinstance(source, Value) or source.dtype != torch.int8:
        return None
    numbers = b.array(transposed(source))
    if numbers is None:
        return None
    if numbers.shape[1] % 32:
        w = b.constant(numbers, call.out.dtype)
        return b.result(call, product_of(b, w, call.value("self"), call.shape()))
    scales = np.ones((numbers.shape[0], numbers.shape[1] // 32), np.float16)
    name = f"{call.node.name}.blocks"
    w = blocks(name, np.ascontiguousarray(numbers), scales, call.out.dtype)
    return b.result(call, product_of(b, w, call.value("self"), call.shape()))
