"""Replacing parts, reversing, padding: elements that move as a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft import graph as g
from weft.errors import GraphError
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value, broadcast_strides, inverse, product
from weft.frontends.fx.ops.binary import combined
from weft.frontends.fx.ops.index import along
from weft.frontends.fx.ops.shape import bounds, joined, reshaped, sliced, unsqueezed
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.graph.size import Size, lower, upper

aten = torch.ops.aten


# -- writing a part --------------------------------------------------------------------------------


def _scatter_rules(call: Call) -> str | None:
    if not is_static(call.raw("step", 1)):
        return "a step that depends on sizes"
    if int(call.raw("step", 1)) != 1 and not is_static(call.fake("self").shape):
        return "a step through a dynamic shape"
    return None


@visitor(aten.slice_scatter.default, check=_scatter_rules)
def slice_scatter(b: Builder, call: Call) -> Value:
    """A copy with part of a dimension replaced."""
    v, src = call.value("self"), b.converted(call.value("src"), call.out.dtype)
    dim = call.dim("dim", v.rank)
    n = v.shape[dim]
    start, count, step = bounds(call, n)
    if count == 0:
        return v
    shape = [*v.shape[:dim], count, *v.shape[dim + 1 :]]
    src = src.viewed(shape, broadcast_strides(src.shape, src.strides, shape))
    return _replaced(b, v, src, dim, start, count, step)


def _replaced(
    b: Builder, v: Value, src: Value, dim: int, start: Size, count: Size, step: int
) -> Value:
    n = v.shape[dim]
    if count == n:
        return src
    if step == 1:
        parts = [src]
        if start != 0:
            parts.insert(0, sliced(b, v, dim, 0, start))
        if start + count != n:
            parts.append(sliced(b, v, dim, start + count, n - start - count))
        return joined(b, parts, dim, v.dtype)
    assert isinstance(start, int) and isinstance(count, int)
    ids = b.constant(start + step * np.arange(count), torch.int64)
    result = g.index_put(along(v, dim, b), [None, b.flat(ids)], along(src, dim, b))
    return Value.whole(result, v.dtype, v.shape)


@visitor(aten.select_scatter.default)
def select_scatter(b: Builder, call: Call) -> Value:
    """A copy with one element of a dimension replaced."""
    v, src = call.value("self"), b.converted(call.value("src"), call.out.dtype)
    dim = call.dim("dim", v.rank)
    at = call.size(call.raw("index", 0))
    at = v.shape[dim] + at if isinstance(at, int) and at < 0 else at
    return _replaced(b, v, unsqueezed(src, dim), dim, at, 1, 1)


@visitor(aten.flip.default)
def flip(b: Builder, call: Call) -> Value:
    """Elements in reverse order along some dimensions."""
    v = call.value("self")
    for dim in call.dims("dims", v.rank) if call.raw("dims", []) else []:
        v = _read_around(
            b, v, dim, -1 - np.arange(upper(v.shape[dim])), call.fake("self").shape[dim]
        )
    return v


def _read_around(
    b: Builder, v: Value, dim: int, places: NDArray[Any], n: Any, shift: Any = 0
) -> Value:
    """The elements at `places` - `shift`, counted around the `n` elements of `dim`; `n` and `shift`
    are PyTorch's sizes, and there are as many places as `n` is at most."""
    size = v.shape[dim]
    if isinstance(n, int) and isinstance(shift, int):
        ids = b.constant((places - shift) % max(n, 1), torch.int64)
    else:
        whole = b.constant(places, torch.int64)
        ids = whole.viewed([size], whole.strides)
        for name, number in (("sub", shift), ("remainder", n)):
            other = (
                b.scalar(number, torch.int64)
                if isinstance(number, int)
                else b.measured(number, torch.int64)
            )
            ids = combined(b, name, ids, other, [size])
    return Value.whole(g.index(along(v, dim, b), [None, b.flat(ids)]), v.dtype, v.shape)


@visitor(aten.roll.default)
def roll(b: Builder, call: Call) -> Value:
    """Elements shifted along some dimensions, circularly."""
    v = call.value("self")
    shifts, dims = call.raw("shifts"), call.numbers("dims")
    shape, sizes = v.shape, list(call.fake("self").shape)
    if not dims:
        v, dims, sizes = reshaped(b, v, (product(v.shape),)), [0], [call.fake("self").numel()]
    for shift, d in zip(shifts, dims, strict=True):
        dim = d % max(v.rank, 1)
        n = v.shape[dim]
        k = 0
        if isinstance(shift, int) and n != 0:
            k = shift % n if isinstance(n, int) else shift
        if k == 0 and isinstance(shift, int):
            continue
        if 0 < abs(k) <= lower(n):
            last = k if k > 0 else n + k  # how many elements come to the front
            parts = [sliced(b, v, dim, n - last, last), sliced(b, v, dim, 0, n - last)]
            v = joined(b, parts, dim, v.dtype)
        else:
            shift = shift if isinstance(shift, int) else fake_of(shift)
            v = _read_around(b, v, dim, np.arange(upper(n)), sizes[dim], shift)
    return reshaped(b, v, shape)


# -- padding ---------------------------------------------------------------------------------------


def _pad_rules(call: Call) -> str | None:
    pad = call.raw("pad" if "pad" in call.args else "padding", [])
    if not is_static(pad) and call.op is not aten.constant_pad_nd.default:
        return "padding that depends on sizes and is not constant"
    dims = len(pad) // 2
    return "padding of more than four dimensions" if dims > 4 else None


_MODES: dict[Any, str] = {
    aten.constant_pad_nd.default: "constant", aten.reflection_pad1d.default: "reflect",
    aten.reflection_pad2d.default: "reflect", aten.reflection_pad3d.default: "reflect",
    aten.replication_pad1d.default: "replicate", aten.replication_pad2d.default: "replicate",
    aten.replication_pad3d.default: "replicate", aten._pad_circular.default: "circular",
}  # fmt: skip


@visitor(*_MODES, check=_pad_rules)
def pad(b: Builder, call: Call) -> Value:
    """More, or fewer, elements at both ends of the last dimensions."""
    v = call.value("self")
    name = "pad" if "pad" in call.args else "padding"
    if not is_static(call.raw(name, [])):
        return _padded(b, call, v, [call.size(n) for n in call.raw(name, [])])
    if not any(call.numbers(name)):
        return v
    if 0 in call.shape():
        return b.scalar(0.0, v.dtype).viewed(call.shape(), [0] * v.rank)
    numbers = call.numbers(name)
    # by dimension: how many before and behind
    ends = dict.fromkeys(range(v.rank), (0, 0))
    ends |= {v.rank - 1 - i: (numbers[2 * i], numbers[2 * i + 1]) for i in range(len(numbers) // 2)}
    if _MODES[call.op] == "circular":
        v, ends = _cropped(b, v, ends)
    order = v.reading_order
    x = v.permuted(order)
    first = next((i for i, d in enumerate(order) if any(ends[d])), v.rank)
    if v.rank - first > 4:
        first, order, x = v.rank - len(numbers) // 2, tuple(range(v.rank)), v
    inside = x.shape[first:][::-1]
    outside = (product(x.shape[:first]),) if len(inside) < 4 else ()
    low, high = ([ends[d][i] for d in order[first:][::-1]] for i in (0, 1))
    padded = g.pad_nd(
        reshaped_to(b.dense(x), (*inside, *outside)),
        low,
        high,
        _MODES[call.op],
        float(call.number("value", 0)),
    )
    sizes = call.shape()
    return Value.whole(padded, call.out.dtype, [sizes[d] for d in order]).permuted(inverse(order))


def _cropped(
    b: Builder, v: Value, ends: dict[int, tuple[int, int]]
) -> tuple[Value, dict[int, tuple[int, int]]]:
    """The parts of a value and of its padding that remain once negative ends are removed, as
    PyTorch wraps what remains."""
    for dim, (before, behind) in ends.items():
        off = max(-before, 0) + max(-behind, 0)
        if off:
            v = sliced(b, v, dim, max(-before, 0), v.shape[dim] - off)
    return v, {dim: (max(before, 0), max(behind, 0)) for dim, (before, behind) in ends.items()}


def _padded(b: Builder, call: Call, v: Value, ends: Sequence[Size]) -> Value:
    """Constant padding by numbers that are computed from sizes: a number, repeated, at each end."""
    if any(lower(n) < 0 for n in ends):
        raise GraphError("padding that depends on sizes and may be negative")
    filler = b.scalar(call.number("value", 0), v.dtype)
    for i in range(len(ends) // 2):
        dim = v.rank - 1 - i
        parts = [v]
        for n, at in ((ends[2 * i], 0), (ends[2 * i + 1], 1)):
            if n != 0:
                shape = (*v.shape[:dim], n, *v.shape[dim + 1 :])
                parts.insert(at * len(parts), filler.viewed(shape, [0] * len(shape)))
        v = joined(b, parts, dim, v.dtype) if len(parts) > 1 else v
    return v
