"""`Run`: a graph that the devices are computing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from weft.backends.base import Event

__all__ = ["Fault", "Run"]


class Fault:
    """The first failure of any work since the last reset; later work is skipped."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    def set(self, error: BaseException) -> None:
        """Keeps the first error."""
        with self._lock:
            if self.error is None:
                self.error = error

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` for a queue: it raises nothing, and does nothing after a failure."""

        def run() -> None:
            if self.error is None:
                try:
                    work()
                except BaseException as error:
                    self.set(error)

        return run

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self.error is not None:
            raise self.error


class Run:
    """The result of `compute_async`: wait for it, then read the outputs that it computed."""

    def __init__(self, fault: Fault, values: Mapping[str, int]) -> None:
        self._fault = fault
        self.values = values
        """The values of the symbols."""
        self._outputs: dict[str, NDArray[Any]] = {}
        self._later: dict[str, Callable[[], NDArray[Any]]] = {}
        self._events: list[Event] = []
        self.stopped = False
        """A callback stopped the run early."""

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return all(event.is_done() for event in self._events)

    def wait(self) -> bool:
        """Blocks until the run is over; False when a callback stopped it.

        Raises DeviceError, as `Scheduler.compute` does, when a device failed in this run or in one
        before it."""
        try:
            for event in self._events:
                event.wait()
        except BaseException as error:
            self._fault.set(error)
            if not isinstance(error, Exception):
                raise
        self._fault.check()
        return not self.stopped

    @property
    def outputs(self) -> Mapping[str, NDArray[Any]]:
        """The graph's outputs by name, in PyTorch order of sizes; waits for the run."""
        self.wait()
        while self._later:
            name, array = self._later.popitem()
            self._outputs[name] = array()
        return self._outputs

    def add(self, event: Event) -> None:
        """Makes the run last until this event."""
        self._events.append(event)

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Stores an output."""
        self._outputs[name] = array

    def put_later(self, name: str, array: Callable[[], NDArray[Any]]) -> None:
        """Stores a function that waits for an output."""
        self._later[name] = array
