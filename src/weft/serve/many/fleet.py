"""The models of a server, and which request has which.

A request leases its model until its answer has ended. If the model is not loaded, the request waits
in a queue, of which `Loader` loads one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from weft.errors import ContextError, WeftError
from weft.records import dataclass
from weft.serve.errors import ApiError
from weft.serve.log import logger
from weft.serve.many.catalog import Catalog, Entry
from weft.serve.many.loader import Loaded, Loader, Place, stopping
from weft.serve.memory import PlannedBytes
from weft.serve.options import ServeOptions
from weft.serve.responses.store import KeptResponses


@dataclass(frozen=True, slots=True)
class ManyOptions:
    """The options besides `ServeOptions`. Raises ContextError for a value out of range."""

    memory: int | None = None
    """Maximum planned bytes of all loaded models; None: what the system has at the start."""
    most: int | None = None
    """Maximum number of models that are loaded at the same time; None: as many as fit."""
    keep_alive: float | None = None
    """Seconds after its last request until a model is unloaded; None: when another needs room."""
    wait: float = 600.0
    """Maximum number of seconds that a request waits for its model to be loaded."""
    max_waiting: int = 256
    """Maximum number of requests that wait for models to be loaded; further ones get 503."""

    def __post_init__(self) -> None:
        for name, low in (("memory", 1), ("most", 1), ("keep_alive", 0), ("max_waiting", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ContextError(f"is {value}; it must be {low} or more", argument=name)
        if not 0 < self.wait < 1e6:
            raise ContextError(f"is {self.wait}; it is a number of seconds", argument="wait")


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
        """The kept responses, which outlive the models that wrote them."""
        self.places = {
            name: Place(entry, self._keep_alive(entry)) for name, entry in catalog.entries.items()
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self.loader = Loader(
            self.places.values(), budget=budget, most=options.most, plan=plan, load=load
        )

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
            self.loader.give_back(place)

    async def unload(self, place: Place) -> bool:
        """Unloads a model once its requests have ended; False if it was not loaded."""
        if place.state not in ("loaded", "unloading"):
            return False
        await self.loader.unload(place)
        return True

    def begin(self) -> None:
        """Loads the models that are to be there from the start, and plans the others meanwhile."""
        self.loader.start(self._begin())

    async def _begin(self) -> None:
        places = sorted(self.places.values(), key=lambda p: not p.entry.settings.load)
        for place in places:
            try:
                if place.entry.settings.load:
                    async with self.lease(place):
                        continue
                await self.loader.plan(place)
            except (WeftError, ApiError, OSError) as error:
                if self.loader.closing:
                    return
                logger.warning("%s: %s", place.entry.name, error)
            except RuntimeError:  # the thread has ended with the server
                return

    def set_keep_alive(self, place: Place, seconds: float | None) -> None:
        """Says how long a model stays after its last request; None: until another needs room."""
        place.keep_alive = seconds
        if place.idle:
            self.loader.set_timer(place)

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a model."""
        return sum(not f.done() for p in self.places.values() for f in p.waiting)

    def close(self, grace: float = 0.0) -> None:
        """Ends all models: texts have `grace` seconds. May be called from any thread, twice."""
        self.loader.closing = True
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self.loader.send_away)
        services = [p.loaded.service for p in self.places.values() if p.loaded is not None]
        with ThreadPoolExecutor(max(len(services), 1)) as threads:
            for done in [threads.submit(service.close, grace) for service in services]:
                done.result()
        self.loader.end()

    # ---- leases ----

    async def _take(self, place: Place) -> Loaded:
        self._loop = loop = asyncio.get_running_loop()
        if self.loader.closing:
            raise stopping()
        if place.loaded is not None and place.state == "loaded" and not place.leaves:
            return self.loader.lent(place)
        if place.error is not None and loop.time() < place.error_until:
            raise place.error
        if self.n_waiting >= self.many.max_waiting:
            raise ApiError(
                503, f"{self.n_waiting} requests wait for models to be loaded; try again later",
                code="models_busy",
            )  # fmt: skip
        future: asyncio.Future[Loaded] = loop.create_future()
        place.waiting.append(future)
        self.loader.want(place)
        try:
            async with asyncio.timeout(self.many.wait):
                return await future
        except BaseException as error:
            # it may have been lent at the very moment
            if future.done() and not future.cancelled() and future.exception() is None:
                self.loader.give_back(place)
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503, f"{place.entry.name} could not be loaded within {self.many.wait:g} "
                    "seconds, as others are in use; try again later", code="models_busy",
                ) from None  # fmt: skip
            raise
        finally:
            if future in place.waiting:
                place.waiting.remove(future)
            self.loader.note_change()
