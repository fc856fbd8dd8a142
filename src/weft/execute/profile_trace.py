"""A timeline in the Chrome trace format, which Perfetto reads, too.

The format is Google's "Trace Event Format": complete events (`ph` X) with microseconds, and
metadata events (`ph` M) that name rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from weft.execute.profile import Line

__all__ = ["Trace"]

_RUNS = 1000
"""Number of the row of whole runs."""
_MOST = 1_000_000
"""Slices that are kept; viewers grow slow far below. Later ones are counted only."""


class Trace:
    """Slices of work by thread, in nanoseconds of one clock."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str, int, int, int, Mapping[str, Any]]] = []
        self.dropped = 0
        """Slices that there was no room for."""

    def slice(
        self, name: str, kind: str, thread: int, start: int, end: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Work on one thread from `start` to `end`."""
        if len(self._events) < _MOST:
            self._events.append((name, kind, thread, start, end, args or {}))
        else:
            self.dropped += 1

    def run(self, name: str, start: int, end: int) -> None:
        """A whole run, in a row of its own."""
        self.slice(name, "run", _RUNS, start, end)

    def steps(
        self, device: str, lines: Sequence[Line], stages: Sequence[tuple[int, int]],
        spans: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """The steps of a split, [step, thread, (begin, end)], and the wait of each thread from the
        end of its part of a stage to the end of the stage."""
        for number, (begin, end) in enumerate(stages):
            done = int(spans[begin:end, :, 1].max(initial=0))
            for thread in range(spans.shape[1]):
                last = 0
                for i in range(begin, end):
                    start, stop = int(spans[i, thread, 0]), int(spans[i, thread, 1])
                    if stop:
                        line = lines[i]
                        args = {"tensor": line.name, "type": line.type, "stage": number}
                        name = f"{line.op} {line.name}".rstrip()
                        self.slice(name, device, thread, start, stop, args)
                        last = max(last, stop)
                if last and done > last:
                    self.slice("wait", "barrier", thread, last, done, {"stage": number})

    def as_json(self) -> dict[str, Any]:
        """The file's content; times count from the first slice."""
        origin = min((start for _, _, _, start, _, _ in self._events), default=0)
        threads = sorted({thread for _, _, thread, _, _, _ in self._events})
        events: list[dict[str, Any]] = [
            {
                "ph": "M", "pid": 1, "tid": thread, "name": "thread_name",
                "args": {"name": "runs" if thread == _RUNS else f"thread {thread}"},
            }
            for thread in threads
        ]  # fmt: skip
        for name, kind, thread, start, end, args in self._events:
            events.append(
                {
                    "ph": "X", "pid": 1, "tid": thread, "name": name, "cat": kind,
                    "ts": (start - origin) / 1000, "dur": (end - start) / 1000, "args": dict(args),
                }
            )  # fmt: skip
        about = {"dropped slices": self.dropped}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
