"""The times of a device: events of a queue that keeps times, converted to the host's clock.

A queue with times is created when recording starts and replaces the plain one until it ends, so
that runs without recording cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple, Protocol

from weft.backends.base import QueueSpan
from weft.backends.opencl.library import guarded

_TRIES = 8
_AGAIN = 1_000_000_000
"""The nanoseconds between comparisons of clocks, which drift by some microseconds a second."""


class _Noted(NamedTuple):
    kind: Literal["kernel", "to", "from", "within"]
    name: str
    step: int
    nbytes: int
    event: Any


class TimedQueue(Protocol):
    """A queue whose events keep their times; the driver's own while it records."""

    name: str

    def marker(self) -> Any:
        """An event that is reached when all work enqueued so far is done."""

    def wait(self, event: Any = None) -> None:
        """Blocks until an event is reached."""


class Record:
    """The work enqueued since the last call of `take`."""

    def __init__(self, queue: TimedQueue) -> None:
        """Compares clocks, for which it waits for the device a few times."""
        self._queue = queue
        self._noted: list[_Noted] = []
        self._offset = 0
        self._compared = 0
        self._compare()

    def kernel(self, step: int, name: str, event: Any) -> None:
        """Adds a kernel of a step."""
        self._noted.append(_Noted("kernel", name, step, 0, event))

    def copy(self, kind: Literal["to", "from", "within"], nbytes: int, event: Any) -> None:
        """Adds a copy."""
        self._noted.append(_Noted(kind, "", -1, nbytes, event))

    def take(self) -> Callable[[], list[QueueSpan]]:
        """The spans of the work so far, once the device has finished it."""
        noted, self._noted = self._noted, []

        def spans() -> list[QueueSpan]:
            if not noted:
                return []
            self._queue.wait(noted[-1].event)  # in order, so all are done
            if perf_counter_ns() - self._compared > _AGAIN:
                self._compare()
            with guarded(f"{self._queue.name}: reading times of the queue"):
                return [self._span(one) for one in noted]

        return spans

    def _span(self, one: _Noted) -> QueueSpan:
        times = one.event.profile
        begin, end = times.start + self._offset, times.end + self._offset
        return QueueSpan(one.kind, one.name, one.step, one.nbytes, begin, max(begin, end))

    def _compare(self) -> None:
        """Measures the lead of the host's clock over the device's.

        A marker is enqueued after one reading of the host's clock and done before another, which
        bounds the difference from both sides."""
        low: int | None = None
        high: int | None = None
        for _ in range(_TRIES):
            before = perf_counter_ns()
            event = self._queue.marker()
            self._queue.wait(event)
            after = perf_counter_ns()
            with guarded(f"{self._queue.name}: reading times of the queue"):
                queued, end = event.profile.queued, event.profile.end
            low = before - queued if low is None else max(low, before - queued)
            high = after - end if high is None else min(high, after - end)
        assert low is not None and high is not None
        self._offset = (low + high) // 2
        self._compared = perf_counter_ns()
