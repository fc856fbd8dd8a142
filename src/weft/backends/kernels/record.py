"""The times of a device's queue, on the host's clock: what all records have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.backends.base import QueueSpan
from weft.backends.kernels.driver import KernelDriver

Kind: TypeAlias = Literal["kernel", "to", "from", "within"]

_TRIES = 8
_AGAIN = 1_000_000_000
"""The nanoseconds between comparisons of clocks, which drift by some microseconds a second."""


class Noted(NamedTuple):
    """A kernel or a copy that was enqueued."""

    kind: Kind
    name: str
    step: int
    nbytes: int
    event: Any
    """The driver's own, from which `Record.times` makes begin and end."""


class Record(ABC):
    """The work enqueued since the last call of `take`.

    A subclass knows the events of its driver."""

    def __init__(self, driver: KernelDriver) -> None:
        self.driver = driver
        self._noted: list[Noted] = []

    def kernel(self, step: int, name: str, event: Any) -> None:
        """Adds a kernel of a step."""
        self._noted.append(Noted("kernel", name, step, 0, event))

    def copy(self, kind: Kind, nbytes: int, event: Any) -> None:
        """Adds a copy."""
        self._noted.append(Noted(kind, "", -1, nbytes, event))

    def take(self) -> Callable[[], list[QueueSpan]]:
        """The spans of the work so far, once the device has finished it."""
        noted, self._noted = self._noted, []

        def spans() -> list[QueueSpan]:
            if not noted:
                return []
            self.finish(noted)
            with self.driver.guarded(f"{self.driver.name}: reading times of the queue"):
                return [self._span(one) for one in noted]

        return spans

    def _span(self, one: Noted) -> QueueSpan:
        begin, end = self.times(one.event)
        return QueueSpan(one.kind, one.name, one.step, one.nbytes, begin, max(begin, end))

    def finish(self, noted: list[Noted]) -> None:
        """Waits until the device has done the work, of which there is some."""
        self.driver.wait()

    @abstractmethod
    def times(self, event: Any) -> tuple[int, int]:
        """Begin and end of a kernel or a copy that is done, in nanoseconds of
        `time.perf_counter_ns`."""


class ClockedRecord(Record):
    """A record of a device with a clock of its own, which is compared with the host's: by `compare`
    before the first work, and later by `finish`."""

    def finish(self, noted: list[Noted]) -> None:
        """Waits until the device has done the work, and compares clocks where that was long
        ago."""
        super().finish(noted)
        if perf_counter_ns() - self._compared > _AGAIN:
            self.compare()

    def compare(self) -> None:
        """Compares clocks, for which it waits for the device a few times."""
        self.lead = lead(self.marked)
        """The nanoseconds by which the host's clock leads the device's."""
        self._compared = perf_counter_ns()

    @abstractmethod
    def marked(self) -> tuple[int, int]:
        """Two times of the device, of a piece of work that is started by this call and done when it
        returns."""


def lead(measure: Callable[[], tuple[int, int]], tries: int = _TRIES) -> int:
    """The nanoseconds by which the host's clock leads a device's.

    `measure` starts a piece of work, waits for it and returns two times of the device: one between
    the start and the other, one before the return. Each call bounds the lead from both sides."""
    low: int | None = None
    high: int | None = None
    for _ in range(tries):
        before = perf_counter_ns()
        first, last = measure()
        after = perf_counter_ns()
        low = before - first if low is None else max(low, before - first)
        high = after - last if high is None else min(high, after - last)
    assert low is not None and high is not None
    return (low + high) // 2
