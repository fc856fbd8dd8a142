"""Queues for backends that block: work on the calling thread, or on a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from weft.backends.base import Event

__all__ = ["REACHED", "InlineQueue", "ThreadQueue"]


class _Reached:
    """An event that is always reached."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


REACHED: Event = _Reached()


class InlineQueue:
    """Does the work at once, on the calling thread, so that Ctrl-C stops it."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work`."""
        work()
        return REACHED

    def wait_for(self, event: Event) -> None:
        """Blocks until `event`."""
        event.wait()

    def synchronize(self) -> None:
        """Nothing is ever left to do."""

    def close(self) -> None:
        """Nothing to give back."""


class ThreadQueue:
    """A thread that does the work of one device in order; it starts with the first work.

    An event of one queue is always submitted before another queue waits for it, so the queues of a
    driver cannot wait for each other in a circle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._last: Event = REACHED

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work` after all that came before; it must not raise."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"weft-{self._name}")
        self._last = _Done(self._pool.submit(work))
        return self._last

    def wait_for(self, event: Event) -> None:
        """The thread waits for `event` before it goes on."""
        if not event.is_done():
            self.submit(event.wait)

    def synchronize(self) -> None:
        """Blocks until all work is done."""
        self._last.wait()

    def close(self) -> None:
        """Ends the thread once all work is done; a later `submit` starts another."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


class _Done:
    """Reached when a future is done."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def is_done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        self._future.exception()  # work raises nothing; this waits and never raises either
