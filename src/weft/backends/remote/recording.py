"""Times of runs on a worker, brought to the clock of this process.

While recording, the worker keeps when it did each step of each run. This side counts the runs that
it enqueues, asks for their times at the end, and shifts them by the difference of the two clocks,
which the middle of the fastest ping's round trip tells: half of that round trip is the most by
which it can be wrong.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.errors import DeviceError
from weft.links import Link

_PINGS = 8
_PING_WAIT = 0.25
"""Seconds to wait for all of these pings."""


class Worker(Protocol):
    """The part of a `Machine` that a recording needs."""

    name: str

    @property
    def link(self) -> Link: ...
    @property
    def is_lost(self) -> bool: ...
    def post(self, command: list[Any]) -> None: ...
    def call(self, command: list[Any]) -> tuple[Any, list[Any]]: ...
    def synchronize(self) -> None: ...


class Recording:
    """The recording on one worker, for all of its devices."""

    def __init__(self, machine: Worker) -> None:
        """Begins it. Raises DeviceError."""
        self._machine = machine
        self.users = 1
        self._runs = 0
        self._spans: dict[int, NDArray[np.int64]] = {}
        self.offset, self.error = _clock(machine)
        machine.post(["record", 1])

    def enqueued(self) -> int:
        """The number of a run that is enqueued now."""
        self._runs += 1
        return self._runs

    def stop(self) -> None:
        """Ends it."""
        if not self._machine.is_lost:
            self._machine.post(["record", 0])

    def spans(self, run: int) -> NDArray[np.int64]:
        """When each step of a run began and ended [step, 2], in nanoseconds of this process's
        clock; 0 for a step that did not run. Waits until the run is done. Raises DeviceError."""
        if run not in self._spans:
            self._fetch()
        return self._spans.pop(run, np.zeros((0, 2), np.int64))

    def _fetch(self) -> None:
        _, arrays = self._machine.call(["spans"])
        if len(arrays) != 1 or memoryview(arrays[0]).nbytes % 8:
            raise DeviceError(f"{self._machine.name} did not answer with times")
        rows = np.frombuffer(arrays[0], np.int64)
        at = 0
        while at + 2 <= len(rows):
            run, n = int(rows[at]), int(rows[at + 1])
            if n < 0 or at + 2 + 2 * n > len(rows):
                raise DeviceError(f"{self._machine.name} answered with times that make no sense")
            times = rows[at + 2 : at + 2 + 2 * n].reshape(n, 2)
            self._spans[run] = np.where(times > 0, times - self.offset, 0)
            at += 2 + 2 * n


def _clock(machine: Worker) -> tuple[int, int]:
    """Nanoseconds by which the worker's clock is ahead, and the most by which that is wrong."""
    link = machine.link
    for _ in range(_PINGS):
        link.ping()
        machine.synchronize()
    until = time.monotonic() + _PING_WAIT
    while link.clock_offset_ns is None and time.monotonic() < until:
        time.sleep(0.001)
    offset, rtt = link.clock_offset_ns, link.rtt
    if offset is None or rtt is None:
        raise DeviceError(f"{machine.name} did not tell the time")
    return offset, int(rtt * 1e9 / 2)
