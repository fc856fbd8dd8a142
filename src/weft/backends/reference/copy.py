"""Copies, conversions, and all ops that only move elements or blocks.

Where source and destination have one type, units are moved unchanged (NaN payloads and block bytes
stay), else values pass through float32.
"""

from __future__ import annotations

import numpy as np

from weft.backends.reference.kernel import Call, check_index, kernel, repeat_to
from weft.backends.reference.view import ArrayView
from weft.graph.ops import AccParams, ConcatParams, PadParams, PadReflectParams, RollParams


@kernel("DUP", "CPY", "CONT")
def copy(call: Call) -> None:
    """The elements of src0 in order, into a destination of as many elements."""
    src, dst = call.view(0), call.dst
    if src.dtype is dst.dtype:
        dst.units[...] = src.units.reshape(dst.units.shape)
    else:
        dst.write(src.read().reshape(dst.shape))


def _region(call: Call) -> ArrayView:
    """The part of the destination that SET and ACC write; first copies src0 to the destination."""
    p: AccParams = call.params
    copy(call)
    nb = (call.dst.dtype.bytes, p.nb1, p.nb2, p.nb3)
    return call.dst.part(call.view(1).ne, nb, p.offset)


@kernel("SET")
def set_region(call: Call) -> None:
    """src0 with a region replaced by src1."""
    _region(call).write(call.read(1))


@kernel("ACC")
def accumulate_region(call: Call) -> None:
    """src0 with src1 added to a region."""
    b = call.f64(1)
    region = _region(call)
    region.write(region.f64() + b)


@kernel("CONCAT")
def concat(call: Call) -> None:
    """src0, then src1, along one dimension."""
    p: ConcatParams = call.params
    a, b = call.view(0), call.view(1)
    if a.dtype is b.dtype:
        call.dst.write_like(a, np.concatenate([a.units, b.units], axis=3 - p.dim))
    else:
        call.dst.write(np.concatenate([a.read(), b.read()], axis=3 - p.dim))


@kernel("REPEAT")
def repeat(call: Call) -> None:
    """src0 tiled to the destination's shape."""
    a = call.view(0)
    shape = (*call.dst.shape[:3], call.dst.shape[3] // a.dtype.block)
    call.dst.write_like(a, repeat_to(a.units, shape))


@kernel("REPEAT_BACK")
def repeat_back(call: Call) -> None:
    """The sum of the tiles that `repeat` would make; the gradient of REPEAT."""
    a = call.f64(0)
    split = [m for n, tile in zip(a.shape, call.dst.shape, strict=True) for m in (n // tile, tile)]
    call.dst.write(a.reshape(split).sum(axis=(0, 2, 4, 6)))


@kernel("GET_ROWS")
def get_rows(call: Call) -> None:
    """Rows of src0 picked by the indices src1, per batch: dst[i2,i1,i0] = a[i2,i1,ids[i2,i1,i0]].

    Only the picked rows are decoded."""
    a, ids = call.view(0), call.read(1)[0]
    check_index(ids, a.ne[1], "row")
    i2, i1 = np.ogrid[: ids.shape[0], : ids.shape[1]]
    if a.dtype.name == "i2_s":
        call.dst.write(a.read()[i2[..., None], i1[..., None], ids])
    else:
        call.dst.write_like(a, a.units[i2[..., None], i1[..., None], ids])


@kernel("GET_ROWS_BACK")
def get_rows_back(call: Call) -> None:
    """Adds row i of src0 to row ids[i] of a zeroed destination; the gradient of GET_ROWS."""
    rows, ids = call.f64(0)[0, 0], call.read(1).reshape(-1)
    check_index(ids, call.dst.ne[1], "row")
    total = np.zeros(call.dst.shape)
    np.add.at(total[0, 0], ids, rows)
    call.dst.write(total)


@kernel("SET_ROWS")
def set_rows(call: Call) -> None:
    """Writes row i of src0 to row ids[i] of the destination; the other rows stay.

    The indices are repeated over the batches of src0. Of two equal indices the later row wins."""
    src, dst = call.view(0), call.dst
    ids = call.read(1)[0]
    ids = ids[np.arange(src.ne[3])[:, None] % ids.shape[0], np.arange(src.ne[2]) % ids.shape[1]]
    check_index(ids, dst.ne[1], "row")
    i3, i2 = np.ogrid[: src.ne[3], : src.ne[2]]
    rows = src.units if src.dtype is dst.dtype else dst.encode(src.read())
    dst.units[i3[..., None], i2[..., None], ids] = rows


@kernel("PAD")
def pad(call: Call) -> None:
    """src0 with zeros around it; `circular` repeats src0 without end, seen through a larger
    window."""
    p: PadParams = call.params
    a = call.read(0)
    if p.circular:
        for axis, (n, left) in enumerate(zip(call.dst.shape, p.left[::-1], strict=True)):
            a = a.take((np.arange(n) - left) % a.shape[axis], axis)
        call.dst.write(a)
    else:
        call.dst.write(np.pad(a, list(zip(p.left[::-1], p.right[::-1], strict=True))))


@kernel("PAD_REFLECT_1D")
def pad_reflect_1d(call: Call) -> None:
    """Dimension 0 mirrored at both ends, without repeating the end elements."""
    p: PadReflectParams = call.params
    call.dst.write(np.pad(call.read(0), [(0, 0)] * 3 + [(p.p0, p.p1)], mode="reflect"))


@kernel("ROLL")
def roll(call: Call) -> None:
    """Elements moved by `shift`, which re-enter at the other end."""
    p: RollParams = call.params
    a = call.view(0)
    call.dst.write_like(a, np.roll(a.units, p.shift[::-1], axis=(0, 1, 2, 3)))


@kernel("QUANTIZE")
def quantize(call: Call) -> None:
    """Activations in the form that a matmul reads: q8_0, q8_1 or q8_K blocks, or f16, bf16."""
    call.dst.write_activation(call.read(0))
