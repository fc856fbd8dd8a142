"""Reductions, running sums, and the order of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value, inverse, product
from weft.frontends.fx.ops.binary import chosen, combined
from weft.frontends.fx.ops.shape import reshaped
from weft.frontends.fx.registry import visitor
from weft.graph.size import Size
from weft.graph.tensor import Tensor

aten = torch.ops.aten

_KINDS: dict[Any, str] = {
    aten.sum.default: "sum", aten.sum.dim_IntList: "sum", aten.mean.default: "mean",
    aten.mean.dim: "mean", aten.amax.default: "max", aten.amin.default: "min",
    aten.max.default: "max", aten.min.default: "min", aten.prod.default: "prod",
    aten.prod.dim_int: "prod", aten.any.default: "any", aten.any.dim: "any", aten.any.dims: "any",
    aten.all.default: "all", aten.all.dim: "all", aten.all.dims: "all",
}  # fmt: skip


def groups_of(shape: Sequence[Size], dims: Sequence[int]) -> list[tuple[Size, bool]]:
    """Neighbouring dimensions merged, outermost first: size, and whether it is reduced."""
    groups: list[tuple[Size, bool]] = []
    for d, n in enumerate(shape):
        if n == 1:
            continue
        reduced = d in dims
        if groups and groups[-1][1] == reduced:
            groups[-1] = (groups[-1][0] * n, reduced)
        else:
            groups.append((n, reduced))
    return groups or [(1, True)]


def reduced(b: Builder, kind: str, v: Value, dims: Sequence[int]) -> Value:
    """REDUCE along dimensions, which keep a size of 1, in the order that the value has in memory.
    Integers are summed as int64."""
    order = v.reading_order
    inner = v.permuted(order)
    # PyTorch lets a scalar be reduced along a dimension that it does not have
    t = _reduced_tensor(b, kind, inner, [order.index(d) for d in dims if d < v.rank])
    kept = [1 if d in dims else n for d, n in zip(order, inner.shape, strict=True)]
    return Value.whole(t, _made_type(t, v.dtype), kept).permuted(inverse(order))


def _reduced_tensor(b: Builder, kind: str, v: Value, dims: Sequence[int]) -> Tensor:
    groups = groups_of(v.shape, dims)
    t = b.dense(v)
    while len(groups) > 4:
        # the innermost reduced group first, until the rest fits
        at = max(i for i, (_, drop) in enumerate(groups) if drop)
        inner = product([n for n, _ in groups[at + 1 :]])
        outer = product([n for n, _ in groups[:at]])
        t = g.reduce(kind, reshaped_to(t, (inner, groups[at][0], outer)), [1])
        groups = groups[:at] + groups[at + 1 :]
        groups = groups_of(
            [n for n, _ in groups], [i for i, (_, drop) in enumerate(groups) if drop]
        )
    sizes = [n for n, _ in reversed(groups)]
    axes = [i for i, (_, drop) in enumerate(reversed(groups)) if drop]
    t = reshaped_to(t, sizes)
    return g.reduce(kind, t, axes) if axes else t


def _reduction(kind: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        v = call.value("self")
        if kind in ("any", "all"):
            v = b.converted(v, torch.bool)
        elif is_float(call.out.dtype):
            v = b.converted(v, call.out.dtype)
        made = reduced(b, kind, v, call.dims("dim", v.rank))
        return b.converted(reshaped(b, made, call.shape()), call.out.dtype)

    return build


_INTEGERS = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8}


def _made_type(t: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The type of a REDUCE result: integers are summed as i64."""
    if is_float(dtype) or (dtype is torch.bool and t.dtype.name == "i8"):
        return dtype
    return _INTEGERS[t.dtype.name]


for op, called in _KINDS.items():
    visitor(op)(_reduction(called))


# -- position of the largest -----------------------------------------------------------------------


def three(v: Value, dim: int) -> tuple[Size, Size, Size]:
    """Sizes inside, along and outside a dimension: an `ne`, innermost first."""
    along = v.shape[dim] if v.rank else 1
    return product(v.shape[dim + 1 :]), along, product(v.shape[:dim])


def lines(b: Builder, v: Value, dim: int) -> tuple[Tensor, int]:
    """All elements with a dimension as an axis: (inside, along, outside), or rows of it.

    Kernels work along axis 0; with nothing inside, they would take one element at a time."""
    inside, along, outside = three(v, dim)
    if inside == 1:
        return reshaped_to(b.dense(v), (along, outside)), 0
    return reshaped_to(b.dense(v), (inside, along, outside)), 1


def _position(b: Builder, v: Value, dim: int, largest: bool) -> Tensor:
    t, axis = lines(b, v, dim)
    return g.arg_reduce(t, axis, largest=largest)


def _arg(largest: bool) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        v = call.value("self")
        if call.has("dim"):
            return b.result(call, _position(b, v, call.dim("dim", v.rank), largest))
        return b.result(call, g.arg_reduce(b.flat(v), 0, largest=largest))

    return build


def _best(largest: bool) -> Callable[[Builder, Call], list[Value | None]]:
    def build(b: Builder, call: Call) -> list[Value | None]:
        v = call.value("self")
        dim = call.dim("dim", v.rank)
        values = reduced(b, "max" if largest else "min", v, [dim])
        indices = b.result(call, _position(b, v, dim, largest), 1) if call.is_read(1) else None
        return [reshaped(b, values, call.shape()), indices]

    return build


visitor(aten.argmax.default)(_arg(True))
visitor(aten.argmin.default)(_arg(False))
visitor(aten.max.dim)(_best(True))
visitor(aten.min.dim)(_best(False))


# -- running sums ----------------------------------------------------------------------------------


@visitor(aten.cumsum.default, aten.cumprod.default)
def cumulate(b: Builder, call: Call) -> Value:
    """Sums or products so far along a dimension."""
    v = b.converted(call.value("self"), call.out.dtype)
    if v.rank == 0:
        return v
    kind = "sum" if call.op._schema.name == "aten::cumsum" else "prod"
    t, axis = lines(b, v, call.dim("dim", v.rank))
    made_type = call.out.dtype if is_float(v.dtype) else torch.int64
    sums = Value.whole(g.cumulate(kind, t, axis), made_type, v.shape)
    return b.converted(sums, call.out.dtype)


def _running(largest: bool) -> Callable[[Builder, Call], list[Value | None]]:
    def build(b: Builder, call: Call) -> list[Value | None]:
        v = call.value("self")
        t, axis = lines(b, v, call.dim("dim", v.rank))
        places = g.cumulate_arg(t, axis, largest=largest)
        return [b.result(call, g.gather(t, places, axis)), b.result(call, places, 1)]

    return build


visitor(aten.cummax.default)(_running(True))
visitor(aten.cummin.default)(_running(False))


# -- counts ----------------------------------------------------------------------------------------


def _bounded(call: Call) -> str | None:
    low, high = call.number("min"), call.number("max")
    return None if low < high else "a histogram between bounds that are read from the data"


@visitor(aten.histc.default, check=_bounded)
def histogram(b: Builder, call: Call) -> Value:
    """The number of elements in each of the bins of equal width between two bounds."""
    low, high = float(call.number("min")), float(call.number("max"))
    bins = int(call.number("bins", 100))
    v = call.value("self")
    x = Value.whole(b.flat(v), v.dtype, (1, v.n_elements))

    def with_number(name: str, left: Value, number: float) -> Value:
        return combined(b, name, left, b.scalar(number, v.dtype), left.shape)

    share = with_number("div", with_number("sub", x, low), high - low)
    at = b.mapped(lambda t: g.pointwise("floor", t), with_number("mul", share, bins))
    # the upper bound itself belongs to the last bin
    is_last = combined(b, "eq", x, b.scalar(high, v.dtype), x.shape, torch.bool)
    at = chosen(b, is_last, b.scalar(bins - 1, v.dtype), at, x.shape)
    numbers = b.constant(np.arange(bins), v.dtype).viewed((bins, 1), (1, 1))
    hits = combined(b, "eq", numbers, at, (bins, v.n_elements), torch.bool)
    return b.converted(reshaped(b, reduced(b, "sum", hits, [1]), call.shape()), call.out.dtype)


# -- spread ----------------------------------------------------------------------------------------


def _variance(b: Builder, call: Call) -> tuple[Value, Value]:
    """Variance and mean along dimensions."""
    v = call.value("self")
    dims = call.dims("dim", v.rank)
    n = product([v.shape[d] for d in dims]) if v.rank else 1
    correction = float(call.number("correction", 1.0))
    mean = reduced(b, "mean", v, dims)
    squares = b.mapped(g.sqr, combined(b, "sub", v, mean, v.shape))
    total = reduced(b, "sum", squares, dims)
    if isinstance(n, int):
        share = 1 / max(n - correction, 0.0)
        return b.mapped(lambda t: g.scale(t, share), total), mean
    count = b.of_size(n, total.dtype, lambda sizes: np.maximum(sizes - correction, 0.0))
    return combined(b, "div", total, count, total.shape), mean


def _enough(call: Call) -> str | None:
    fake = call.fake("self")
    dims = call.dims("dim", fake.dim())
    if any(isinstance(fake.shape[d], torch.SymInt) for d in dims if fake.dim()):
        return None
    correction = float(call.number("correction", 1.0))
    n = 1
    for d in dims if fake.dim() else []:
        n *= int(fake.shape[d])
    return None if n > correction else "a variance of too few elements"


@visitor(aten.var.correction, aten.std.correction, check=_enough)
def variance(b: Builder, call: Call) -> Value:
    """The variance, or its root."""
    result, _ = _variance(b, call)
    is_root = call.op._schema.name == "aten::std"
    return reshaped(b, b.mapped(g.sqrt, result) if is_root else result, call.shape())


@visitor(aten.var_mean.correction, aten.std_mean.correction, check=_enough)
def variance_mean(b: Builder, call: Call) -> list[Value | None]:
    """The variance (or its root) and the mean."""
    result, mean = _variance(b, call)
    root = b.mapped(g.sqrt, result) if call.op._schema.name == "aten::std_mean" else result
    return [reshaped(b, t, call.shape()) for t in (root, mean)]


# -- order -----------------------------------------------------------------------------------------


def _sorted(
    b: Builder, v: Value, dim: int, descending: bool, k: Size | None = None
) -> tuple[Tensor, Tensor]:
    """Values in order along a dimension, and their former positions."""
    t, axis = lines(b, v, dim)
    indices = g.sort_indices(t, axis, descending=descending, k=k)
    return g.gather(t, indices, axis), indices


@visitor(aten.sort.default, aten.sort.stable)
def sort(b: Builder, call: Call) -> list[Value | None]:
    """Elements in order, and their former positions."""
    v = call.value("self")
    values, indices = _sorted(
        b, v, call.dim("dim", v.rank, -1), bool(call.raw("descending", False))
    )
    return [b.result(call, values), b.result(call, indices, 1)]


@visitor(aten.argsort.default, aten.argsort.stable)
def argsort(b: Builder, call: Call) -> Value:
    """The positions of the elements in order."""
    v = call.value("self")
    dim = call.dim("dim", v.rank, -1)
    return b.result(call, _sorted(b, v, dim, bool(call.raw("descending", False)))[1])


@visitor(aten.topk.default)
def topk(b: Builder, call: Call) -> list[Value | None]:
    """The k largest or smallest, in order."""
    v = call.value("self")
    dim = call.dim("dim", v.rank, -1)
    largest = bool(call.args.get("largest", True))
    values, indices = _sorted(b, v, dim, largest, call.size(call.raw("k", 1)))
    return [b.result(call, values), b.result(call, indices, 1)]


def _middle(call: Call) -> str | None:
    fake = call.fake("self")
    if any(isinstance(n, torch.SymInt) for n in fake.shape):
        return "a median of dynamic shapes"
    return "a median of no elements" if fake.numel() == 0 else None


@visitor(aten.median.default, check=_middle)
def median(b: Builder, call: Call) -> Value:
    """The lower one of the two middle elements of all; a NaN where there is one."""
    t = b.flat(call.value("self"))
    return b.result(call, _median(b, reshaped_to(t, (1, t.ne[0], 1)))[0])


@visitor(aten.median.dim, check=_middle)
def median_dim(b: Builder, call: Call) -> list[Value | None]:
    """The lower one of the two middle elements along a dimension, and its position."""
    v = call.value("self")
    t = reshaped_to(b.dense(v), three(v, call.dim("dim", v.rank)))
    values, indices = _median(b, t)
    return [b.result(call, values), b.result(call, indices, 1)]


def _median(b: Builder, t: Tensor) -> tuple[Tensor, Tensor]:
    inner, n, outer, _ = t.ne
    assert isinstance(n, int)
    k = (n - 1) // 2
    order = g.sort_indices(t, 1, k=k + 1)
    size = order.dtype.bytes
    at = g.cont(g.view(order, (inner, 1, outer), (size, order.nb[1], order.nb[2]), k * order.nb[1]))
    return g.gather(t, at, 1), at


@visitor(aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim)
def vector_norm(b: Builder, call: Call) -> Value:
    """(sum of |x|^p) to the 1/p."""
    v = call.value("self")
    dims = call.dims("dim", v.rank)
    p = float(call.number("ord" if "ord" in call.args else "p", 2))
    if p == 2:
        norm = b.mapped(g.sqrt, reduced(b, "sum", b.mapped(g.sqr, v), dims))
        return reshaped(b, norm, call.shape())
    absolute = b.mapped(lambda t: g.pointwise("abs", t), v)
    if p in (float("inf"), float("-inf")):
        norm = reduced(b, "max" if p > 0 else "min", absolute, dims)
        return reshaped(b, norm, call.shape())
    if p == 0:
        counted = reduced(b, "sum", b.converted(absolute, torch.bool), dims)
        return b.converted(reshaped(b, counted, call.shape()), call.out.dtype)
    if p != 1:
        absolute = b.mapped(lambda t: g.pointwise("pow", t, p), absolute)
    norm = reduced(b, "sum", absolute, dims)
    if p != 1:
        norm = b.mapped(lambda t: g.pointwise("pow", t, 1 / p), norm)
    return reshaped(b, norm, call.shape())
