"""When there is room for a line of a batch: requests go first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from weft.serve.http_metrics import HttpMetrics

__all__ = ["Room"]

LOOK_SECONDS = 0.02
"""Seconds between two looks for room."""


class Room:
    """Admits lines while slots are idle: with the requests and lines that are under way, no more
    than `parallel` are used, and no more than `most` by lines, so that with `most` below `parallel`
    a request always finds a slot. While requests wait for a slot, no line is admitted."""

    def __init__(
        self, parallel: int, most: int, http: HttpMetrics, n_waiting: Callable[[], int]
    ) -> None:
        """`n_waiting` says how many texts wait in the engine."""
        self._parallel, self._most, self._http, self._n_waiting = parallel, most, http, n_waiting
        self.n_lines = 0
        """Lines under way."""

    @asynccontextmanager
    async def line(self) -> AsyncIterator[None]:
        """A block for a line, which begins when there is room."""
        while not self._free():
            await asyncio.sleep(LOOK_SECONDS)
        self.n_lines += 1
        try:
            yield
        finally:
            self.n_lines -= 1

    def _free(self) -> bool:
        n_used = self._http.n_asking + self.n_lines
        return self.n_lines < self._most and n_used < self._parallel and not self._n_waiting()
