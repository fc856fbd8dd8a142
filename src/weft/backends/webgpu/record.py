"""The times of a device: timestamps around its kernels and copies, on the host's clock.

While recording, each kernel has a pass of its own, at whose begin and end the device writes
timestamps. A copy lies between two passes of a kernel that does nothing, because a device need not
write the timestamps of a pass without work.
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.record import Noted, Record, lead

_QUERIES = 256
"""Timestamps of a block, an even number."""
_AGAIN = 1_000_000_000
"""The nanoseconds between comparisons of clocks."""
_TRIES = 8
_APART = 0.1
"""The seconds between two measurements from which the length of a tick follows."""
_NOTHING = "@compute @workgroup_size(1) fn main() {}"


class _Block:
    """Timestamps that are read together."""

    __slots__ = ("queries", "ticks", "used")

    def __init__(self, queries: Any) -> None:
        self.queries = queries
        self.used = 0
        self.ticks: NDArray[np.int64] | None = None
        """The numbers that the device wrote, once they are read."""


class Timed:
    """A kernel or a copy between two timestamps in a row."""

    __slots__ = ("block", "end", "first")

    def __init__(self, block: _Block, first: int) -> None:
        self.block = block
        self.first = first
        self.end = 0
        """The end in nanoseconds of the host, where the host saw it; 0: by the second
        timestamp."""

    def around(self) -> dict[str, Any]:
        """The `timestamp_writes` of a pass that is all of the work."""
        writes: dict[str, Any] = {"query_set": self.block.queries}
        writes["beginning_of_pass_write_index"] = self.first
        writes["end_of_pass_write_index"] = self.first + 1
        return writes

    def before(self) -> dict[str, Any]:
        """The `timestamp_writes` of a pass before the work."""
        return {"query_set": self.block.queries, "end_of_pass_write_index": self.first}

    def behind(self) -> dict[str, Any]:
        """The `timestamp_writes` of a pass behind it."""
        return {"query_set": self.block.queries, "beginning_of_pass_write_index": self.first + 1}


class WebGPURecord(Record):
    """The work enqueued since the last call of `take`; one thread at a time enqueues and takes."""

    def __init__(self, driver: KernelDriver, wgpu: Any, device: Any) -> None:
        """Compares clocks, for which it waits for the device a few times."""
        super().__init__(driver)
        self._device = device
        self._lock = Lock()
        self._free: list[Any] = []
        self._block: _Block | None = None
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        with driver.guarded(f"{driver.name}: starting to record"):
            self._found = device.create_buffer(size=8 * _QUERIES, usage=usage)
            module = device.create_shader_module(code=_NOTHING)
            self._nothing = device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
        self._marker()  # the first one waits for more than the work
        self._period = _told_period(device.queue) or self._measured_period()
        self._compare()

    def timed(self) -> Timed:
        """Timestamps for the next piece of work."""
        block = self._block
        if block is None or block.used == _QUERIES:
            block = self._block = self._new_block()
        block.used += 2
        return Timed(block, block.used - 2)

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
        self.driver.wait()
        if perf_counter_ns() - self._compared > _AGAIN:
            self._compare()
        for one in noted:
            block = one.event.block
            if block.ticks is None:
                block.ticks = self._read(self._device.create_command_encoder(), block)
                self._free.append(block.queries)

    def times(self, event: Timed) -> tuple[int, int]:
        """Begin and end, in nanoseconds of the host."""
        ticks = event.block.ticks
        assert ticks is not None  # `finish` has read them
        begin, end = (self._nanoseconds(ticks[event.first + i]) for i in (0, 1))
        return begin + self._lead, event.end or end + self._lead

    # ---- clocks ----------------------------------------------------------------------------------

    def _new_block(self) -> _Block:
        queries = self._free.pop() if self._free else None
        if queries is None:
            queries = self._device.create_query_set(type="timestamp", count=_QUERIES)
        return _Block(queries)

    def _read(self, encoder: Any, block: _Block) -> NDArray[np.int64]:
        """The timestamps of a block, behind the work of an encoder."""
        with self._lock, self.driver.guarded(f"{self.driver.name}: reading timestamps"):
            encoder.resolve_query_set(block.queries, 0, block.used, self._found, 0)
            self._device.queue.submit([encoder.finish()])
            found = self._device.queue.read_buffer(self._found, 0, 8 * block.used)
        return np.frombuffer(found, np.uint64).astype(np.int64)

    def _marker(self) -> tuple[int, int]:
        """Ticks at the begin and the end of a pass that is started here and done on return."""
        with self.driver.guarded(f"{self.driver.name}: comparing clocks"):
            block = self._new_block()
            block.used = 2
            encoder = self._device.create_command_encoder()
            self.mark(encoder, Timed(block, 0).around())
        begin, end = self._read(encoder, block)
        self._free.append(block.queries)
        return int(begin), int(end)

    def _nanoseconds(self, ticks: int) -> int:
        return round(int(ticks) * self._period)

    def _compare(self) -> None:
        """Measures the lead of the host's clock over the device's."""

        def measure() -> tuple[int, int]:
            begin, end = self._marker()
            return self._nanoseconds(begin), self._nanoseconds(end)

        self._lead = lead(measure)
        self._compared = perf_counter_ns()

    def _measured_period(self) -> float:
        """The nanoseconds of a tick, by the host's clock."""
        host, ticks = self._both_clocks()
        sleep(_APART)
        later, more = self._both_clocks()
        return (later - host) / max(1, more - ticks)

    def _both_clocks(self) -> tuple[int, int]:
        """The host's time in nanoseconds and the device's ticks at one moment, by the quickest of a
        few markers."""
        found = []
        for _ in range(_TRIES):
            before = perf_counter_ns()
            begin, _ = self._marker()
            after = perf_counter_ns()
            found.append((after - before, (before + after) // 2, begin))
        return min(found)[1:]


def _told_period(queue: Any) -> float:
    """The nanoseconds of a tick where the library tells; else 0."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))
    except (ImportError, AttributeError, TypeError):
        return 0.0
