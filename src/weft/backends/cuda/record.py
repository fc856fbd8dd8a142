"""The times of a CUDA device: pairs of events around kernels and copies, on the host's clock."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from weft.backends.cuda.calls import Calls
from weft.backends.kernels import KernelDriver
from weft.backends.kernels.record import Record


class CudaRecord(Record):
    """The work enqueued since the last call of `take`.

    Events know times between each other only. So an event that the host waits for, at a time that
    it reads, is the origin of all."""

    def __init__(self, driver: KernelDriver, calls: Calls) -> None:
        super().__init__(driver)
        self._calls = calls
        with driver.guarded(f"{driver.name}: starting to record"):
            self._origin = calls.event(timed=True)
            calls.wait(self._origin)
        self._at = perf_counter_ns()

    def times(self, event: Any) -> tuple[int, int]:
        """Begin and end, in nanoseconds of the host; `event` is a pair of events."""
        begin, end = (self._at + int(self._calls.seconds(self._origin, e) * 1e9) for e in event)
        return begin, end
