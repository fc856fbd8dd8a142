"""Loads the models of a queue one after another, and unloads others where that makes room.

What a model needs is known from its plan. To make room, the model that was used longest ago is
unloaded first, and never one with a lease: if idle models are not enough, the next ones take no new
requests until theirs have ended, so that a busy model cannot keep out another for ever.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import partial
from typing import Any, Literal, TypeVar

from starlette.types import ASGIApp

from weft.errors import AbortedError, OutOfMemoryError, WeftError
from weft.heap import trim_heap
from weft.records import dataclass
from weft.serve.errors import ApiError, without_folders
from weft.serve.log import logger
from weft.serve.many.catalog import Entry
from weft.serve.memory import PlannedBytes
from weft.serve.service import Service
from weft.tables import size_text


def give_back_memory() -> None:
    """Frees the endpoints of applications that are gone and cycles, of which applications have
    some, and returns memory to the system."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fastapi."):  # which keeps the handlers of thousands of endpoints
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    gc.collect()
    trim_heap()


State = Literal["unloaded", "loading", "loaded", "unloading"]


@dataclass(slots=True, eq=False)
class Loaded:
    """A loaded model: what its requests are handed to."""

    service: Service
    app: ASGIApp


@dataclass(slots=True, eq=False)
class Place:
    """A model and its state. The event loop alone changes it."""

    entry: Entry
    keep_alive: float | None
    """Seconds after the last request until the model is unloaded; None: when another needs room."""
    planned: PlannedBytes | None = None
    """The bytes that the model needs; None: not known yet."""
    state: State = "unloaded"
    loaded: Loaded | None = None
    leases: int = 0
    """Number of requests that are using the model."""
    last_used: float = 0.0
    """The time when the last lease ended, by the clock of the event loop."""
    leaves: bool = False
    """True if the model makes room for another as soon as its requests have ended."""
    told: bool = False
    """True if the model is unloaded because a client has asked for that."""
    error: ApiError | None = None
    """Why the model could not be loaded; None: it could be, or was never tried."""
    error_until: float = 0.0
    """The time from which a request may try again."""
    waiting: deque[asyncio.Future[Loaded]] = field(default_factory=deque)
    """Requests that wait for the model, in order of arrival."""
    timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """True if it is loaded and no request uses it."""
        return self.state == "loaded" and not self.leases

    @property
    def wanted(self) -> bool:
        """True if a request waits for it."""
        return any(not future.done() for future in self.waiting)

    def stop_timer(self) -> None:
        """Forgets when it was to be unloaded."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


_T = TypeVar("_T")

RETRY = 10.0
"""Seconds after which a model that could not be loaded is tried again."""


class Loader:
    """Brings models to memory. Its methods are called in the event loop."""

    def __init__(
        self,
        places: Iterable[Place],
        *,
        budget: int | None,
        most: int | None,
        plan: Callable[[Entry], PlannedBytes],
        load: Callable[[Entry], Loaded],
    ) -> None:
        """`budget` is the most bytes of all loaded models, `most` their greatest number (None: no
        limit). `plan` and `load` run in a thread of their own."""
        self.budget, self._most = budget, most
        self._places = tuple(places)
        self._plan, self._load = plan, load
        self._queue: deque[Place] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, "weft-models")
        self.closing = False
        self.n_loads = 0
        self.n_unloads = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all models that are loaded, or being loaded or unloaded, as planned."""
        held = (p for p in self._places if p.state != "unloaded")
        return sum(p.planned.total for p in held if p.planned is not None)

    def want(self, place: Place) -> None:
        """Puts a model that a request waits for into the queue."""
        if place not in self._queue:
            self._queue.append(place)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def plan(self, place: Place) -> PlannedBytes:
        """The bytes that a model needs. Raises the errors of `plan`."""
        if place.planned is None:
            place.planned = await self._in_thread(partial(self._plan, place.entry))
        return place.planned

    async def unload(self, place: Place) -> None:
        """Unloads a loaded model once its requests have ended."""
        if place.state == "loaded":
            place.leaves = place.told = True
            if place.idle:
                self.start(self._unload(place))
        while place.told:
            await self._until_changed()

    def end(self) -> None:
        """Gives up what was not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- leases ----

    def lent(self, place: Place) -> Loaded:
        """Counts a lease of a loaded model."""
        assert place.loaded is not None
        place.stop_timer()
        place.leases += 1
        return place.loaded

    def give_back(self, place: Place) -> None:
        """Ends a lease."""
        place.leases -= 1
        place.last_used = asyncio.get_running_loop().time()
        if not place.leases and place.state == "loaded":
            if place.leaves:
                self.start(self._unload(place))
            else:
                self.set_timer(place)
        self.note_change()

    def set_timer(self, place: Place) -> None:
        """Lets a model be unloaded when nobody has used it for as long as it is kept."""
        place.stop_timer()
        if place.keep_alive is None or self.closing:
            return

        def expired() -> None:
            if place.idle and not self.closing:
                self.start(self._unload(place))

        place.timer = asyncio.get_running_loop().call_later(place.keep_alive, expired)

    # ---- loading ----

    async def _work(self) -> None:
        """Loads the models of the queue, one by one."""
        while self._queue and not self.closing:
            place = self._queue[0]
            try:
                await self._serve(place)
            except Exception as error:
                self._refuse(place, error)
            self._queue.popleft()
        if self.closing:
            self.send_away()

    async def _serve(self, place: Place) -> None:
        """Loads a model and lends it to all who wait for it."""
        try:
            await self._until_lent(place)
        finally:
            self._let_stay()

    async def _until_lent(self, place: Place) -> None:
        while place.wanted and not self.closing:
            if place.state == "unloading":
                await self._until_changed()
                continue
            if place.state == "loaded":
                if place.leaves:
                    await self._until_changed()
                    continue
                return self._lend_all(place)
            planned = await self.plan(place)
            self._require_possible(place, planned)
            if not await self._make_room(place, planned.total):
                continue
            await self._bring(place)

    def _lend_all(self, place: Place) -> None:
        assert place.loaded is not None
        for future in tuple(place.waiting):
            if not future.done():
                future.set_result(self.lent(place))
        if not place.leases:
            self.set_timer(place)

    def _require_possible(self, place: Place, planned: PlannedBytes) -> None:
        if self.budget is not None and planned.total > self.budget:
            raise ApiError(
                400, f"{place.entry.name} needs {size_text(planned.total)} (weights "
                f"{size_text(planned.weights)}, cache {size_text(planned.cache)}, compute "
                f"{size_text(planned.compute)}), but all models together may take "
                f"{size_text(self.budget)}; start the server with a larger --models-memory, or "
                "give the model a smaller ctx-size", "model", "model_too_large",
            )  # fmt: skip

    async def _make_room(self, place: Place, need: int) -> bool:
        """Unloads models until `need` bytes are free; False if it had to wait, after which all may
        be different."""
        held = [p for p in self._places if p.state != "unloaded" and p is not place]
        over_bytes = 0 if self.budget is None else self.nbytes + need - self.budget
        over_count = 0 if self._most is None else len(held) + 1 - self._most
        if over_bytes <= 0 and over_count <= 0:
            return True
        # those that are leaving already count as gone
        leaving = [p for p in held if p.state == "unloading" or p.leaves]
        over_bytes -= sum(p.planned.total for p in leaving if p.planned is not None)
        over_count -= len(leaving)
        others = [p for p in held if p.state == "loaded" and not p.leaves]
        others.sort(key=lambda p: (p.leases > 0, p.last_used))
        for other in others:
            if over_bytes <= 0 and over_count <= 0:
                break
            other.leaves = True
            over_bytes -= 0 if other.planned is None else other.planned.total
            over_count -= 1
            if other.idle:
                self.start(self._unload(other))
        await self._until_changed()
        return False

    def _let_stay(self) -> None:
        """Lets those stay that were to make room for a model that needs none any more."""
        for other in self._places:
            if other.leaves and not other.told and other.state == "loaded" and other.leases:
                other.leaves = False
                if other.wanted:
                    self._lend_all(other)

    async def _bring(self, place: Place) -> None:
        """Loads a model; if memory is short all the same, after unloading one that is idle."""
        place.state = "loading"
        self.note_change()
        try:
            loaded = await self._in_thread(partial(self._loaded, place.entry))
        except OutOfMemoryError as error:
            place.state = "unloaded"
            idle = sorted((p for p in self._places if p.idle), key=lambda p: p.last_used)
            if not idle:
                raise
            logger.warning("%s: %s; unloading %s", place.entry.name, error, idle[0].entry.name)
            idle[0].leaves = True
            await self._unload(idle[0])
            return
        except BaseException:
            place.state = "unloaded"
            raise
        finally:
            self.note_change()
        place.loaded, place.state, place.error = loaded, "loaded", None
        place.leaves = False
        self.n_loads += 1
        if self.closing:  # `close` may not have seen it
            await asyncio.get_running_loop().run_in_executor(None, loaded.service.close)

    def _loaded(self, entry: Entry) -> Loaded:
        loaded = self._load(entry)
        if self.closing:
            loaded.service.close()
            raise AbortedError("the server is stopping")
        return loaded

    async def _unload(self, place: Place) -> None:
        """Unloads an idle model and frees its memory."""
        if not place.idle:
            return
        loaded, place.loaded = place.loaded, None
        place.state = "unloading"
        place.stop_timer()
        self.note_change()
        assert loaded is not None
        service = loaded.service
        del loaded
        try:
            await self._in_thread(service.close)
        except Exception as error:
            logger.error("%s: %s", place.entry.name, error, exc_info=error)
        finally:
            service.forget()
            await self._in_thread(give_back_memory)
            place.state, place.leaves, place.told = "unloaded", False, False
            self.n_unloads += 1
            self.note_change()
        if place.wanted:
            self.want(place)

    def _refuse(self, place: Place, error: Exception) -> None:
        """Tells those who wait for a model why it cannot be loaded."""
        known = _as_api(place, error)
        if not isinstance(error, WeftError | ApiError):
            logger.error("%s: %s", place.entry.name, error, exc_info=error)
        else:
            logger.warning("%s cannot be loaded: %s", place.entry.name, error)
        place.error, place.error_until = known, asyncio.get_running_loop().time() + RETRY
        for future in tuple(place.waiting):
            if not future.done():
                future.set_exception(known)

    def send_away(self) -> None:
        """Tells all who wait that the server is stopping."""
        for place in self._places:
            for future in place.waiting:
                if not future.done():
                    future.set_exception(stopping())

    # ---- small things ----

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note_change(self) -> None:
        """Wakes all who wait for another state."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until_changed(self) -> None:
        await self._changed.wait()


def stopping() -> ApiError:
    """The answer to requests while the server ends."""
    return ApiError(503, "the server is stopping; try another one")


def _as_api(place: Place, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AbortedError):
        return stopping()
    why = "its log says more"
    if isinstance(error, WeftError):
        why = without_folders(str(error), place.entry.path.parent)
    return ApiError(500, f"{place.entry.name} cannot be loaded: {why}", "model", "model_failed")
