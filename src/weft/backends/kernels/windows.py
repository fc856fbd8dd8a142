"""Tensors and buffers that are larger than what a kernel may have of a buffer at once
(`Limits.binding`): products in pieces, and windows of buffers.

A product is cut along the rows of its weights and along its columns, so that each piece is a
product whose tensors a kernel may have. Tables of rows by index, and weights of experts, are in
parts (`View.parts`), of which each launch computes what its part has. All else is refused
(`needs.largest`), and stays on the next device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from weft.backends.kernels.launch import Call, Launch, View
from weft.backends.kernels.ops.table import find_family
from weft.errors import DeviceError

ALIGNMENT = 256
"""Windows begin at multiples of this many bytes, as every device allows."""


class Window(NamedTuple):
    """A part of a buffer, as a kernel has it."""

    buffer: Any
    offset: int
    nbytes: int


def windowed(view: View, size: int, most: int) -> View:
    """The view in a window of at most `most` bytes of its buffer of `size` bytes, both multiples of
    16; the view itself where that is all of the buffer.

    Raises DeviceError for a view that no window holds."""
    if size <= most:
        return view
    begin, end = view.extent
    step = max(most // 2 // ALIGNMENT, 1) * ALIGNMENT  # neighbours share windows
    start = begin // step * step
    if end - start > most:
        start = begin // ALIGNMENT * ALIGNMENT
    nbytes = min(most, size - start)
    if end - start > nbytes:
        raise DeviceError(
            f"tensor {view.name or '?'} has {end - begin} bytes, and kernels have at most "
            f"{most - ALIGNMENT} of a buffer at once; place it on another device"
        )
    window = Window(view.buffer, start, nbytes)
    return View(view.dtype, view.ne, view.nb, view.at - start, window, view.name, view.layout)


def launches_of(
    call: Call, own: Callable[[str], Callable[[Call], list[Launch] | None] | None]
) -> list[Launch]:
    """The launches of a call, in pieces where it needs them. `own` finds faster kernels of the
    device by op.

    Raises DeviceError where there is no kernel."""
    family = find_family(call.op)
    if family is None:
        raise DeviceError(f"no kernel for {call.op}; give it another device")
    if 0 in call.dst.ne:
        return []
    special, found = own(call.op), []
    for piece in cut(call):
        launches = None if special is None else special(piece)
        found += family.launches(piece) if launches is None else launches
    return found


def cut(call: Call) -> Iterator[Call]:
    """A product of matrices in pieces whose tensors a kernel may have; other calls as they are."""
    most = call.limits.binding
    if call.op != "MUL_MAT" or not most:
        yield call
        return
    w, x, d, bias = call.view(0), call.view(1), call.dst, call.optional(2)
    is_plain = w.layout == "rows" and all(v.ne[2] * v.ne[3] == 1 for v in (w, x, d))
    if not is_plain or all(v.nbytes <= most for v in (w, x, d)):
        yield call
        return
    rows, columns = w.n_within(1, most), min(x.n_within(1, most), d.n_within(1, most))
    n_parts = -(-d.ne[1] // columns)
    columns = -(-d.ne[1] // n_parts)  # parts of about the same size
    for c in range(0, d.ne[1], columns):
        x_part, d_part = x.some(1, c, columns), d.some(1, c, columns)
        for r in range(0, d.ne[0], rows):
            n = min(rows, d.ne[0] - r)
            result = d_part.part((n, *d_part.ne[1:]), d.nb, r * d.nb[0])
            more = call.src[2:]
            if bias is not None:
                more = (bias.part((n, *bias.ne[1:]), bias.nb, r * bias.nb[0]), *more[1:])
            yield call._replace(dst=result, src=(w.some(1, r, rows), x_part, *more))
