"""The order of a worker's commands as schedulers use it."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.base import Event
from weft.backends.remote.machine import Machine


class RemoteEvent:
    """A point in the commands of a worker."""

    __slots__ = ("_mark", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._mark = machine.mark()

    def is_done(self) -> bool:
        """Whether the point is reached, or a failing worker has given it up."""
        return self._mark.is_over

    def wait(self) -> None:
        """Blocks until it is reached; raises DeviceError if the worker failed."""
        self._mark.wait()


class RemoteQueue:
    """The calling thread enqueues commands, which the worker does in order."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues the work at once."""
        work()
        return RemoteEvent(self.machine)

    def orders(self, event: Event) -> bool:
        """Whether work of this queue comes after the event without waiting for it here: what both
        touch is copied from worker to worker, in the order of the commands of both."""
        if not isinstance(event, RemoteEvent):
            return False
        return event.machine is self.machine or self.machine.reaches(event.machine)

    def wait_for(self, event: Event) -> None:
        """Waits for events of other devices in the calling thread, while the worker goes on."""
        if not self.orders(event):
            event.wait()

    def synchronize(self) -> None:
        """Blocks until all commands are done; raises DeviceError if one failed."""
        self.machine.synchronize()

    def close(self) -> None:
        """Does nothing: the commands belong to the machine."""
