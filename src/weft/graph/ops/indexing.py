"""Indexing, sorting and padding of plain tensors, as PyTorch defines them.

Sizes in docstrings are `ne`, innermost first; an `axis` counts in the same order. Indices are i32
or i64, a negative one counts from the end, and one outside makes the run fail and is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

INDICES = ("i32", "i64")

ANY = (*NUMBERS, "f64")

I64 = DTYPES["i64"]


class ScatterMode(IntEnum):
    """What SCATTER does with the element that is there."""

    SET = 0
    ADD = 1


class PadMode(IntEnum):
    """What PAD_ND puts outside."""

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
    """The axis of SCATTER, and what it does with the element that is there."""

    axis: int
    mode: ScatterMode = ScatterMode.SET


@dataclass(frozen=True, slots=True)
class IndexParams(Params):
    """The mask of axes that have an index tensor (in this order among the sources), how many
    dimensions the indices have together, and the dimension of the result where these begin."""

    axes: int
    rank: int
    first: int


@dataclass(frozen=True, slots=True)
class IndexPutParams(Params):
    """As of INDEX; `accumulate`: values are added to what is there."""

    axes: int
    rank: int
    first: int
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class SearchSortedParams(Params):
    """`right`: elements equal to a value count as below it."""

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
            require(fits, op, f"the first is larger in dimension {d}", small, big)


@declares("GATHER", params=AxisParams, cost=0.0)
def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """x[..., indices[..., i, ...], ...] along `axis`; sizes of `indices`, which but for the axis
    are at most those of `x`."""
    require_type(x, ANY, "GATHER", "x")
    require_type(indices, INDICES, "GATHER", "indices")
    check_axis("GATHER", axis, x)
    _require_within("GATHER", indices, x, but=axis)
    return make_node("GATHER", x.dtype, indices.ne, x, indices, params=AxisParams(axis))


@declares("SCATTER", params=ScatterParams, cost=0.0)
def scatter(
    x: Tensor, indices: Tensor, source: Tensor, axis: int, mode: ScatterMode | str = "set"
) -> Tensor:
    """A copy of `x` in which element indices[..., i, ...] along `axis` is (or, with mode `add`,
    has added) source[..., i, ...]. `indices`: at most as large as `source`, and but for the axis
    as `x`.

    Of two values for one place the later one stays."""
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
    """The index tensors of x[indices], and where their dimensions come in the result."""

    def __init__(
        self, op: str, x: Tensor, indices: Sequence[Tensor | None], rank: int | None
    ) -> None:
        require_type(x, ANY, op, "x")
        if len(indices) > 4:
            raise fail(op, f"a tensor has 4 dimensions, got {len(indices)} indices", x)
        axes = [d for d, t in enumerate(indices) if t is not None]
        self.given = [t for t in indices if t is not None]
        if not self.given:
            raise fail(op, "at least one index tensor is needed", x)
        for t in self.given:
            require_type(t, INDICES, op, "an index")
        together = broadcast_ne(op, *self.given)
        least = max((d + 1 for d in range(4) if together[d] != 1), default=0)
        self.rank = least if rank is None else rank
        if not least <= self.rank <= 4:
            raise fail(op, f"the indices have {least} dimensions, not {rank}", x, *self.given)
        kept = [d for d in range(max(len(indices), x.n_dims)) if d not in axes]
        adjacent = axes[-1] - axes[0] == len(axes) - 1
        # indices of axes that lie apart come outermost, as in PyTorch and NumPy
        self.first = axes[0] if adjacent else len(kept)
        self.axes = sum(1 << d for d in axes)
        sizes = [x.ne[d] for d in kept]
        sizes[self.first : self.first] = together[: self.rank]
        require(len(sizes) <= 4, op, "the result has more than 4 dimensions", x, *self.given)
        self.ne = (*sizes, *[1] * (4 - len(sizes)))


@declares("INDEX", sources=(2, 5), params=IndexParams, cost=rows_read)
def index(x: Tensor, indices: Sequence[Tensor | None], *, rank: int | None = None) -> Tensor:
    """x[indices]: `indices[d]` picks along dimension d (innermost first), None takes all of it.

    The index tensors broadcast to [i0, i1, ...], which stands in the result for their axes where
    these are neighbours, else comes outermost. `rank`: how many dimensions that has; by default
    trailing ones do not count. Likewise len(indices) is how many dimensions `x` has at least."""
    p = _Picked("INDEX", x, indices, rank)
    params = IndexParams(p.axes, p.rank, p.first)
    return make_node("INDEX", x.dtype, p.ne, x, *p.given, params=params)


@declares("INDEX_PUT", sources=(3, 6), params=IndexPutParams, cost=0.0)
def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    *,
    accumulate: bool = False,
    rank: int | None = None,
) -> Tensor:
    """A copy of `x` in which x[indices] (see `index`) is `values`, which broadcast to it. With
    `accumulate` they are added, also where an index occurs twice; else the last one stays."""
    p = _Picked("INDEX_PUT", x, indices, rank)
    require(x.dtype is values.dtype, "INDEX_PUT", "x and values must have one type", x, values)
    if accumulate:
        require_type(x, NUMBERS, "INDEX_PUT", "x")
    for d in range(4):
        fits = values.ne[d] in (1, p.ne[d])
        require(fits, "INDEX_PUT", f"values do not broadcast to {list(p.ne)}", x, values)
    params = IndexPutParams(p.axes, p.rank, p.first, bool(accumulate))
    return make_node("INDEX_PUT", x.dtype, x.ne, x, values, *p.given, params=params)


@declares("SORT_INDICES", params=SortIndicesParams, cost=sorting)
def sort_indices(
    x: Tensor, axis: int, *, descending: bool = False, k: Size | None = None
) -> Tensor:
    """Where the elements along `axis` are in order, i64; `gather` gives the values. Equals keep
    their order, a NaN counts as the largest. `k`: only the first k along the axis."""
    require_type(x, NUMBERS, "SORT_INDICES", "x")
    check_axis("SORT_INDICES", axis, x)
    kept = x.ne[axis] if k is None else k
    require(is_at_most(kept, x.ne[axis]), "SORT_INDICES", f"there are no {kept} elements", x)
    ne = tuple(kept if d == axis else n for d, n in enumerate(x.ne))
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
    """`x` with left[d] elements before and right[d] after dimension d; below 0 takes away.

    Modes: constant (`value`), reflect (without the edge; at most ne[d] - 1), replicate (the edge),
    circular (at most ne[d])."""
    require_type(x, ANY, "PAD_ND", "x")
    kind = member(PadMode, mode, "PAD_ND")
    before, after = _four(left, "left", x), _four(right, "right", x)
    sizes = []
    for d in range(4):
        n = x.ne[d]
        most = max(before[d], after[d])
        if kind is not PadMode.CONSTANT and most > 0:
            shortest = {PadMode.REFLECT: most + 1, PadMode.REPLICATE: 1, PadMode.CIRCULAR: most}
            require(
                is_at_most(shortest[kind], n),
                "PAD_ND",
                f"{kind.name.lower()} padding of {most} needs {shortest[kind]} elements along {d}",
                x,
            )
        total = n + before[d] + after[d]
        require(is_at_most(0, total), "PAD_ND", f"more is taken away than there is along {d}", x)
        require(
            is_at_most(-min(before[d], 0), n) and is_at_most(-min(after[d], 0), n),
            "PAD_ND",
            f"more is taken away than there is along {d}",
            x,
        )
        sizes.append(total)
    return make_node("PAD_ND", x.dtype, sizes, x, params=PadNdParams(before, after, kind, value))


def _four(values: Sequence[int], what: str, x: Tensor) -> tuple[int, int, int, int]:
    if len(values) > 4:
        raise fail("PAD_ND", f"{what} has a number for each dimension, got {list(values)}", x)
    a, b, c, d = (*(int(v) for v in values), 0, 0, 0, 0)[:4]
    return (a, b, c, d)


@declares("SEARCH_SORTED", params=SearchSortedParams, cost=8.0)
def search_sorted(rows: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """How many elements of a sorted row are below each value (`right`: at most it), i64.

    rows: [n, r1, r2, r3], ascending, a NaN last; values: [m, r1, r2, r3], or [m, ...] where there
    is one row for all; of one type -> [m, ...]. All of a row are below a NaN, as in PyTorch."""
    op = "SEARCH_SORTED"
    require_type(rows, NUMBERS, op, "rows")
    require(rows.dtype is values.dtype, op, "rows and values must have one type", rows, values)
    fits = rows.ne[1:] in (values.ne[1:], (1, 1, 1))
    require(fits, op, "needs one row, or a row for each row of values", rows, values)
    params = SearchSortedParams(bool(right))
    return make_node(op, I64, values.ne, rows, values, params=params)
