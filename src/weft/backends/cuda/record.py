"""The times of a CUDA device: pairs of events around kernels and copies, on the host's clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Literal

from weft.backends.base import QueueSpan
from weft.backends.cuda.calls import Calls
from weft.backends.kernels import KernelDriver

Kind = Literal["kernel", "to", "from", "within"]


class Record:
    """The work enqueued since the last call of `take`.

    Events know times between each other only. So an event that the host waits for, at a time that
    it reads, is the origin of all."""

    def __init__(self, driver: KernelDriver, calls: Calls) -> None:
        self._driver = driver
        self._calls = calls
        self._noted: list[tuple[Kind, str, int, int, Any]] = []
        with driver.guarded(f"{driver.name}: starting to record"):
            self._origin = calls.event(timed=True)
            calls.wait(self._origin)
        self._at = perf_counter_ns()

    def kernel(self, step: int, name: str, event: Any) -> None:
        """Adds a kernel of a step; `event` is its begin and its end."""
        self._noted.append(("kernel", name, step, 0, event))

    def copy(self, kind: Kind, nbytes: int, event: Any) -> None:
        """Adds a copy."""
        self._noted.append((kind, "", -1, nbytes, event))

    def take(self) -> Callable[[], list[QueueSpan]]:
        """The spans of the work so far, once the device has finished it."""
        noted, self._noted = self._noted, []
        driver, calls = self._driver, self._calls

        def at(event: Any) -> int:
            return self._at + int(calls.seconds(self._origin, event) * 1e9)

        def spans() -> list[QueueSpan]:
            if not noted:
                return []
            driver.wait()
            with driver.guarded(f"{driver.name}: reading times of the stream"):
                return [
                    QueueSpan(kind, name, step, nbytes, at(begin), at(end))
                    for kind, name, step, nbytes, (begin, end) in noted
                ]

        return spans
