"""The times of a device: events of a queue that keeps times, converted to the host's clock.

A queue with times is created when recording starts and replaces the plain one until it ends, so
that runs without recording cost nothing more.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.record import Noted, Record, lead

_AGAIN = 1_000_000_000
"""The nanoseconds between comparisons of clocks, which drift by some microseconds a second."""


class OpenCLRecord(Record):
    """The work enqueued since the last call of `take`."""

    def __init__(self, driver: KernelDriver) -> None:
        """Compares clocks, for which it waits for the device a few times."""
        super().__init__(driver)
        self._compare()

    def finish(self, noted: list[Noted]) -> None:
        """Waits until the device has done the work, and compares clocks where that was long
        ago."""
        self.driver.wait(noted[-1].event)  # in order, so all are done
        if perf_counter_ns() - self._compared > _AGAIN:
            self._compare()

    def times(self, event: Any) -> tuple[int, int]:
        """Begin and end, in nanoseconds of the host."""
        times = event.profile
        return times.start + self._lead, times.end + self._lead

    def _compare(self) -> None:
        self._lead = lead(self._times_of_a_marker)
        self._compared = perf_counter_ns()

    def _times_of_a_marker(self) -> tuple[int, int]:
        event = self.driver.marker()
        self.driver.wait(event)
        with self.driver.guarded(f"{self.driver.name}: reading times of the queue"):
            return event.profile.queued, event.profile.end
