"""The launches of an op's kernels, as data: nothing here needs a device or a driver."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum, IntEnum
from itertools import product
from math import prod
from typing import Any, NamedTuple

from weft.dtype import DType
from weft.program import Layout
from weft.records import dataclass

Sizes = tuple[int, ...]


class View:
    """A tensor at run time: sizes, byte strides, and its place in a device buffer."""

    __slots__ = ("at", "buffer", "dtype", "layout", "name", "nb", "ne", "packed")

    def __init__(
        self,
        dtype: DType,
        ne: Sizes,
        nb: Sizes,
        at: int,
        buffer: Any,
        name: str = "",
        layout: Layout = "rows",
    ) -> None:
        self.dtype = dtype
        self.ne = ne
        self.nb = nb
        self.at = at
        self.buffer = buffer
        self.name = name
        self.layout = layout
        """`rows`, or `planes` of a whole weight."""
        self.packed = struct.pack("<q4q4iii", at, *nb, *ne, dtype.id, 0)
        """The bytes of the kernels' `tensor_t`."""

    @property
    def n_elements(self) -> int:
        """Product of the sizes."""
        return prod(self.ne)

    @property
    def extent(self) -> tuple[int, int]:
        """The places in the buffer where its bytes begin and end."""
        if 0 in self.ne:
            return self.at, self.at
        counts = (self.ne[0] // self.dtype.block, *self.ne[1:])
        steps = [nb * (n - 1) for n, nb in zip(counts, self.nb, strict=True)]
        begin = self.at + sum(step for step in steps if step < 0)
        return begin, self.at + sum(step for step in steps if step > 0) + self.dtype.bytes

    @property
    def nbytes(self) -> int:
        """The bytes from the first to the last, with the gaps between rows."""
        begin, end = self.extent
        return end - begin

    def part(self, ne: Sizes, nb: Sizes, offset: int) -> View:
        """Another view of the same buffer, `offset` bytes further on."""
        return View(self.dtype, ne, nb, self.at + offset, self.buffer, self.name)

    def some(self, axis: int, first: int, n: int) -> View:
        """`n` places along an axis above 0, or those that there are from `first` on."""
        ne = (*self.ne[:axis], min(n, self.ne[axis] - first), *self.ne[axis + 1 :])
        return self.part(ne, self.nb, first * self.nb[axis])

    def n_within(self, axis: int, nbytes: int) -> int:
        """The places along an axis that have at most `nbytes` together, at least 1."""
        if self.nbytes <= nbytes:
            return self.ne[axis]
        return max(1, (nbytes - self.some(axis, 0, 1).nbytes) // self.nb[axis] + 1)

    def parts(self, axis: int, nbytes: int) -> list[tuple[int, View]]:
        """The tensor in parts along its last axis that has more than one place, each of at most
        `nbytes` and with its first place; the tensor itself where `nbytes` is 0, where it fits,
        where it has planes, or several places along a later axis."""
        is_whole = not nbytes or self.nbytes <= nbytes or self.layout != "rows"
        if is_whole or prod(self.ne[axis + 1 :]) > 1:
            return [(0, self)]
        n = self.n_within(axis, nbytes)
        return [(first, self.some(axis, first, n)) for first in range(0, self.ne[axis], n)]


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of groups on a device, chosen once from its properties."""

    element_items: int
    """The number of items of a group of an elementwise kernel."""
    row_items: int
    """Items that share a row in norms, softmax and sums: a power of two."""
    lanes: int
    """Items that share a row of weights: a power of two."""
    rows: int
    """Rows of weights for each group."""
    columns: int
    """Columns of activations that are multiplied with decoded weights at once."""
    tile: int
    """Rows and columns of a tile in local memory; 0: products are never tiled."""
    cells: int
    """Cells of a cache that attention reads at once."""
    attention_items: int
    wide: bool
    """Registers are vectors, in which sums are kept."""
    local_bytes: int
    max_group: int
    few: int = 8
    """The most columns that CUDA's lanes multiply, where tensor cores sum in another order. 0: all
    go one way, so that a result never depends on how many there are."""
    part_cells: int = 0
    """Cells of a part of a cache in attention of few queries, whose parts are computed side by
    side. 0: a group computes each query alone, as suits processors."""
    binding: int = 0
    """The most bytes of a tensor that a kernel may have, where buffers may have more; 0: all."""
    subgroups: bool = False
    """Items of a subgroup exchange numbers without local memory, where the device can."""
    max_groups: int = 65_535
    """Groups along the second and third dimension that a device takes at once. OpenCL has no query
    for it; this is the limit of the most limited hardware."""


class Slot(Enum):
    """Arguments that the executable fills in."""

    FAULT = "fault"
    """The buffer that records an index out of range."""
    STEP = "step"
    """The number of the step, to name it in an error."""


class Local(NamedTuple):
    """Local memory of a group."""

    nbytes: int


class ScratchSlot(IntEnum):
    """Scratch memory by what lies in it; memory of different slots does not overlap."""

    NODE = 0
    """Launches of a node hand each other something in it."""
    NODE_TOO = 1
    """More memory of that kind."""
    EXPERTS = 2
    """It has the columns of a product in the order of their experts."""
    Q8_0 = 3
    """It has activations as bytes of this form; nothing else is there, so that later steps find
    them."""
    Q8_1 = 4
    Q8_K = 5


class Scratch(NamedTuple):
    """Memory in which kernels of one step leave something to the next of its kernels."""

    slot: ScratchSlot
    nbytes: int


class Table(NamedTuple):
    """Constants that are sent to the device once."""

    data: bytes


class Launch(NamedTuple):
    """One kernel over a grid."""

    file: str
    defines: tuple[str, ...]
    kernel: str
    args: tuple[Any, ...]
    """Views, `Local`, `Scratch`, `Slot`, `Table`, or the bytes of a plain argument."""
    grid: Sizes
    """Groups along each dimension."""
    group: Sizes
    """Items of a group along each dimension."""
    makes: View | None = None
    """A tensor that it leaves in another form in scratch memory; there is one such form."""
    is_extra: bool = False
    """It does nothing else, so that it is left out where that form is there already."""


def pieces(launch: Launch, most: int) -> Iterator[tuple[Sizes, Sizes | None]]:
    """The grid in parts of at most `most` groups along all dimensions except the first.

    A part is (groups, items before the part; None for a grid that is whole)."""
    grid, group = launch.grid, launch.group
    if all(n <= most for n in grid[1:]):
        yield grid, None
        return
    cuts = [range(1), *(range(0, n, most) for n in grid[1:])]
    for corner in product(*cuts):
        size = (grid[0], *(min(most, n - at) for n, at in zip(grid[1:], corner[1:], strict=True)))
        yield size, tuple(at * m for at, m in zip(corner, group, strict=True))


class Call(NamedTuple):
    """A step whose sizes are all numbers."""

    op: str
    dst: View
    src: tuple[View | None, ...]
    params: Any
    limits: Limits
    feeds: DType | None = None
    """The type of the weights of the next product that reads the result, in the form that
    `Launch.makes` is about; None where there is none."""

    def view(self, i: int) -> View:
        """Source `i`, which must be present."""
        source = self.src[i]
        assert source is not None  # the op table says so
        return source

    def optional(self, i: int) -> View | None:
        """Source `i`, or None when it is absent."""
        return self.src[i] if i < len(self.src) else None

    def all_f32(self, *views: View | None) -> tuple[str, ...]:
        """The define with which a kernel skips type checks, where all views are f32; else none."""
        return ("ALL_F32",) if all(v is None or v.dtype.name == "f32" for v in views) else ()

    @property
    def over_items(self) -> tuple[str, ...]:
        """The define of kernels that join numbers of many items, on a device with subgroups."""
        return ("SUBGROUPS",) if self.limits.subgroups else ()

    def elements(self, view: View, of_row: int | None = None) -> tuple[Sizes, Sizes]:
        """Grid and group with an item for each element of `view` (or `of_row` items a row)."""
        n, items = of_row if of_row is not None else view.ne[0], self.limits.element_items
        return (-(-n // items), view.ne[1], view.ne[2] * view.ne[3]), (items, 1, 1)

    def in_line(self, n: int) -> tuple[Sizes, Sizes]:
        """Grid and group of `n` items in a line."""
        items = self.limits.element_items
        return (-(-n // items),), (items,)

    def by_rows(self, view: View) -> tuple[Sizes, Sizes]:
        """Grid and group with a group for each row of `view`."""
        return (1, view.ne[1], view.ne[2] * view.ne[3]), (self.limits.row_items, 1, 1)

    @property
    def row_sums(self) -> Local:
        """A float, or an int, for each item of a row's group."""
        return Local(4 * self.limits.row_items)


def i32(*values: int) -> bytes:
    """An `int`, or a vector of them."""
    return struct.pack(f"<{len(values)}i", *values)


def i64(value: int) -> bytes:
    """A `long`."""
    return struct.pack("<q", value)


def f32(*values: float) -> bytes:
    """A `float`, or a vector of them."""
    return struct.pack(f"<{len(values)}f", *values)
