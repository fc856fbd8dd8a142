"""Queues for backends that block: work on the calling thread, or on a thread of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

from weft.backends.base import Event

__all__ = ["REACHED", "InlineQueue", "ThreadQueue"]


class _Reached:
    """An event that is always over."""

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
        """Does nothing, as no work is ever left."""

    def close(self) -> None:
        """Does nothing, as the queue owns nothing."""


class ThreadQueue:
    """A thread that does the work of one device in order; it starts with the first work.

    An event of one queue is always submitted before another queue waits for it, so the queues of a
    driver cannot wait for each other in a circle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._thread: Thread | None = None
        self._last: Event = REACHED

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work`, which must not raise, after all earlier work."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            # the thread holds no reference to this object, and ends with it
            weakref.finalize(self, self._jobs.put, None)
            self._thread = Thread(
                target=_work, args=(self._jobs,), name=f"weft-{self._name}", daemon=True
            )
            self._thread.start()
        job = _Job(work)
        self._jobs.put(job)
        self._last = job
        return job

    def wait_for(self, event: Event) -> None:
        """Makes the thread wait for `event` before it continues."""
        if not event.is_done():
            self.submit(lambda: _wait(event))

    def synchronize(self) -> None:
        """Blocks until all work is done."""
        self._last.wait()

    def close(self) -> None:
        """Ends the thread once all work is done; a later `submit` starts another."""
        if self._jobs is not None and self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._jobs = self._thread = None


def _wait(event: Event) -> None:
    with suppress(Exception):  # the queue of the event reports its failure
        event.wait()


class _Job:
    """A piece of work, and the event that it is over: a lock that is held until then."""

    __slots__ = ("_done", "_held", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self._done = False
        self._held = Lock()
        self._held.acquire()

    def is_done(self) -> bool:
        return self._done

    def wait(self) -> None:
        if not self._done:
            with self._held:
                pass

    def finish(self) -> None:
        self._done = True
        self.work = None  # frees the objects that it refers to
        self._held.release()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            assert job.work is not None
            job.work()
        finally:
            job.finish()
            del job
