"""Orders along an axis: by counting, or by sorted runs in local memory that are merged."""

from __future__ import annotations

from math import prod

from weft.backends.kernels.launch import Call, Launch, Local, Scratch, ScratchSlot, i32
from weft.backends.kernels.ops.table import Numbers, family

_FILE = "sort.cl"
COUNTED = 32
"""Elements of a line up to which each is compared with all."""
_LONGEST = 2048
"""The most elements of a run."""
_BYTES = 12
"""Local memory of an element: its key and its place."""


def _run(call: Call, n: int) -> int:
    """Elements of a run: a power of two that holds the line, where local memory does."""
    size = 1 << (n - 1).bit_length()
    while size > 2 and size > min(_LONGEST, call.limits.local_bytes // _BYTES):
        size //= 2
    return size


@family("SORT_INDICES", refuse=Numbers(0, index=True))
def _sort_indices(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    n, order = s.ne[p.axis], (i32(p.axis), i32(p.descending))
    if n <= COUNTED:
        return [Launch(_FILE, (), "by_counting", (s, d, *order), *call.elements(s))]
    lines, size = prod(s.ne) // n, _run(call, n)
    nbytes = 4 * n * lines if size < n else 16
    scratch = Scratch(ScratchSlot.NODE, nbytes), Scratch(ScratchSlot.NODE_TOO, nbytes)
    items = min(size // 2, call.limits.element_items)
    args = (
        s, scratch[0], d, *order, i32(size), i32(size >= n),
        Local(8 * size), Local(4 * size),
    )  # fmt: skip
    launches = [Launch(_FILE, (), "runs", args, (-(-n // size), lines), (items, 1))]
    items = call.limits.element_items
    while size < n:
        is_last = 2 * size >= n
        merged = (s, *scratch, d, *order, i32(size), i32(is_last))
        launches.append(Launch(_FILE, (), "merge", merged, (-(-n // items), lines), (items, 1)))
        scratch, size = scratch[::-1], 2 * size
    return launches
