"""Rewrites of products.

gate: act(a) * b with an activation that nothing else reads is GLU (swiglu, geglu, reglu).

int8-weights: a product with constant int8 weights that are converted to float becomes one with
blocks. torchao exports its int8 weights so; the scales of rows multiply the result in a node of
their own. The blocks have a scale of 1, so nothing is rounded. Rows that are not whole blocks
become float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import inverse
from weft.frontends.fx.ops.matmul import product_of, transposed
from weft.frontends.fx.ops.quantized import blocks
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite
from weft.frontends.fx.value import Value

__all__ = []

aten = torch.ops.aten


@rewrite("gate", aten.mul.Tensor)
def gate(b: Builder, call: Call) -> Value | None:
    """The GLU that ends in this product, or None."""
    for activated, other in factors(call.node):
        kind = _kind(activated)
        if kind is None or len(activated.users) != 1 or other is activated:
            continue
        source = activated.args[0]
        fakes = [fake_of(n) for n in (source, other)]
        if not all(isinstance(f, torch.Tensor) and f.shape == call.out.shape for f in fakes):
            continue
        if any(f.dtype != call.out.dtype for f in fakes):
            continue
        pair = [call.as_value(n) for n in (source, other)]
        order = pair[0].reading_order
        x, y = (b.dense(v.permuted(order)) for v in pair)
        shape = [pair[0].shape[d] for d in order]
        result = Value.whole(g.glu(kind, x, y), call.out.dtype, shape)
        return result.permuted(inverse(order))
    return None


def _kind(node: Any) -> str | None:
    if is_call(node, "silu"):
        return "swiglu"
    if is_call(node, "gelu"):
        return "geglu" if node.kwargs.get("approximate") == "tanh" else "geglu_erf"
    return "reglu" if is_call(node, "relu") else None


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
