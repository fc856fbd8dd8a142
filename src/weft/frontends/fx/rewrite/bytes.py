"""The rewrite of products of bytes that are moved to unsigned ones.

byte-product: (x + 128) w - 128 (sums of the columns of w), where PyTorch multiplies unsigned bytes
with signed ones, is the product x w of signed bytes. Both are computed in 32 bits and equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, moved_bytes
from weft.frontends.fx.layout import Value
from weft.frontends.fx.ops.matmul import byte_product_of, transposed
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of

aten = torch.ops.aten


@rewrite("byte-product", aten.sub.Tensor)
def byte_product(b: Builder, call: Call) -> Value | None:
    """The product of signed bytes that ends in this difference, or None."""
    product, taken = call.node.args[:2]
    if not is_call(product, "_int_mm") or call.node.kwargs:
        return None
    numbers = moved_bytes(source_of(product.args[0], "_to_copy"))
    if numbers is None or not _is_128_sums(b, taken, product.args[1]):
        return None
    w, x = transposed(call.as_value(product.args[1])), call.as_value(numbers)
    return b.result(call, byte_product_of(b, w, x))


def _is_128_sums(b: Builder, taken: Any, w: Node) -> bool:
    """Whether `taken` is 128 times the sums of the columns of w."""
    for sums, times in factors(taken):
        if is_call(sums, "sum") and len(sums.args) > 1 and b.number(times) == 128:
            return sums.args[0] is w and sums.args[1] == [0]
    return False
