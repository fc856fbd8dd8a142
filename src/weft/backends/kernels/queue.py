"""The queue of the device as schedulers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.base import Event
from weft.backends.kernels.driver import KernelDriver


class KernelEvent:
    """A point in a queue."""

    __slots__ = ("_done", "_driver", "_event", "_lane")

    def __init__(self, driver: KernelDriver, event: Any, lane: int) -> None:
        self._driver = driver
        self._event = event
        self._lane = lane
        self._done = False

    def is_done(self) -> bool:
        """Whether the point is reached, or a failing device has given it up."""
        if not self._done:
            self._done = self._driver.is_done(self._event)
        return self._done

    def wait(self) -> None:
        """Blocks until it is reached; raises DeviceError if the device failed."""
        self._driver.wait(self._event)
        self._done = True


class KernelQueue:
    """A queue of a device: the calling thread enqueues work, which is done in order."""

    def __init__(self, driver: KernelDriver, lane: int = 0) -> None:
        self._driver = driver
        self._lane = lane
        self.copies = KernelQueue(driver, 1) if driver.has_copies and lane == 0 else None
        """The queue of copies, where the device has one."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues the work at once."""
        driver, lane = self._driver, self._lane
        if not driver.has_copies:
            work()
            return KernelEvent(driver, driver.marker(), lane)
        with driver.in_queue(lane):
            work()
            return KernelEvent(driver, driver.marker(), lane)

    def wait_for(self, event: Event) -> None:
        """Waits for events of devices that it does not reach in the calling thread, while enqueued
        work continues; the others are left to the devices.

        Events of this queue need no wait, because it is in order."""
        if not self.orders(event):
            event.wait()
        elif isinstance(event, KernelEvent) and not event._done:
            if (event._driver, event._lane) != (self._driver, self._lane):
                self._driver.order(event._event, self._lane)

    def orders(self, event: Event) -> bool:
        """Whether `wait_for` does not block."""
        return isinstance(event, KernelEvent) and (
            event._driver is self._driver or self._driver.reaches(event._driver)
        )

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed."""
        self._driver.wait()
        self._driver.check()

    def close(self) -> None:
        """Waits for all work; the queue belongs to the device and stays."""
        self._driver.wait()
