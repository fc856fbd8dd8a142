"""Bytes within words: a kernel puts them into their word, beside what is there.

The library copies whole words from the host. Reading a word back to fill it up would let the host
wait for the device, e.g. for each mask of f16 with an odd number of elements."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.windows import ALIGNMENT, Window

CODE = """
@group(0) @binding(0) var<storage, read> arguments: array<u32>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(1) fn main() {
  let i = arguments[0];
  words[i] = (words[i] & ~arguments[1]) | arguments[2];
}"""
"""The kernel."""


class Edge(NamedTuple):
    """Some bytes of a word, the bits of `mask`."""

    offset: int
    mask: int
    value: int

    def window(self, buffer: Any) -> Window:
        """The part of a buffer that the kernel has."""
        at = self.offset // ALIGNMENT * ALIGNMENT
        return Window(buffer, at, min(ALIGNMENT, buffer.size - at))

    @property
    def words(self) -> bytes:
        """The arguments of the kernel."""
        return struct.pack("<3I", self.offset % ALIGNMENT // 4, self.mask, self.value)


def split(offset: int, data: NDArray[np.uint8]) -> tuple[list[Edge], int, NDArray[np.uint8]]:
    """Bytes for an offset as those in words of which they are a part, and the whole words between
    with their offset."""
    start, end = words(offset, data.nbytes)
    if end - start == data.nbytes:
        return [], offset, np.ascontiguousarray(data)
    whole, mask = np.zeros((2, end - start), np.uint8)
    whole[offset - start : offset - start + data.nbytes] = data
    mask[offset - start : offset - start + data.nbytes] = 255
    masks, values = mask.view("<u4"), whole.view("<u4")
    partial = np.flatnonzero(masks != 0xFFFFFFFF)  # of the first word and the last one at most
    edges = [Edge(start + 4 * int(i), int(masks[i]), int(values[i])) for i in partial]
    between = np.flatnonzero(masks == 0xFFFFFFFF)
    first = int(between[0]) if len(between) else 0
    return edges, start + 4 * first, whole[4 * first : 4 * (first + len(between))]


def words(offset: int, nbytes: int) -> tuple[int, int]:
    """The begin and the end of the whole words that hold some bytes."""
    return offset // 4 * 4, -(-(offset + nbytes) // 4) * 4
