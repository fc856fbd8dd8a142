"""Which models are loaded.

A request leases its model until its answer has ended. If the model is not loaded, the request waits
in a queue; one task takes the models of the queue in order and loads them. What a model needs is
known from its plan. To make room, the model that was used longest ago is unloaded first, and never
one with a lease: if idle models are not enough, the next ones take no new requests until theirs
have ended, so that a busy model cannot keep out another for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from weft.errors import AbortedError, OutOfMemoryError, WeftError
from weft.serve.errors import ApiError
from weft.serve.log import logger
from weft.serve.many.catalog import Catalog, Entry
from weft.serve.many.freed import give_back_memory
from weft.serve.many.options import ManyOptions
from weft.serve.many.place import Loaded, Place
from weft.serve.memory import PlannedBytes
from weft.serve.options import ServeOptions
from weft.serve.responses.kept import KeptResponses
from weft.tables import size_text

__all__ = ["Fleet"]

_T = TypeVar("_T")

RETRY = 10.0
"""Seconds after which a model that could not be loaded is tried again."""


class Fleet:
    """The models of a server. Its methods are called in the event loop, except `close`."""

    def __init__(
        self,
        catalog: Catalog,
        options: ManyOptions,
        served: ServeOptions,
        *,
        budget: int | None,
        plan: Callable[[Entry], PlannedBytes],
        load: Callable[[Entry], Loaded],
    ) -> None:
        """`served` are the options of the whole server. `budget` is the most bytes of all loaded
        models (None: no limit is known). `plan` and `load` run in a thread of their own."""
        self.catalog = catalog
        self.many = options
        self.options = served
        self.responses = KeptResponses()
        """Responses outlive the models that wrote them."""
        self.budget = budget
        self._plan = plan
        self._load = load
        self.places = {
            name: Place(entry, self._keep_alive(entry)) for name, entry in catalog.entries.items()
        }
        self._queue: deque[Place] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(1, "weft-models")
        self.closing = False
        self.n_loads = 0
        self.n_unloads = 0

    def _keep_alive(self, entry: Entry) -> float | None:
        own = entry.settings.keep_alive
        return self.many.keep_alive if isinstance(own, str) else own

    # ---- for requests ----

    def place_of(self, name: str) -> Place:
        """The model that a request calls `name`. Raises ApiError if there is none."""
        entry = self.catalog.find(name)
        if entry is None:
            names = ", ".join(self.places)
            shown = names if len(names) <= 400 else f"{names[:400]} ..."
            raise ApiError(
                404, f"there is no model {name!r:.100}; there are {shown}", "model",
                "model_not_found",
            )  # fmt: skip
        return self.places[entry.name]

    @asynccontextmanager
    async def lease(self, place: Place) -> AsyncIterator[Loaded]:
        """Lends a model, which is loaded first if it is not. Raises ApiError if it cannot be, if
        too many requests wait, or if it takes too long."""
        loaded = await self._take(place)
        try:
            yield loaded
        finally:
            self._give_back(place)

    async def unload(self, place: Place) -> bool:
        """Unloads a model once its requests have ended; False if it was not loaded."""
        self._loop = asyncio.get_running_loop()
        if place.state not in ("loaded", "unloading"):
            return False
        if place.state == "loaded":
            place.leaves = place.told = True
            if place.idle:
                self._start(self._unload(place))
        while place.told:
            await self._until_changed()
        return True

    async def plan(self, place: Place) -> PlannedBytes:
        """What a model needs. Raises ApiError for a model that cannot be planned."""
        if place.planned is None:
            self._loop = asyncio.get_running_loop()
            place.planned = await self._in_thread(partial(self._plan, place.entry))
        return place.planned

    def begin(self) -> None:
        """Loads the models that are to be there from the start, and plans the others meanwhile."""
        self._loop = asyncio.get_running_loop()
        self._start(self._begin())

    async def _begin(self) -> None:
        places = sorted(self.places.values(), key=lambda p: not p.entry.settings.load)
        for place in places:
            try:
                if place.entry.settings.load:
                    async with self.lease(place):
                        continue
                await self.plan(place)
            except (WeftError, ApiError, OSError) as error:
                if self.closing:
                    return
                logger.warning("%s: %s", place.entry.name, error)
            except RuntimeError:  # the thread has ended with the server
                return

    def set_keep_alive(self, place: Place, seconds: float | None) -> None:
        """Says how long a model stays after its last request; None: until another needs room."""
        place.keep_alive = seconds
        if place.idle:
            self._set_timer(place)

    @property
    def nbytes(self) -> int:
        """Bytes of all models that are loaded, or being loaded or unloaded, as planned."""
        held = (p for p in self.places.values() if p.state != "unloaded")
        return sum(p.planned.total for p in held if p.planned is not None)

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a model."""
        return sum(not f.done() for p in self.places.values() for f in p.waiting)

    def close(self, grace: float = 0.0) -> None:
        """Ends all models: texts have `grace` seconds. May be called from any thread, twice."""
        self.closing = True
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._send_away)
        services = [p.loaded.service for p in self.places.values() if p.loaded is not None]
        with ThreadPoolExecutor(max(len(services), 1)) as threads:
            for done in [threads.submit(service.close, grace) for service in services]:
                done.result()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- leases ----

    async def _take(self, place: Place) -> Loaded:
        self._loop = loop = asyncio.get_running_loop()
        if self.closing:
            raise _stopping()
        if place.loaded is not None and place.state == "loaded" and not place.leaves:
            return self._lent(place)
        if place.error is not None and loop.time() < place.error_until:
            raise place.error
        if self.n_waiting >= self.many.max_waiting:
            raise ApiError(
                503, f"{self.n_waiting} requests wait for models to be loaded; try again later",
                code="models_busy",
            )  # fmt: skip
        future: asyncio.Future[Loaded] = loop.create_future()
        place.waiting.append(future)
        if place not in self._queue:
            self._queue.append(place)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        try:
            async with asyncio.timeout(self.many.wait):
                return await future
        except BaseException as error:
            # it may have been lent at the very moment
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back(place)
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503, f"{place.entry.name} could not be loaded within {self.many.wait:g} "
                    "seconds, as others are in use; try again later", code="models_busy",
                ) from None  # fmt: skip
            raise
        finally:
            if future in place.waiting:
                place.waiting.remove(future)
            self._note_change()

    def _lent(self, place: Place) -> Loaded:
        assert place.loaded is not None
        place.stop_timer()
        place.leases += 1
        return place.loaded

    def _give_back(self, place: Place) -> None:
        assert self._loop is not None
        place.leases -= 1
        place.last_used = self._loop.time()
        if not place.leases and place.state == "loaded":
            if place.leaves:
                self._start(self._unload(place))
            else:
                self._set_timer(place)
        self._note_change()

    def _set_timer(self, place: Place) -> None:
        place.stop_timer()
        if place.keep_alive is None or self._loop is None or self.closing:
            return

        def expired() -> None:
            if place.idle and not self.closing:
                self._start(self._unload(place))

        place.timer = self._loop.call_later(place.keep_alive, expired)

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
            self._send_away()

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
                future.set_result(self._lent(place))
        if not place.leases:
            self._set_timer(place)

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
        held = [p for p in self.places.values() if p.state != "unloaded" and p is not place]
        over_bytes = 0 if self.budget is None else self.nbytes + need - self.budget
        over_count = 0 if self.many.most is None else len(held) + 1 - self.many.most
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
                self._start(self._unload(other))
        await self._until_changed()
        return False

    def _let_stay(self) -> None:
        """Lets those stay that were to make room for a model that needs none any more."""
        for other in self.places.values():
            if other.leaves and not other.told and other.state == "loaded" and other.leases:
                other.leaves = False
                if other.wanted:
                    self._lend_all(other)

    async def _bring(self, place: Place) -> None:
        """Loads a model; if memory is short all the same, after unloading one that is idle."""
        place.state = "loading"
        self._note_change()
        try:
            loaded = await self._in_thread(partial(self._loaded, place.entry))
        except OutOfMemoryError as error:
            place.state = "unloaded"
            idle = sorted((p for p in self.places.values() if p.idle), key=lambda p: p.last_used)
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
            self._note_change()
        place.loaded, place.state, place.error = loaded, "loaded", None
        place.leaves = False
        place.n_loads += 1
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
        self._note_change()
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
            self._note_change()
        if place.wanted and place not in self._queue:
            self._queue.append(place)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.get_running_loop().create_task(self._work())

    def _refuse(self, place: Place, error: Exception) -> None:
        """Tells those who wait for a model why it cannot be loaded."""
        assert self._loop is not None
        known = _as_api(place, error)
        if not isinstance(error, WeftError | ApiError):
            logger.error("%s: %s", place.entry.name, error, exc_info=error)
        else:
            logger.warning("%s cannot be loaded: %s", place.entry.name, error)
        place.error, place.error_until = known, self._loop.time() + RETRY
        for future in tuple(place.waiting):
            if not future.done():
                future.set_exception(known)

    def _send_away(self) -> None:
        """Tells all who wait that the server is stopping."""
        for place in self.places.values():
            for future in place.waiting:
                if not future.done():
                    future.set_exception(_stopping())

    # ---- small things ----

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until_changed(self) -> None:
        await self._changed.wait()


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping; try another one")


def _as_api(place: Place, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AbortedError):
        return _stopping()
    why = str(error) if isinstance(error, WeftError) else "its log says more"
    return ApiError(500, f"{place.entry.name} cannot be loaded: {why}", "model", "model_failed")
