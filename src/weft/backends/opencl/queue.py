"""The queue of the device as schedulers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.backends.base import Event
from weft.backends.opencl.driver import Driver
from weft.backends.opencl.library import library

__all__ = ["OpenCLEvent", "OpenCLQueue"]


class OpenCLEvent:
    """A point in the queue."""

    __slots__ = ("_done", "_driver", "_event")

    def __init__(self, driver: Driver, event: Any) -> None:
        self._driver = driver
        self._event = event
        self._done = False

    def is_done(self) -> bool:
        """Whether it is reached, or was given up by a failing device."""
        if not self._done:
            complete = library().command_execution_status.COMPLETE
            self._done = self._event.command_execution_status <= complete
        return self._done

    def wait(self) -> None:
        """Blocks until it is reached; raises DeviceError if the device failed."""
        self._driver.wait(self._event)
        self._done = True


class OpenCLQueue:
    """The one queue of a device: work is enqueued by the calling thread, done in order."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues now."""
        work()
        return OpenCLEvent(self._driver, self._driver.marker())

    def wait_for(self, event: Event) -> None:
        """Events of this device are waited for by the order of its queue; for others the calling
        thread waits, while what was enqueued goes on."""
        if not isinstance(event, OpenCLEvent) or event._driver is not self._driver:
            event.wait()

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed."""
        self._driver.wait()
        self._driver.check()

    def close(self) -> None:
        """Waits; the queue belongs to the device and stays."""
        self._driver.wait()
