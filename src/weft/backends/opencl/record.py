"""The times of a device: events of a queue that keeps times, converted to the host's clock.

A queue with times is created when recording starts and replaces the plain one until it ends, so
that runs without recording cost nothing more.
"""

from __future__ import annotations

from typing import Any

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.record import ClockedRecord


class OpenCLRecord(ClockedRecord):
    """The work enqueued since the last call of `take`. Its creation compares clocks."""

    def __init__(self, driver: KernelDriver) -> None:
        super().__init__(driver)
        self.compare()

    def times(self, event: Any) -> tuple[int, int]:
        """Begin and end, in nanoseconds of the host."""
        times = event.profile
        return times.start + self.lead, times.end + self.lead

    def marked(self) -> tuple[int, int]:
        """When a marker was enqueued and when it was reached, by the device's clock."""
        event = self.driver.marker()
        self.driver.wait(event)
        with self.driver.guarded(f"{self.driver.name}: reading times of the queue"):
            return event.profile.queued, event.profile.end
