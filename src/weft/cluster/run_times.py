"""The times at which a worker did each step of the runs of a client that records them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Executable, RecordsSpans
from weft.errors import AbortedError
from weft.execute.profile_trace import overlapping

_MOST = 4 << 20
"""Maximum number of numbers kept; later runs have no times until a client has fetched some."""


class RunTimes:
    """Times of `time.perf_counter_ns`, by the number of the run."""

    def __init__(self) -> None:
        self._runs = 0
        self._kept: list[NDArray[np.int64]] = []
        self._numbers = 0

    def run(self, executable: Executable, values: Mapping[str, int], n_steps: int) -> None:
        """Runs a split and keeps the times of its steps."""
        self._runs += 1
        if not isinstance(executable, RecordsSpans):
            begin = time.perf_counter_ns()
            executable.run(values)
            self._keep(_shared(n_steps, begin, time.perf_counter_ns()))
            return
        executable.record_spans(True)
        try:
            executable.run(values)
        except AbortedError:
            self._keep(_one_after_another(executable.spans()))
            raise
        else:
            self._keep(_one_after_another(executable.spans()))
        finally:
            executable.record_spans(False)

    def skip(self) -> None:
        """Counts a run that does not begin."""
        self._runs += 1

    def _keep(self, times: NDArray[np.int64]) -> None:
        numbers = 2 + times.size
        if self._numbers + numbers <= _MOST:
            self._numbers += numbers
            head = np.array([self._runs, len(times)], np.int64)
            self._kept.append(np.concatenate([head, times.reshape(-1)]))

    def taken(self) -> NDArray[np.uint8]:
        """For each run kept so far, as bytes of int64: its number, the number of steps, and begin
        and end of each step. The runs are forgotten."""
        kept, self._kept, self._numbers = self._kept, [], 0
        whole = np.concatenate(kept) if kept else np.zeros(0, np.int64)
        return whole.view(np.uint8)


def _shared(n_steps: int, begin: int, end: int) -> NDArray[np.int64]:
    """One stretch of time in as many equal parts as there are steps."""
    bounds = np.linspace(begin, end, n_steps + 1).astype(np.int64)
    return np.stack([bounds[:-1], bounds[1:]], axis=1)


def _one_after_another(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Begin and end of each step; steps that ran side by side share their time by their work."""
    times = np.zeros((len(spans), 2), np.int64)
    busy = spans[:, :, 2].sum(axis=1)
    for group in overlapping(spans):
        steps = list(group.steps)
        begin = min(int(s) for s in spans[steps, :, 0].reshape(-1) if s)
        total = max(int(busy[steps].sum()), 1)
        at = float(begin)
        for i in steps:
            end = at + (group.end - begin) * (int(busy[i]) / total)
            times[i] = int(at), max(int(end), int(at) + 1)
            at = end
    return times
