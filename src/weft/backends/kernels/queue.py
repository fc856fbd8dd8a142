"""The queue of the device as schedulers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.base import Event
from weft.backends.kernels.driver import KernelDriver

__all__ = ["KernelEvent", "KernelQueue"]


class KernelEvent:
    """A point in the queue."""

    __slots__ = ("_done", "_driver", "_event")

    def __init__(self, driver: KernelDriver, event: Any) -> None:
        self._driver = driver
        self._event = event
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
    """The one queue of a device: the calling thread enqueues work, which is done in order."""

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues the work at once."""
        work()
        return KernelEvent(self._driver, self._driver.marker())

    def wait_for(self, event: Event) -> None:
        """Waits for events of other devices in the calling thread, while enqueued work continues.

        Events of this device need no wait, because its queue is in order."""
        if not isinstance(event, KernelEvent) or event._driver is not self._driver:
            event.wait()

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed."""
        self._driver.wait()
        self._driver.check()

    def close(self) -> None:
        """Waits for all work; the queue belongs to the device and stays."""
        self._driver.wait()
