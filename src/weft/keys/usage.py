"""Writes what requests used.

A request waits until its usage is on disk before the end of its answer is sent. So what a finished
answer used is never lost, whatever ends the process. A process that is killed loses the usage of
answers that were still under way. Requests that end at the same time share a transaction.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future

from weft.keys.store import KeyStore, Used

MOST_AT_ONCE = 256
"""Maximum number of requests of one transaction."""
MOST_UNWRITTEN = 10_000
"""Maximum number of requests whose usage is kept while the file cannot be written, e.g. on a full
disk."""


class UsageWriter:
    """A thread that writes usage. `add` may be called from any thread."""

    def __init__(
        self, store: KeyStore, on_error: Callable[[str], object] = lambda text: None
    ) -> None:
        """`store` is used by this thread alone from now on. `on_error` is told why usage could not
        be written; it is tried again with the next one."""
        self._store, self._on_error = store, on_error
        self._queue: queue.SimpleQueue[tuple[Used, Future[None]] | None] = queue.SimpleQueue()
        self._unwritten: list[Used] = []
        self._thread = threading.Thread(target=self._run, name="weft-usage", daemon=True)
        self._thread.start()

    def add(self, used: Used) -> Future[None]:
        """Queues usage; the result is there when it is on disk, or cannot be written."""
        future: Future[None] = Future()
        self._queue.put((used, future))
        return future

    def close(self) -> None:
        """Writes what is queued, ends the thread and closes the store."""
        self._queue.put(None)
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while not last and len(batch) < MOST_AT_ONCE and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    last = True
                else:
                    batch.append(following)
            # from here on a request that no longer waits cannot cancel its future
            waiting = [future for _, future in batch if future.set_running_or_notify_cancel()]
            self._write([used for used, _ in batch])
            for future in waiting:
                future.set_result(None)
            if last:
                break
        if self._unwritten:
            self._write([])

    def _write(self, used: list[Used]) -> None:
        rows = self._unwritten + used
        try:
            self._store.use(rows)
        except sqlite3.Error as error:
            self._unwritten = rows[-MOST_UNWRITTEN:]
            self._on_error(f"usage of keys could not be written: {error}; it is tried again")
        else:
            self._unwritten = []
