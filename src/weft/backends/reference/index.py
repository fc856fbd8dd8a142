"""Indexing, sorting and padding of plain tensors. Units are moved unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, kernel
from weft.graph import ops as g

Array = NDArray[Any]


def wrapped(index: Array, n: int) -> Array:
    """Indices with negative ones counted from the end; raises IndexError naming one outside."""
    outside = (index < -n) | (index >= n)
    if outside.any():
        raise IndexError(f"index {index[outside][0]} is outside -{n} .. {n - 1}")
    positive: Array = np.where(index < 0, index + n, index).astype(np.int64)
    return positive


def _along(index: Array, axis: int) -> tuple[Array, ...]:
    """The coordinates of every element of `index`, with the index itself along `axis`."""
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    return tuple(places)


@kernel("GATHER")
def gather(call: Call) -> None:
    """Elements picked by an index along an axis."""
    p: g.AxisParams = call.params
    x, axis = call.view(0).units, 3 - p.axis
    call.dst.units[...] = x[_along(wrapped(call.read(1), x.shape[axis]), axis)]


@kernel("SCATTER")
def scatter(call: Call) -> None:
    """src0 with the elements that src1 points to replaced, or added to."""
    p: g.ScatterParams = call.params
    axis = 3 - p.axis
    index = wrapped(call.read(1), call.dst.shape[axis])
    part = tuple(slice(n) for n in index.shape)
    if p.mode is g.ScatterMode.SET:
        call.dst.units[...] = call.view(0).units
        call.dst.units[_along(index, axis)] = call.view(2).units[part]
        return
    x = _sum_type(call.read(0))
    np.add.at(x, _along(index, axis), _sum_type(call.read(2))[part])
    call.dst.write(x)


def _sum_type(x: Array) -> Array:
    """A copy in the type that sums are kept in."""
    return x.copy() if x.dtype.kind == "i" else x.astype(np.float64)


def _places(call: Call, first: int, axes: int) -> tuple[Any, ...]:
    """The NumPy index that consists of the sources from `first` on."""
    places: list[Any] = [slice(None)] * 4
    arrays = [call.read(first + i) for i in range(axes.bit_count())]
    for d, index in zip([d for d in range(4) if axes >> d & 1], arrays, strict=True):
        places[3 - d] = wrapped(index, call.view(0).ne[d])
    return tuple(places)


@kernel("INDEX")
def index(call: Call) -> None:
    """src0 indexed by tensors; leading ones of the indices make no dimension."""
    p: g.IndexParams = call.params
    units = call.view(0).units[_places(call, 1, p.axes)]
    call.dst.units[...] = units.reshape(call.dst.shape)


@kernel("INDEX_PUT")
def index_put(call: Call) -> None:
    """src0 with the elements that the indices pick replaced by src1, or src1 added to them."""
    p: g.IndexPutParams = call.params
    places = _places(call, 2, p.axes)
    shape = call.view(0).units[places].shape
    sizes = _result_shape(call, p, places)
    if p.accumulate:
        x = _sum_type(call.read(0))
        np.add.at(x, places, np.broadcast_to(_sum_type(call.read(1)), sizes).reshape(shape))
        call.dst.write(x)
        return
    call.dst.units[...] = call.view(0).units
    call.dst.units[places] = np.broadcast_to(call.view(1).units, sizes).reshape(shape)


def _result_shape(call: Call, p: g.IndexPutParams, places: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of x[indices] in four dimensions, outermost first."""
    together = np.broadcast_shapes(*(i.shape for i in places if not isinstance(i, slice)))[::-1]
    sizes = [n for d, n in enumerate(call.view(0).ne) if not p.axes >> d & 1]
    sizes[p.first : p.first] = together[: p.rank]
    return tuple([*sizes, 1, 1, 1, 1][:4][::-1])


@kernel("SORT_INDICES")
def sort_indices(call: Call) -> None:
    """The positions in order; equal elements keep their order, a NaN counts as the largest."""
    p: g.SortIndicesParams = call.params
    axis = 3 - p.axis
    x = np.moveaxis(call.read(0), axis, -1)
    n = x.shape[-1]
    if p.descending:
        order = n - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(x, axis=-1, kind="stable")
    call.dst.write(np.moveaxis(order[..., : call.dst.shape[axis]], -1, axis))


@kernel("SEARCH_SORTED")
def search_sorted(call: Call) -> None:
    """Bisection of each row for all values at once; an element that is not above counts as
    below."""
    p: g.SearchSortedParams = call.params
    values = call.read(1)
    rows = np.broadcast_to(call.read(0), (*values.shape[:3], call.view(0).ne[0]))
    begin, end = np.zeros(values.shape, np.int64), np.full(values.shape, rows.shape[3], np.int64)
    while (open_ := begin < end).any():
        middle = (begin + end) // 2
        x = np.take_along_axis(rows, np.minimum(middle, rows.shape[3] - 1), 3)
        above = x > values if p.right else x >= values
        end = np.where(open_ & above, middle, end)
        begin = np.where(open_ & ~above, middle + 1, begin)
    call.dst.write(begin)


@kernel("PAD_ND")
def pad_nd(call: Call) -> None:
    """Elements added or removed on either side of each dimension."""
    p: g.PadNdParams = call.params
    view = call.view(0)
    x, inside = view.units, np.ones((1, 1, 1, 1), bool)
    for d in range(4):
        axis, n = 3 - d, view.ne[d]
        at = np.arange(call.dst.ne[d]) - p.left[d]
        shape = [1, 1, 1, 1]
        shape[axis] = at.size
        if p.mode is g.PadMode.CONSTANT:
            inside = inside & ((at >= 0) & (at < n)).reshape(shape)
        x = x.take(_folded(at, n, p.mode), axis)
    call.dst.units[...] = x
    if p.mode is g.PadMode.CONSTANT:
        fill = call.dst.encode(np.array([p.value]))
        call.dst.units[...] = np.where(inside, call.dst.units, fill)


def _folded(at: Array, n: int, mode: g.PadMode) -> Array:
    """The place inside 0..n-1 whose element stands at each place outside."""
    if mode is g.PadMode.REFLECT and n > 1:
        at = np.mod(at, 2 * (n - 1))
        back: Array = np.minimum(at, 2 * (n - 1) - at)
        return back
    if mode is g.PadMode.CIRCULAR:
        round_: Array = np.mod(at, n)
        return round_
    return np.clip(at, 0, n - 1)
