"""Rows of tables by number, alone or in bags."""

from __future__ import annotations

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.ops.shape import joined, sliced
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.frontends.fx.value import Value

aten = torch.ops.aten


@visitor(aten.embedding.default)
def embedding(b: Builder, call: Call) -> Value:
    """Rows of a matrix by number."""
    w, ids = call.value("weight"), b.converted(call.value("indices"), torch.int32)
    table = b.rows(w, stored=True)
    return b.result(call, g.get_rows(table, b.flat(ids)))


def _bag_rules(call: Call) -> str | None:
    if int(call.number("padding_idx", -1)) >= 0:
        return "bags with padding"
    if any(call.is_read(i) for i in range(1, len(call.outs))):
        return "the numbers of bags are read"
    shapes = [call.fake(n).shape for n in ("weight", "indices", "offsets")]
    return None if is_static(shapes) else "bags of dynamic sizes"


@visitor(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, check=_bag_rules)
def embedding_bag(b: Builder, call: Call) -> list[Value | None]:
    """The sum, mean or maximum of rows; the rows of a bag begin at its offset."""
    ids = b.converted(call.value("indices"), torch.int32)
    w = call.value("weight")
    rows = g.get_rows(b.rows(w, stored=True), b.flat(ids))
    n, bags = ids.shape[0], call.shape()[0]
    offsets = b.converted(call.value("offsets"), torch.int64)
    if bags == 0 or n == 0:
        return [b.scalar(0.0, w.dtype).viewed(call.shape(), (0, 0)), None, None, None]
    first = sliced(b, offsets, 0, 0, bags)
    end = b.constant([n], torch.int64)
    behind = joined(b, [sliced(b, offsets, 0, 1, bags - 1), end], 0, torch.int64)
    last = behind if offsets.shape[0] == bags else sliced(b, offsets, 0, 1, bags)
    places = b.flat(b.constant(np.arange(int(n)), torch.int64))  # type: ignore[arg-type]
    starts, ends = (reshaped_to(b.flat(v), (1, bags)) for v in (first, last))
    inside = g.binary("logical_and", g.binary("ge", places, starts), g.binary("lt", places, ends))
    mode = int(call.number("mode", 0))
    shares = g.convert(inside, "f32")
    if call.has("per_sample_weights"):
        shares = g.binary("mul", shares, b.flat(call.value("per_sample_weights")))
    if mode == 2:
        low = b.scalar(float("-inf"), torch.float32).tensor
        mask = reshaped_to(inside, (1, n, bags))
        result = g.reduce("max", g.where(mask, rows, low), [1])
        result = g.where(g.binary("eq", result, low), b.scalar(0.0, torch.float32).tensor, result)
    else:
        result = g.mul_mat(g.cont(g.transpose(rows)), shares)
        if mode == 1:
            # PyTorch divides by the numbers up to the next offset, or to the last of all
            count = g.convert(g.binary("sub", b.flat(behind), b.flat(first)), "f32")
            count = reshaped_to(count, (1, bags))
            result = g.binary("div", result, g.pointwise("clamp", count, 1.0, float("inf")))
    return [b.result(call, result), None, None, None]
