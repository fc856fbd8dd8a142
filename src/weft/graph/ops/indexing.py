"""Indexing, sorting and padding of plain tensors, as PyTorch defines them.

Sizes in docstrings are `ne`, innermost first; an `axis` counts in the same order, and one outside
0..3 raises GraphError. Indices are i32 or i64 and a negative one counts from the end. An index
outside its dimension makes the run fail with an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from weft.dtype import DTYPES
from weft.graph.costs import rows_read, sorting
from weft.graph.node import (
    NUMBERS,
    broadcast_ne,
    check_axis,
    fail,
    make_node,
    member,
    require,
    require_type,
)
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import Size, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

INDICES = ("i32", "i64")

ANY = (*NUMBERS, "f64")

I64 = DTYPES["i64"]


class ScatterMode(IntEnum):
    """The way in which SCATTER combines a new element with the one in its place."""

    SET = 0
    ADD = 1


class PadMode(IntEnum):
    """The elements that PAD_ND adds."""

    CONSTANT = 0
    REFLECT = 1
    REPLICATE = 2
    CIRCULAR = 3


@dataclass(frozen=True, slots=True)
class AxisParams(Params):
    """The axis of GATHER."""

    axis: int


@dataclass(frozen=True, slots=True)
class ScatterParams(Params):
    """The axis of SCATTER, and how elements are combined."""

    axis: int
    mode: ScatterMode = ScatterMode.SET


@dataclass(frozen=True, slots=True)
class IndexParams(Params):
    """The mask of axes that have an index tensor (in this order among the sources), the number of
    dimensions that the indices have together, and the dimension of the result where these begin."""

    axes: int
    rank: int
    first: int


@dataclass(frozen=True, slots=True)
class IndexPutParams(Params):
    """The numbers of INDEX; `accumulate` adds values to the elements in their places."""

    axes: int
    rank: int
    first: int
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class SearchSortedParams(Params):
    """`right` counts elements equal to a value as below it."""

    right: bool = False


@dataclass(frozen=True, slots=True)
class SortIndicesParams(Params):
    """The axis to sort along, and which end comes first."""

    axis: int
    descending: bool = False


@dataclass(frozen=True, slots=True)
class PadNdParams(Params):
    """Elements added (below 0: taken away) before and after each dimension."""

    left: tuple[int, int, int, int]
    right: tuple[int, int, int, int]
    mode: PadMode = PadMode.CONSTANT
    value: float = 0.0


def _require_within(op: str, small: Tensor, big: Tensor, *, but: int | None = None) -> None:
    for d in range(4):
        if d != but:
            fits = small.ne[d] == big.ne[d] or is_at_most(small.ne[d], big.ne[d])
            require(fits, op, f"indices are too large in dimension {d}", small, big)


@declares("GATHER", params=AxisParams, cost=0.0)
def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """x[..., indices[..., i, ...], ...] along `axis`; the type of `x` and the sizes of `indices`.

    x: numbers or f64. But for `axis`, the sizes of `indices` are at most the sizes of `x`, else
    GraphError. Equals torch.gather."""
    require_type(x, ANY, "GATHER", "x")
    require_type(indices, INDICES, "GATHER", "indices")
    check_axis("GATHER", axis, x)
    _require_within("GATHER", indices, x, but=axis)
    return make_node("GATHER", x.dtype, indices.ne, x, indices, params=AxisParams(axis))


@declares("SCATTER", params=ScatterParams, cost=0.0)
def scatter(
    x: Tensor, indices: Tensor, source: Tensor, axis: int, mode: ScatterMode | str = "set"
) -> Tensor:
    """A copy of `x` whose element indices[..., i, ...] along `axis` is replaced by source[..., i,
    ...].

    Mode `add` adds the two instead; of two values for one place the later one stays. The result has
    the type and sizes of `x`. Raises GraphError where `indices` are larger than `source` or, but
    for `axis`, than `x`, and where the types of `x` and `source` differ. Equals torch.scatter and
    scatter_add."""
    kind = member(ScatterMode, mode, "SCATTER")
    require_type(x, ANY if kind is ScatterMode.SET else NUMBERS, "SCATTER", "x")
    require_type(indices, INDICES, "SCATTER", "indices")
    require(x.dtype is source.dtype, "SCATTER", "x and source must have one type", x, source)
    check_axis("SCATTER", axis, x)
    _require_within("SCATTER", indices, x, but=axis)
    _require_within("SCATTER", indices, source)
    params = ScatterParams(axis, kind)
    return make_node("SCATTER", x.dtype, x.ne, x, indices, source, params=params)


class _Picked:
    """The index tensors of x[indices], and the place of their dimensions in the result."""

    def __init__(
        self, op: str, x: Tensor, indices: Sequence[Tensor | None], rank: int | None
    ) -> None:
        require_type(x, ANY, op, "x")
        if len(indices) > 4:
            raise fail(op, f"a tensor has 4 dimensions, got {len(indices)} indices", x)
        axes = [d for d, t in enumerate(indices) if t is not None]
        self.tensors = [t for t in indices if t is not None]
        if not self.tensors:
            raise fail(op, "at least one index tensor is needed", x)
        for t in self.tensors:
            require_type(t, INDICES, op, "an index")
        broadcast = broadcast_ne(op, *self.tensors)
        least = max((d + 1 for d in range(4) if broadcast[d] != 1), default=0)
        self.rank = least if rank is None else rank
        if not least <= self.rank <= 4:
            raise fail(op, f"the indices have {least} dimensions, not {rank}", x, *self.tensors)
        other_axes = [d for d in range(max(len(indices), x.n_dims)) if d not in axes]
        adjacent = axes[-1] - axes[0] == len(axes) - 1
        # indices of axes that lie apart come outermost, as in PyTorch and NumPy
        self.first = axes[0] if adjacent else len(other_axes)
        self.axes = sum(1 << d for d in axes)
        sizes = [x.ne[d] for d in other_axes]
        sizes[self.first : self.first] = broadcast[: self.rank]
        require(len(sizes) <= 4, op, "the result has more than 4 dimensions", x, *self.tensors)
        self.ne = (*sizes, *[1] * (4 - len(sizes)))


@declares("INDEX", sources=(2, 5), params=IndexParams, cost=rows_read)
def index(x: Tensor, indices: Sequence[Tensor | None], *, rank: int | None = None) -> Tensor:
    """x[indices]: `indices[d]` picks along dimension d (innermost first), None takes all of it.

    The index tensors broadcast to [i0, i1, ...]. These dimensions replace the indexed axes where
    the axes are neighbours, else they come outermost. `rank` says how many they are; by default
    trailing sizes of 1 do not count. Likewise `x` has at least len(indices) dimensions. Raises
    GraphError without an index tensor, for sizes that do not broadcast, and for more than 4
    dimensions. Equals x[indices] in PyTorch."""
    p = _Picked("INDEX", x, indices, rank)
    params = IndexParams(p.axes, p.rank, p.first)
    return make_node("INDEX", x.dtype, p.ne, x, *p.tensors, params=params)


@declares("INDEX_PUT", sources=(3, 6), params=IndexPutParams, cost=0.0)
def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    *,
    accumulate: bool = False,
    rank: int | None = None,
) -> Tensor:
    """A copy of `x` whose elements x[indices] (see `index`) are replaced by `values`, which
    broadcast.

    `accumulate` adds the values instead, once for each time that an index occurs; else the last one
    stays. The result has the type and sizes of `x`. Raises GraphError as `index` does, and where
    the types differ or values do not broadcast. Equals torch.index_put."""
    p = _Picked("INDEX_PUT", x, indices, rank)
    require(x.dtype is values.dtype, "INDEX_PUT", "x and values must have one type", x, values)
    if accumulate:
        require_type(x, NUMBERS, "INDEX_PUT", "x")
    for d in range(4):
        fits = values.ne[d] in (1, p.ne[d])
        require(fits, "INDEX_PUT", f"values do not broadcast to {list(p.ne[::-1])}", x, values)
    params = IndexPutParams(p.axes, p.rank, p.first, bool(accumulate))
    return make_node("INDEX_PUT", x.dtype, x.ne, x, values, *p.tensors, params=params)


@declares("SORT_INDICES", params=SortIndicesParams, cost=sorting)
def sort_indices(
    x: Tensor, axis: int, *, descending: bool = False, k: Size | None = None
) -> Tensor:
    """The positions of the elements in order along `axis`: i64, the sizes of `x`; `gather` gives
    the values.

    x: numbers. Equal elements keep their order, a NaN counts as the largest. `k` keeps the first k
    along the axis, and raises GraphError where there are fewer. Equals the indices of
    torch.sort(stable=True)."""
    require_type(x, NUMBERS, "SORT_INDICES", "x")
    check_axis("SORT_INDICES", axis, x)
    length = x.ne[axis] if k is None else k
    enough = is_at_most(length, x.ne[axis])
    require(enough, "SORT_INDICES", f"k = {length} is more than the elements along {axis}", x)
    ne = tuple(length if d == axis else n for d, n in enumerate(x.ne))
    params = SortIndicesParams(axis, bool(descending))
    return make_node("SORT_INDICES", I64, ne, x, params=params)


@declares("PAD_ND", params=PadNdParams, cost=0.0)
def pad_nd(
    x: Tensor,
    left: Sequence[int],
    right: Sequence[int],
    mode: PadMode | str = "constant",
    value: float = 0.0,
) -> Tensor:
    """`x` with left[d] elements before and right[d] after it along dimension d; below 0 takes away.

    Modes: constant (adds `value`), reflect (mirrors without the edge; at most ne[d] - 1 elements),
    replicate (repeats the edge), circular (at most ne[d]). The type is the type of `x`, numbers or
    f64. Raises GraphError where a mode has too few elements or more are taken away than there are.
    Equals torch.nn.functional.pad."""
    require_type(x, ANY, "PAD_ND", "x")
    kind = member(PadMode, mode, "PAD_ND")
    before, after = _four(left, "left", x), _four(right, "right", x)
    sizes = []
    for d in range(4):
        n = x.ne[d]
        most = max(before[d], after[d])
        if kind is not PadMode.CONSTANT and most > 0:
            shortest = {PadMode.REFLECT: most + 1, PadMode.REPLICATE: 1, PadMode.CIRCULAR: most}
            needed = shortest[kind]
            why = f"{kind.name.lower()} padding of {most} needs {needed} elements along {d}"
            require(is_at_most(needed, n), "PAD_ND", why, x)
        total = n + before[d] + after[d]
        require(is_at_most(0, total), "PAD_ND", f"more is taken away than there is along {d}", x)
        fits = is_at_most(-min(before[d], 0), n) and is_at_most(-min(after[d], 0), n)
        require(fits, "PAD_ND", f"more is taken away than there is along {d}", x)
        sizes.append(total)
    return make_node("PAD_ND", x.dtype, sizes, x, params=PadNdParams(before, after, kind, value))


def _four(values: Sequence[int], what: str, x: Tensor) -> tuple[int, int, int, int]:
    if len(values) > 4:
        raise fail("PAD_ND", f"{what} has a number for each dimension, got {list(values)}", x)
    a, b, c, d = (*(int(v) for v in values), 0, 0, 0, 0)[:4]
    return (a, b, c, d)


@declares("SEARCH_SORTED", params=SearchSortedParams, cost=8.0)
def search_sorted(rows: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """The number of elements of a sorted row that are below each value (`right`: at most it); i64.

    rows: [n, r1, r2, r3], ascending, a NaN last; values: [m, r1, r2, r3], or [m, ...] where there
    is one row for all; of one type -> [m, ...]. All of a row are below a NaN. Raises GraphError for
    other sizes. Equals torch.searchsorted."""
    op = "SEARCH_SORTED"
    require_type(rows, NUMBERS, op, "rows")
    require(rows.dtype is values.dtype, op, "rows and values must have one type", rows, values)
    fits = rows.ne[1:] in (values.ne[1:], (1, 1, 1))
    require(fits, op, "needs one row, or a row for each row of values", rows, values)
    params = SearchSortedParams(bool(right))
    return make_node(op, I64, values.ne, rows, values, params=params)
