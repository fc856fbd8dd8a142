"""Runs a batch: many lines are under way, and a new one is read only when one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.batch.journal import Journal
from weft.batch.lines import Line
from weft.errors import WeftError

SYNC_SECONDS = 1.0
"""Seconds after which rows are forced to the disk."""
WINDOW = 8
"""With `ordered`, lines per worker that may be answered before the oldest one."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
"""Seconds until a line is tried again that was refused for a full queue."""


class StoppedError(WeftError):
    """Who answers lines has stopped for good; the batch can go on later."""


class Answer(NamedTuple):
    """The answer of a handler to a line."""

    status: int
    """The HTTP status: with 429 the line is tried again later, with 503 the batch stops."""
    request_id: str
    body: Any
    """The body of the answer, which can be written as JSON."""


@dataclass(slots=True)
class Counts:
    """The progress of a batch."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    """Number of answered and failed lines that an earlier run had done."""

    @property
    def done(self) -> int:
        """Lines that have a row."""
        return self.answered + self.failed


async def run_batch(
    lines: Iterator[Line],
    journal: Journal,
    handle: Callable[[Line], Awaitable[Answer]],
    *,
    parallel: int,
    ordered: bool = False,
    admit: Callable[[], Awaitable[object]] | None = None,
    progress: Callable[[Counts], object] = lambda counts: None,
) -> Counts:
    """Answers the lines that `journal` lacks, `parallel` at a time, and appends their rows.

    Rows come in the order in which answers end, with `ordered` in the order of the lines; either
    way may continue the file of an earlier run. `admit` is awaited before a line is read, until
    there is room for it. `progress` is called after every row.

    Can be cancelled at any time; the rows that were written stay. Raises StoppedError if `handle`
    says that nothing can be answered any more, and the errors of `journal` and `lines`."""
    state = _State(lines, journal, ordered, WINDOW * parallel, progress)
    async with _synced(journal):
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(parallel):
                    group.create_task(_worker(state, handle, admit))
        except BaseExceptionGroup as errors:  # workers fail together; the first one says why
            raise errors.exceptions[0] from None
    return state.counts


async def _worker(
    state: _State,
    handle: Callable[[Line], Awaitable[Answer]],
    admit: Callable[[], Awaitable[object]] | None,
) -> None:
    while True:
        if admit is not None:
            await admit()
        taken = state.next()
        if taken is None:
            return
        place, line = taken
        await state.wait_for_window(place)
        row = await _row(line, handle)
        await state.put(place, line, row)


async def _row(line: Line, handle: Callable[[Line], Awaitable[Answer]]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": line.id, "custom_id": line.custom_id}
    if line.problem is not None:
        await asyncio.sleep(0)  # a file of wrong lines alone must not keep the loop from others
        return row | {"response": None, "error": line.problem._asdict()}
    wait = _FIRST_WAIT
    while (answer := await handle(line)).status == 429:
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    if answer.status == 503:
        raise StoppedError("the model has stopped; what is done is kept, start again to go on")
    response = {
        "status_code": answer.status, "request_id": answer.request_id, "body": answer.body,
    }  # fmt: skip
    return row | {"response": response, "error": None}


class _State:
    """The state that the workers share."""

    def __init__(
        self,
        lines: Iterator[Line],
        journal: Journal,
        ordered: bool,
        window: int,
        progress: Callable[[Counts], object],
    ) -> None:
        self._lines, self._journal, self._progress = lines, journal, progress
        self._ordered, self._window = ordered, window
        self.counts = Counts(journal.n_answered, journal.n_failed, journal.n_rows)
        self._n_taken = self._n_written = 0
        self._held: dict[int, tuple[Line, dict[str, Any]]] = {}
        self._moved = asyncio.Condition()

    def next(self) -> tuple[int, Line] | None:
        """The next line without a row, and its place among those of this run."""
        for line in self._lines:
            if not self._journal.has(line):
                self._n_taken += 1
                return self._n_taken - 1, line
        return None

    async def wait_for_window(self, place: int) -> None:
        """Waits until no more than a window of rows is held for the one in front."""
        if self._ordered:
            async with self._moved:
                await self._moved.wait_for(lambda: place < self._n_written + self._window)

    async def put(self, place: int, line: Line, row: dict[str, Any]) -> None:
        """Writes a row, and those that waited for it."""
        if not self._ordered:
            return self._write(line, row)
        self._held[place] = line, row
        async with self._moved:
            while self._n_written in self._held:
                self._write(*self._held.pop(self._n_written))
            self._moved.notify_all()

    def _write(self, line: Line, row: dict[str, Any]) -> None:
        self._journal.append(line, row)
        self._n_written += 1
        self.counts.answered, self.counts.failed = self._journal.n_answered, self._journal.n_failed
        self._progress(self.counts)


@asynccontextmanager
async def _synced(journal: Journal) -> AsyncIterator[None]:
    """Forces rows to the disk every second, in another thread."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            await asyncio.to_thread(journal.sync)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.shield(asyncio.to_thread(journal.sync))
