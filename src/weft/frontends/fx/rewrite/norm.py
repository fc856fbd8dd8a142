"""rms-norm: x rsqrt(mean(x^2) + eps) along the last dimension is RMS_NORM.

As in Hugging Face models, with conversions of type anywhere in it and without the weight, which is
a product of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.ops.norm import rows_of
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of
from weft.frontends.fx.value import Value

aten = torch.ops.aten

_CASTS = ("_to_copy", "to", "clone", "alias")


@rewrite("rms-norm", aten.mul.Tensor)
def rms_norm(b: Builder, call: Call) -> Value | None:
    """The RMS_NORM that ends in this product x * rsqrt(...), or None."""
    for x, root in factors(call.node):
        eps = _epsilon(b, x, source_of(root, *_CASTS))
        if eps is not None and fake_of(x).shape == call.out.shape:
            v = b.converted(call.as_value(x), call.out.dtype)
            return b.result(call, g.rms_norm(rows_of(b, v, v.shape[-1]), eps))
    return None


def _epsilon(b: Builder, x: Any, root: Any) -> float | None:
    """eps, where `root` is rsqrt(mean(x^2) + eps)."""
    if not is_call(root, "rsqrt") or not isinstance(fake_of(x), torch.Tensor):
        return None
    for mean, eps in factors(root.args[0], "add"):
        number = b.number(eps)
        if number is not None and number >= 0 and _is_mean_square(b, mean, x):
            return number
    return None


def _is_mean_square(b: Builder, mean: Any, x: Any) -> bool:
    if not is_call(mean, "mean") or len(mean.args) < 3 or not mean.args[2]:
        return False
    dims, rank = mean.args[1], fake_of(x).dim()
    if rank == 0 or [d % rank for d in dims] != [rank - 1]:
        return False
    square = source_of(mean.args[0], *_CASTS)
    base = source_of(x, *_CASTS)
    if is_call(square, "pow"):
        return b.number(square.args[1]) == 2 and source_of(square.args[0], *_CASTS) is base
    if is_call(square, "mul"):
        return all(source_of(a, *_CASTS) is base for a in square.args[:2])
    return is_call(square, "square") and source_of(square.args[0], *_CASTS) is base
