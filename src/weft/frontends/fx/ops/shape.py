"""Views and ops that move elements; they copy only where a view is impossible."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft import graph as g
from weft.errors import GraphError
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.layout import Value, broadcast_strides, coalesce, inverse, product, restride
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.graph.size import Expr, Size, ceil_div, size_max, size_min

aten = torch.ops.aten


def reshaped(b: Builder, v: Value, shape: Sequence[Size]) -> Value:
    """The elements in order under another shape; a copy where strides cannot express it."""
    strides = restride(v.shape, v.strides, shape)
    if strides is None:
        whole = b.settled(v, stored=True)
        return Value.whole(whole.tensor, v.dtype, shape)
    return v.viewed(shape, strides)


def permuted(b: Builder, v: Value, order: Sequence[int]) -> Value:
    """Dimension order[i] of `v` becomes dimension i."""
    view = v.viewed([v.shape[d] for d in order], [v.strides[d] for d in order])
    if _fits(view):
        return view
    # more than four dimensions that cannot be merged move one at a time, with a copy each
    left = list(range(v.rank))
    for place, d in enumerate(order):
        at = left.index(d)
        if at != place:
            left.insert(place, left.pop(at))
            moved = [*range(place), at, *(i for i in range(place, v.rank) if i != at)]
            v = b.settled(v, stored=True)
            v = v.viewed([v.shape[i] for i in moved], [v.strides[i] for i in moved])
    return v


def _fits(v: Value) -> bool:
    return sum(1 for _, s in coalesce(v.shape, v.strides) if s != 0) <= 4


def sliced(b: Builder, v: Value, dim: int, start: Size, n: Size, step: int = 1) -> Value:
    """The `n` elements start, start + step and so on along `dim`."""
    for source in (v, None):
        source = source or b.settled(v, stored=True)
        shape, strides = list(source.shape), list(source.strides)
        offset = source.offset + start * strides[dim]
        shape[dim], strides[dim] = n, strides[dim] * step
        view = source.viewed(shape, strides, offset)
        if _fits(view):
            return view
    raise GraphError("a slice leaves more than four dimensions")


def selected(b: Builder, v: Value, dim: int, at: Size) -> Value:
    """Element `at` along `dim`; the result lacks that dimension."""
    element = sliced(b, v, dim, at, 1)
    drop = [i for i in range(v.rank) if i != dim]
    return element.viewed([element.shape[i] for i in drop], [element.strides[i] for i in drop])


def unsqueezed(v: Value, dim: int) -> Value:
    """A dimension of one element before dimension `dim`."""
    return v.viewed((*v.shape[:dim], 1, *v.shape[dim:]), (*v.strides[:dim], 1, *v.strides[dim:]))


# -- views -----------------------------------------------------------------------------------------


@visitor(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.view_copy.default,
    aten._reshape_copy.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze.default,
    aten.unsqueeze_copy.default,
)
def view(b: Builder, call: Call) -> Value:
    """The elements in order under the shape of the result, which alone tells these ops apart."""
    return reshaped(b, call.value("self"), call.shape())


@visitor(
    aten.alias.default,
    aten.alias_copy.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift_fresh_copy.default,
)
def alias(b: Builder, call: Call) -> Value:
    """The value itself, because no op writes it."""
    del b
    return call.value("self")


def _training(call: Call) -> str | None:
    if call.raw("train", False) and float(call.number("p")):
        return "dropout of a module that is trained; call eval() on it before it is exported"
    return None


@visitor(aten.dropout.default, aten.native_dropout.default, check=_training)
def dropout(b: Builder, call: Call) -> Value | list[Value | None]:
    """The value itself, because nothing is dropped in evaluation."""
    del b
    v = call.value("input")
    return v if len(call.outs) == 1 else [v, None]


@visitor(aten.permute.default, aten.permute_copy.default)
def permute(b: Builder, call: Call) -> Value:
    """Dimensions in another order."""
    v = call.value("self")
    return permuted(b, v, [int(d) % max(v.rank, 1) for d in call.raw("dims", [])])


@visitor(aten.transpose.int, aten.transpose_copy.int, aten.t.default, aten.t_copy.default)
def transpose(b: Builder, call: Call) -> Value:
    """Two dimensions exchanged."""
    v = call.value("self")
    if v.rank < 2:
        return v
    i, j = call.dim("dim0", v.rank, 0), call.dim("dim1", v.rank, 1)
    order = list(range(v.rank))
    order[i], order[j] = j, i
    return permuted(b, v, order)


@visitor(aten.expand.default, aten.expand_copy.default, aten.expand_as.default)
def expand(b: Builder, call: Call) -> Value:
    """Dimensions repeated; nothing is copied until an op needs it."""
    del b
    v, shape = call.value("self"), call.shape()
    return v.viewed(shape, broadcast_strides(v.shape, v.strides, shape))


@visitor(aten.select.int, aten.select_copy.int)
def select(b: Builder, call: Call) -> Value:
    """One element of a dimension."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    return selected(b, v, dim, _position(call.size(call.raw("index", 0)), v.shape[dim], call))


def _position(at: Size, n: Size, call: Call) -> Size:
    if isinstance(at, Expr):
        return at
    index = call.raw("index", 0)
    return n + at if isinstance(index, int) and index < 0 else at


def _static_steps(call: Call) -> str | None:
    return None if is_static(call.raw("step", 1)) else "a step that depends on sizes"


def bounds(call: Call, n: Size) -> tuple[Size, Size, int]:
    """First element, number of elements and step of a slice of a dimension of `n`."""
    step = int(call.raw("step", 1))
    first = call.raw("start", 0)
    start = _clamped(call.size(first), n)
    end = n if not call.has("end") else _clamped(call.size(call.raw("end")), n)
    return start, size_max(ceil_div(end - start, step), 0), step


def _clamped(at: Size, n: Size) -> Size:
    if isinstance(at, int) and at < 0:
        at = n + at
        return at if isinstance(at, Expr) else max(at, 0)
    if isinstance(at, int) and at >= 2**31:
        return n
    return size_min(at, n)


@visitor(aten.slice.Tensor, aten.slice_copy.Tensor, check=_static_steps)
def slice_(b: Builder, call: Call) -> Value:
    """Part of a dimension."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    start, n, step = bounds(call, v.shape[dim])
    return sliced(b, v, dim, start, call.shape()[dim] if not isinstance(n, int) else n, step)


@visitor(aten.narrow.default, aten.narrow_copy.default)
def narrow(b: Builder, call: Call) -> Value:
    """`length` elements from `start`."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    start = call.size(call.raw("start", 0))
    return sliced(b, v, dim, _clamped(start, v.shape[dim]), call.size(call.raw("length", 0)))


@visitor(
    aten.split.Tensor,
    aten.split_copy.Tensor,
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.chunk.default,
    aten.unsafe_chunk.default,
)
def split(b: Builder, call: Call) -> list[Value | None]:
    """Parts one after the other along a dimension."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    at: Size = 0
    parts: list[Value | None] = []
    for fake in call.outs:
        n = call.size(fake.shape[dim])
        parts.append(sliced(b, v, dim, at, n))
        at = at + n
    return parts


@visitor(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: Builder, call: Call) -> list[Value | None]:
    """Every element of a dimension by itself."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    return [selected(b, v, dim, i) for i in range(len(call.outs))]


@visitor(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, call: Call) -> Value:
    """Elements with equal indices in two dimensions, as the last dimension."""
    del b
    v = call.value("self")
    i, j = call.dim("dim1", v.rank, 0), call.dim("dim2", v.rank, 1)
    k = int(call.number("offset", 0))
    start = v.strides[j] * k if k >= 0 else v.strides[i] * -k
    keep = [d for d in range(v.rank) if d not in (i, j)]
    n = call.shape()[-1]
    return v.viewed(
        (*(v.shape[d] for d in keep), n),
        (*(v.strides[d] for d in keep), v.strides[i] + v.strides[j]),
        v.offset + start,
    )


@visitor(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: Builder, call: Call) -> Value:
    """Windows of a dimension, side by side in its place; their elements are a new last
    dimension."""
    v, shape = call.value("self"), call.shape()
    if v.rank == 0:
        return v.viewed(shape, (1,))
    dim, step = call.dim("dimension", v.rank), int(call.number("step"))
    for source in (v, None):
        source = source or b.settled(v, stored=True)
        strides = list(source.strides)
        strides[dim] = strides[dim] * step
        windows = source.viewed(shape, (*strides, source.strides[dim]))
        if _fits(windows):
            return windows
    raise GraphError("windows of a tensor of more than three dimensions that cannot be merged")


# -- joining and repeating -------------------------------------------------------------------------


def joined(b: Builder, parts: Sequence[Value], dim: int, dtype: torch.dtype) -> Value:
    """Values one after the other along a dimension, in the first one's order in memory."""
    parts = [b.converted(p, dtype) for p in parts]
    order = parts[0].reading_order
    parts, at = [p.permuted(order) for p in parts], order.index(dim)
    first = parts[0]
    inner = product(first.shape[at + 1 :])
    outer = product(first.shape[:at])
    tensors = [g.reshape(b.dense(p), inner * p.shape[at], outer, 1, 1) for p in parts]
    while len(tensors) > 1:
        # neighbours in pairs, so that no part is copied once for each part behind it
        odd = tensors[-1:] if len(tensors) % 2 else []
        pairs = zip(tensors[::2], tensors[1::2], strict=False)
        tensors = [*(g.concat(left, right, 0) for left, right in pairs), *odd]
    [tensor] = tensors
    total: Size = 0
    for p in parts:
        total = total + p.shape[at]
    shape = list(first.shape)
    shape[at] = total
    return Value.whole(tensor, dtype, shape).permuted(inverse(order))


@visitor(aten.cat.default, aten.concat.default)
def cat(b: Builder, call: Call) -> Value:
    """Tensors joined along a dimension; empty ones of one dimension do not count."""
    parts = [v for v in call.values("tensors") if not (v.rank == 1 and v.shape[0] == 0)]
    if not parts:
        return call.values("tensors")[0]
    return joined(b, parts, call.dim("dim", len(call.out.shape)), call.out.dtype)


@visitor(aten.stack.default)
def stack(b: Builder, call: Call) -> Value:
    """Tensors joined along a new dimension."""
    dim = call.dim("dim", len(call.out.shape))
    parts = [unsqueezed(v, dim) for v in call.values("tensors")]
    return joined(b, parts, dim, call.out.dtype)


@visitor(aten.repeat.default, aten.tile.default)
def repeat(b: Builder, call: Call) -> Value:
    """A tensor several times along each dimension."""
    v = call.value("self")
    times: list[Size] = [
        call.size(n) for n in call.raw("repeats" if "repeats" in call.args else "dims", [])
    ]
    times = [*[1] * (v.rank - len(times)), *times]
    shape = (1,) * (len(times) - v.rank) + v.shape
    strides = (1,) * (len(times) - v.rank) + v.strides
    pairs = [(m, n) for m, n in zip(times, shape, strict=True)]
    wide = v.viewed(
        [n for pair in pairs for n in pair],
        [s for (m, _), old in zip(pairs, strides, strict=True) for s in (0 if m != 1 else 1, old)],
    )
    return reshaped(b, b.settled(wide, stored=True), [m * n for m, n in pairs])
