"""Runs the batches of clients one after another, the oldest first, beside requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.types import ASGIApp

from weft.batch import Answer, Counts, Journal, Line, StoppedError, read_lines, run_batch
from weft.batch.lines import count_lines
from weft.errors import FormatError, WeftError
from weft.files import private
from weft.keys import LimitError
from weft.serve.access import Users
from weft.serve.batches.store import Batch, ClientFile, FileStore
from weft.serve.internal import line_handler
from weft.serve.log import logger
from weft.serve.metrics import HttpMetrics

LOOK_SECONDS = 0.02
"""Seconds between two checks for a free slot."""


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
        """Number of lines that are being answered."""

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


NOBODY = ""
"""The owner of files where keys have no names."""
_PAUSE_SECONDS = 5.0
"""Seconds until a batch is tried again that has to wait: for its model, or for its key's tokens."""
_MOST_PAUSES = 60
"""Number of tries without a further row after which a batch fails."""

_MOST_ATTEMPTS = 5
"""Number of ends of the server without a further row in between, after which a batch fails."""


def owner_of(key: str | None) -> str:
    """The owner of what is sent with a key: of keys with names, each has its own files."""
    return NOBODY if key in (None, "api-key") else str(key)


class BatchRunner:
    """A task that runs batches while the server does. Its methods are called in the event loop."""

    def __init__(self, store: FileStore, users: Users | None, *, most_bytes: int) -> None:
        """`most_bytes` is the most bytes of all files and rows."""
        self.store = store
        self._users, self._most_bytes = users, most_bytes
        self._live: dict[str, Counts] = {}
        self._running: tuple[str, asyncio.Task[None]] | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leaving = False
        self._paused_at, self._n_pauses = ("", 0), 0

    def start(self, app: ASGIApp, room: Room, parallel: int) -> None:
        """Starts to run batches by `app`, `parallel` lines at a time, including batches from
        before a restart."""
        self._task = asyncio.create_task(self._run(app, room, parallel))

    async def stop(self) -> None:
        """Stops; the batch that runs goes on after a restart."""
        self._leaving = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def wake(self) -> None:
        """Says that there is a new batch."""
        self._wake.set()

    def cancel(self, batch: Batch) -> None:
        """Cancels a batch that has not ended; the lines under way end without a row."""
        self.store.change(batch.id, status="cancelling", cancelling_at=_now())
        if self._running is not None and self._running[0] == batch.id:
            self._running[1].cancel()
        self.wake()

    def shown(self, batch: Batch) -> dict[str, object]:
        """The object of the API, with the latest counts."""
        live = self._live.get(batch.id)
        return batch.as_json(None if live is None else (live.answered, live.failed))

    # ---- the task ----

    async def _run(self, app: ASGIApp, room: Room, parallel: int) -> None:
        while True:
            self._wake.clear()
            batch = self.store.next_batch()
            if batch is None:
                await self._wake.wait()
                continue
            if batch.status not in ("cancelling", "finalizing"):
                task = asyncio.create_task(self._answer(batch, app, room, parallel))
                self._running = batch.id, task
                try:
                    await task
                except asyncio.CancelledError:
                    if self._leaving:
                        raise
                except StoppedError as error:
                    if await self._pauses(batch, error):
                        continue
                    self._fail(batch, "the model could not answer; the server's log says more")
                except (WeftError, OSError) as error:
                    self._fail(batch, str(error))
                except Exception:
                    logger.exception("batch %s", batch.id)
                    self._fail(batch, "the server failed on this batch; its log says more")
                finally:
                    self._running = None
                    task.cancel()
                    with suppress(BaseException):
                        await task
            try:
                await self._finish(batch.id)
            except (WeftError, OSError) as error:  # for example a full disk
                logger.error("batch %s waits for its files: %s", batch.id, error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _pauses(self, batch: Batch, error: StoppedError) -> bool:
        """Waits until a batch is tried again whose model cannot answer now, for example because it
        could not be loaded in time. False after a while in which it got no further."""
        live = self._live.get(batch.id)
        n_rows = 0 if live is None else live.done
        self._n_pauses = self._n_pauses + 1 if (batch.id, n_rows) == self._paused_at else 1
        self._paused_at = batch.id, n_rows
        logger.warning("batch %s waits: %s", batch.id, error)
        await asyncio.sleep(_PAUSE_SECONDS)
        return self._n_pauses < _MOST_PAUSES

    async def _answer(self, batch: Batch, app: ASGIApp, room: Room, parallel: int) -> None:
        """Answers the lines of a batch that have no row."""
        source = self.store.path(batch.input_file_id)
        n = await asyncio.to_thread(_count, source)
        if not n:
            raise WeftError("the file has no requests")
        self.store.change(
            batch.id, status="in_progress", total=n, in_progress_at=batch.in_progress_at or _now()
        )
        path, before = self.store.journal(batch.id), self.store.n_bytes
        with await _opened(path) as journal, source.open("rb") as file:

            def progress(counts: Counts) -> None:
                self._live[batch.id] = counts
                if before + 2 * journal.size > self._most_bytes:  # rows, and then files of them
                    raise WeftError(
                        f"the files would have more than {self._most_bytes} bytes "
                        "(--files-dir-size); delete some and start another batch"
                    )

            if self.store.attempt(batch.id, journal.n_rows) > _MOST_ATTEMPTS:
                raise WeftError(
                    f"the server ended {_MOST_ATTEMPTS} times while it answered the same lines of "
                    "this batch; send the others in another one"
                )
            lines = read_lines(file, (batch.endpoint,))
            try:
                await run_batch(
                    lines, journal, self._handler(batch, app, room), parallel=parallel,
                    progress=progress,
                )  # fmt: skip
            finally:
                self.store.attempt_over(batch.id)
        self.store.change(batch.id, status="finalizing", finalizing_at=_now())

    def _handler(
        self, batch: Batch, app: ASGIApp, room: Room
    ) -> Callable[[Line], Awaitable[Answer]]:
        ask = line_handler(app, batch.owner or (None if self._users is None else "api-key"))

        async def handle(line: Line) -> Answer:
            await self._tokens(batch.owner)
            async with room.line():
                return await ask(line)

        return handle

    async def _tokens(self, owner: str) -> None:
        """Waits until a key has tokens left. Raises WeftError for one that was revoked."""
        while self._users is not None and owner != NOBODY:
            key = self._users.ring.named(owner)
            if key is None or key.why_refused:
                raise WeftError(f"the key {owner} of this batch is not valid any more")
            try:
                return self._users.limits.check_tokens(key)
            except LimitError:
                await asyncio.sleep(_PAUSE_SECONDS)

    def _fail(self, batch: Batch, why: str) -> None:
        error = {"code": "batch_failed", "message": why, "param": None, "line": None}
        errors = json.dumps({"object": "list", "data": [error]})
        self.store.change(batch.id, errors=errors, failed_at=_now(), status="finalizing")

    async def _finish(self, batch_id: str) -> None:
        """Makes files of the rows that there are, and ends the batch."""
        batch = self.store.batch(batch_id, None)
        if batch is None or batch.status not in ("cancelling", "finalizing"):
            return
        results, counts = [], (0, 0)
        readable = self.store.journal(batch.id).exists()
        if readable:
            try:
                await asyncio.to_thread(_counts, self.store, batch.id)
            except FormatError as error:  # somebody's, or the disk's: others must not wait for it
                logger.error("batch %s ends without its rows, which stay: %s", batch.id, error)
                await asyncio.to_thread(self.store.set_aside, batch.id)
                if batch.cancelling_at is None:
                    self._fail(batch, "the rows of this batch are damaged")
                    batch = self.store.batch(batch_id, None) or batch
                readable = False
        if readable:
            counts = await asyncio.to_thread(_counts, self.store, batch.id)
            self.store.begin(*self.store.ids_of(batch.id))
            sizes = await asyncio.to_thread(self.store.save_rows, batch.id)
            results = _results(batch, self.store.ids_of(batch.id), sizes)
        ids = {file.id for file in results}
        output, errors = (i if i in ids else None for i in self.store.ids_of(batch.id))
        end = "completed"
        if batch.cancelling_at is not None:
            end = "cancelled"
        elif batch.failed_at is not None:
            end = "failed"
        self.store.end(
            batch, results, status=end, output_file_id=output, error_file_id=errors,
            completed=counts[0], failed=counts[1], **{f"{end}_at": _now()},
        )  # fmt: skip
        self._live.pop(batch.id, None)
        logger.info("batch %s %s: %d answered, %d failed", batch.id, end, *counts)


def _results(batch: Batch, ids: tuple[str, str], sizes: tuple[int, int]) -> list[ClientFile]:
    """The files of a batch that are not empty."""
    named = zip(ids, ("output", "error"), sizes, strict=True)
    return [
        ClientFile(id_, batch.owner, f"{batch.id}_{kind}.jsonl", "batch_output", size, _now())
        for id_, kind, size in named
        if size
    ]


async def _opened(path: Path) -> Journal:
    """The journal of a batch, which is read in another thread; closed if this is cancelled."""
    opening = asyncio.ensure_future(asyncio.to_thread(Journal, path, opener=private))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return count_lines(file)


def _counts(store: FileStore, batch_id: str) -> tuple[int, int]:
    with Journal(store.journal(batch_id)) as journal:
        return journal.n_answered, journal.n_failed


def _now() -> int:
    return int(time.time())
