"""`Turns`: requests use something one after another that takes one of them at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi.concurrency import run_in_threadpool

from weft.errors import BusyError

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Who holds the turn calls what others may not call meanwhile."""

    def __init__(self, most: int) -> None:
        """`most` is the maximum number of requests that wait or have the turn."""
        self._most = most
        self._n = 0
        self._turn = asyncio.Lock()
        self._calling = threading.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Waits for the turn. Raises BusyError if too many wait."""
        if self._n >= self._most:
            raise BusyError(f"{self._n} requests wait already; try again later")
        self._n += 1
        try:
            async with self._turn:
                yield
        finally:
            self._n -= 1

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function, which runs in another thread. A request that is cancelled
        leaves the thread behind; the next call begins when that one has ended."""
        return await run_in_threadpool(self._alone, partial(function, *args, **kwargs))

    def _alone(self, function: Callable[[], T]) -> T:
        with self._calling:
            return function()
