"""The times of a device: timestamps around its kernels and copies, on the host's clock.

While recording, each kernel has a pass of its own, at whose begin and end the device writes
timestamps. A copy lies between two passes of a kernel that does nothing, because a device need not
write the timestamps of a pass without work.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.record import ClockedRecord, Noted
from weft.backends.webgpu.pipelines import Pipelines

_QUERIES = 256
"""Timestamps of a block, an even number."""
_NOTHING = "@compute @workgroup_size(1) fn main() {}"


class _Block:
    """Timestamps that are read together."""

    def __init__(self, queries: Any) -> None:
        self.queries = queries
        self.used = 0
        self.ticks: NDArray[np.int64] | None = None
        """The numbers that the device wrote, once they are read."""


class Timed:
    """A kernel or a copy between two timestamps in a row."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.first = block.used
        block.used += 2
        self.end = 0
        """The end in nanoseconds of the host, where the host saw it; 0: by the second
        timestamp."""

    def writes(self, begin: int | None = None, end: int | None = None) -> dict[str, Any]:
        """The `timestamp_writes` of a pass at whose begin and end timestamps 0 or 1 are written."""
        found = {"query_set": self.block.queries}
        for name, number in (("beginning", begin), ("end", end)):
            if number is not None:
                found[f"{name}_of_pass_write_index"] = self.first + number
        return found


class WebGPURecord(ClockedRecord):
    """The work enqueued since the last call of `take`; one thread at a time enqueues and takes."""

    def __init__(
        self, driver: KernelDriver, wgpu: Any, device: Any, pipelines: Pipelines, period: float
    ) -> None:
        """`period` is the nanoseconds of a tick. Compares clocks, for which it waits for the device
        a few times."""
        super().__init__(driver)
        self._device = device
        self._period = period
        self._lock = Lock()
        self._free: list[Any] = []
        self._block: _Block | None = None
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        with driver.guarded(f"{driver.name}: starting to record"):
            self._found = device.create_buffer(size=8 * _QUERIES, usage=usage)
            self._nothing = pipelines.made(_NOTHING, "auto")
        self.marked()  # the first one waits for more than the work
        self.compare()

    def timed(self) -> Timed:
        """Timestamps for the next piece of work."""
        block = self._block
        if block is None or block.used == _QUERIES:
            block = self._block = self._new_block()
        return Timed(block)

    def mark(self, encoder: Any, writes: dict[str, Any]) -> None:
        """Encodes a pass of a kernel that does nothing."""
        marking = encoder.begin_compute_pass(timestamp_writes=writes)
        marking.set_pipeline(self._nothing)
        marking.dispatch_workgroups(1)
        marking.end()

    def take(self) -> Any:
        """The spans of the work so far, once the device has finished it."""
        self._block = None  # so that a block belongs to one call
        return super().take()

    def finish(self, noted: list[Noted]) -> None:
        """Waits until the device has done the work, and reads its timestamps."""
        super().finish(noted)
        for one in noted:
            block = one.event.block
            if block.ticks is None:
                block.ticks = self._read(self._device.create_command_encoder(), block)

    def times(self, event: Timed) -> tuple[int, int]:
        """Begin and end, in nanoseconds of the host."""
        begin, end = self._nanoseconds(event)
        return begin + self.lead, event.end or end + self.lead

    def marked(self) -> tuple[int, int]:
        """The begin and the end of a pass that does nothing, by the device's clock."""
        with self.driver.guarded(f"{self.driver.name}: comparing clocks"):
            timed = Timed(self._new_block())
            encoder = self._device.create_command_encoder()
            self.mark(encoder, timed.writes(0, 1))
            timed.block.ticks = self._read(encoder, timed.block)
        return self._nanoseconds(timed)

    def _new_block(self) -> _Block:
        queries = self._free.pop() if self._free else None
        if queries is None:
            queries = self._device.create_query_set(type="timestamp", count=_QUERIES)
        return _Block(queries)

    def _read(self, encoder: Any, block: _Block) -> NDArray[np.int64]:
        """The timestamps of a block, behind the work of an encoder; its queries are free then."""
        with self._lock, self.driver.guarded(f"{self.driver.name}: reading timestamps"):
            encoder.resolve_query_set(block.queries, 0, block.used, self._found, 0)
            self._device.queue.submit([encoder.finish()])
            found = self._device.queue.read_buffer(self._found, 0, 8 * block.used)
        self._free.append(block.queries)
        return np.frombuffer(found, np.uint64).astype(np.int64)

    def _nanoseconds(self, timed: Timed) -> tuple[int, int]:
        ticks = timed.block.ticks
        assert ticks is not None  # `finish` has read them
        begin, end = (round(int(ticks[timed.first + i]) * self._period) for i in (0, 1))
        return begin, end
