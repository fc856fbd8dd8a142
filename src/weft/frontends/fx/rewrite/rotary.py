"""rotary: x cos + rotate_half(x) sin of Hugging Face models is ROPE.

Cosine and sine are traced back to positions and inverse frequencies: angles are positions (whole
numbers, the same for each sequence of a batch) times a constant vector, twice side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value
from weft.frontends.fx.ops.shape import permuted
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of
from weft.graph.tensor import Tensor
from weft.quants import from_storage
from weft.records import dataclass

aten = torch.ops.aten

_CASTS = ("_to_copy", "to", "clone", "alias")
_VIEWS = ("unsqueeze", "unsqueeze_copy", *_CASTS)


@dataclass(frozen=True, slots=True)
class _Angles:
    """The sources of angles."""

    positions: Node
    """Whole numbers, [n] or [1, n]."""
    frequencies: Node
    """A constant vector of half the row."""
    scale: float


@rewrite("rotary", aten.add.Tensor)
def rotary(b: Builder, call: Call) -> Value | None:
    """The ROPE that ends in this sum, or None."""
    if call.number("alpha", 1) != 1 or call.out.dim() != 4:
        return None
    for plain, turned in factors(call.node, "add"):
        for x, cos in factors(plain):
            for half, sin in factors(turned):
                if source_of(_unrotated(b, half), *_CASTS) is not source_of(x, *_CASTS):
                    continue
                result = _rope(b, call, x, cos, sin)
                if result is not None:
                    return result
    return None


def _unrotated(b: Builder, node: Any) -> Any:
    """x, where `node` is cat(-x[half:], x[:half]) along the last dimension."""
    if not is_call(node, "cat") or len(node.args[0]) != 2:
        return object()
    rank = fake_of(node).dim()
    if (node.args[1] if len(node.args) > 1 else 0) % rank != rank - 1:
        return object()
    low, high = node.args[0]
    if not is_call(low, "neg"):
        return object()
    upper = low.args[0]
    n = fake_of(node).shape[-1]
    if not _is_slice(upper, rank, n // 2, n) or not _is_slice(high, rank, 0, n // 2):
        return object()
    return upper.args[0] if upper.args[0] is high.args[0] else object()


def _is_slice(node: Any, rank: int, start: int, end: int) -> bool:
    if not is_call(node, "slice", "slice_copy"):
        return False
    args = [*node.args[1:], *[0, None, None, 1][len(node.args) - 1 :]]
    dim, first, last, step = args[:4]
    n = fake_of(node.args[0]).shape[-1]
    last = n if last is None else min(last, n) if isinstance(last, int) else None
    return dim % rank == rank - 1 and (first or 0) == start and last == end and step == 1


def _rope(b: Builder, call: Call, x: Any, cos: Any, sin: Any) -> Value | None:
    # dimension of the heads: the one that cosine and sine are expanded along
    left, right = _angles(b, cos, "cos"), _angles(b, sin, "sin")
    if left is None or left != right:
        return None
    shape = fake_of(cos).shape
    v = call.as_value(x)
    if len(shape) != 4 or shape[0] != 1 or shape[3] != fake_of(x).shape[3]:
        return None
    if shape[1] == 1 and shape[2] == fake_of(x).shape[2]:
        order = [0, 2, 1, 3]
    elif shape[2] == 1 and shape[1] == fake_of(x).shape[1]:
        order = [0, 1, 2, 3]
    else:
        return None
    wide = permuted(b, v, order)
    n = wide.shape[3]
    positions = _positions(b, call.as_value(left.positions))
    factors_ = _divisors(b, call.as_value(left.frequencies))
    if factors_ is None or not isinstance(n, int) or positions.ne[0] != wide.shape[1]:
        return None
    result = g.rope(
        b.rows(wide), positions, factors_, mode="neox", n_dims=n, freq_base=1.0,
        attn_factor=left.scale,
    )  # fmt: skip
    return permuted(b, Value.whole(result, v.dtype, wide.shape), order)


def _angles(b: Builder, node: Any, name: str) -> _Angles | None:
    """Traces cosine or sine back; None where that does not end in positions and frequencies."""
    scale = 1.0
    node = source_of(node, *_VIEWS)
    for other, factor in factors(node):
        number = b.number(factor)
        if number is not None:
            scale, node = number, source_of(other, *_CASTS)
            break
    if not is_call(node, name):
        return None
    twice = source_of(node.args[0], *_CASTS)
    if not is_call(twice, "cat") or len(twice.args[0]) != 2:
        return None
    rank = fake_of(twice).dim()
    if (twice.args[1] if len(twice.args) > 1 else 0) % rank != rank - 1:
        return None
    first, second = twice.args[0]
    if first is not second:
        return None
    for positions, frequencies in factors(source_of(first, *_CASTS)):
        parts = _parts(positions, frequencies, fake_of(first))
        if parts is not None:
            return _Angles(*parts, scale)
    return None


def _parts(positions: Any, frequencies: Any, angles: torch.Tensor) -> tuple[Node, Node] | None:
    """Positions [1, n, 1] and frequencies [.., .., half]."""
    p, f = fake_of(positions), fake_of(frequencies)
    if not isinstance(p, torch.Tensor) or not isinstance(f, torch.Tensor) or angles.dim() != 3:
        return None
    if tuple(p.shape) != (1, angles.shape[1], 1) or f.numel() != angles.shape[2]:
        return None
    whole, vector = source_of(positions, *_VIEWS), source_of(frequencies, *_VIEWS)
    if fake_of(whole).dtype not in (torch.int64, torch.int32) or fake_of(vector).dim() != 1:
        return None
    return whole, vector


def _positions(b: Builder, v: Value) -> Tensor:
    key = ("positions", v)
    if key not in b.memo:
        array = b.array(v)
        as_i32 = b.converted(v, torch.int32) if array is None else b.constant(array, torch.int32)
        b.memo[key] = b.flat(as_i32)
    return b.memo[key]


def _divisors(b: Builder, v: Value) -> Tensor | None:
    """The tensor by which ROPE divides positions, or None."""
    key = ("divisors", v)
    if key not in b.memo:
        array = b.array(v)
        if array is None:
            return None
        numbers = from_storage(np.ascontiguousarray(array), v.tensor.dtype)
        if not np.all(numbers > 0):
            return None
        b.memo[key] = b.constant(1.0 / numbers.astype(np.float64), torch.float32).tensor
    return b.memo[key]
