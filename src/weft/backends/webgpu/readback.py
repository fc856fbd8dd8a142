"""Reads from the device: several ranges with one submission, by a buffer that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT = 4 << 20
"""Bytes of the largest buffer that is kept for later reads."""


class Readback:
    """Copies ranges of buffers to the host. Callers hold the device's lock."""

    def __init__(self, device: Any, usage: int, mode: str = "READ_NOSYNC") -> None:
        """`device` is wgpu's; `usage` lets the host read a buffer."""
        self._device = device
        self._usage = usage
        self._mode = mode
        self._kept: Any = None

    def read(self, encoder: Any, ranges: Sequence[tuple[Any, int, int]]) -> list[NDArray[np.uint8]]:
        """The bytes of ranges (buffer, offset, bytes), whole words, once all work enqueued before
        is done. Their copies are added to `encoder`, which is submitted."""
        total = sum(nbytes for _, _, nbytes in ranges)
        into, at, found = self._buffer(total), 0, []
        for buffer, offset, nbytes in ranges:
            encoder.copy_buffer_to_buffer(buffer, offset, into, at, nbytes)
            at += nbytes
        self._device.queue.submit([encoder.finish()])
        size = -(-total // 8) * 8  # the library maps ranges of 8 bytes
        self._kept = None  # where the device fails, it is not used again
        into.map_async(self._mode, 0, size).sync_wait()
        data = np.frombuffer(into.read_mapped(0, size), np.uint8)  # a copy
        into.unmap()
        if into.size <= _KEPT:
            self._kept = into
        else:
            into.destroy()
        at = 0
        for _, _, nbytes in ranges:
            found.append(data[at : at + nbytes])
            at += nbytes
        return found

    def _buffer(self, nbytes: int) -> Any:
        kept = self._kept
        if kept is not None and kept.size >= nbytes:
            return kept
        size = -(-nbytes // 4096) * 4096
        return self._device.create_buffer(size=size, usage=self._usage)
