"""Actors that answer the lines of a batch. They end with the process that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from weft.batch import Answer, Line, StoppedError
from weft.errors import DeviceError, WeftError
from weft.serve.errors import error_body
from weft.serve.replicas.deployment import files_actor, last_line, reader
from weft.serve.replicas.loaded import Loaded
from weft.serve.replicas.recipe import Recipe

TRIES = 3
"""Number of actors that a line is given to, one after another, if they die of it."""
_TELL_SECONDS = 20.0
_MOST_CALLS = 1000


class BatchActor:
    """An actor with a loaded model."""

    def __init__(self, recipe: Recipe, files: str = "") -> None:
        """`files` is the name of an actor of `Files`."""
        self._why = ""
        try:
            self._loaded = Loaded(recipe, reader(files))
        except (WeftError, MemoryError) as error:
            self._why = str(error) or "there is not enough memory"

    @ray.method(max_task_retries=-1)  # type: ignore[untyped-decorator]
    async def ready(self) -> str:
        """Why the model could not be loaded; empty: it was."""
        return self._why

    async def ask(self, path: str, body: Any) -> Answer:
        """The answer to a request."""
        return await self._loaded.ask(path, body)


class _Place:
    """An actor as its user sees it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.n_open = 0
        self.is_up = self.is_dead = False


class Pool:
    """Actors that answer lines. After `start` the methods are for one event loop."""

    def __init__(self, recipe: Recipe, n: int, cpus: float, most_each: int) -> None:
        """Starts `n` actors of `cpus` CPUs; each has at most `most_each` lines at a time."""
        self._most_each, self._cpus = most_each, cpus
        self._files = files_actor(recipe)
        name = "" if self._files is None else self._files.name
        make = ray.remote(BatchActor).options(
            num_cpus=cpus, max_restarts=-1, max_concurrency=_MOST_CALLS
        )  # fmt: skip
        self._places = [_Place(make.remote(recipe, name)) for _ in range(n)]
        self._moved = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_watched = False
        self.n_died = 0
        """Number of actors that died and were started again."""

    @property
    def most_open(self) -> int:
        """The most lines at a time of all actors."""
        return self._most_each * len(self._places)

    def start(self, say: Callable[[str], object]) -> None:
        """Returns when an actor has loaded the model. Raises DeviceError if one cannot."""
        refs = [place.actor.ready.remote() for place in self._places]
        told = False
        while True:
            done, _ = ray.wait(refs, num_returns=1, timeout=_TELL_SECONDS)
            if done:
                break
            if not told:
                told = True
                free = ray.available_resources().get("CPU", 0)
                say(f"waiting for actors: each takes {self._cpus:g} CPUs, and {free:g} are free")
        try:
            why = ray.get(done[0])
        except RayError as error:
            why = last_line(error)
        if why:
            raise DeviceError(f"the model cannot be loaded on a machine: {why}")
        self._places[refs.index(done[0])].is_up = True

    async def answer(self, line: Line) -> Answer:
        """Answers a line by the actor with the fewest ones. Raises StoppedError if no actor can
        load the model any more."""
        if not self._is_watched:
            self._is_watched = True
            for place in self._places:
                if not place.is_up:
                    self._watch(place)
        for _ in range(TRIES):
            place = await self._free_place()
            place.n_open += 1
            try:
                return Answer(*await place.actor.ask.remote(line.url, line.body))
            except RayActorError:
                if place.is_up:
                    place.is_up = False
                    self.n_died += 1
                    self._watch(place)
            except RayError as error:
                why = f"the actor failed on this line: {last_line(error)}"
                return Answer(500, "", error_body(500, why))
            finally:
                place.n_open -= 1
                await self._tell()
        why = f"{TRIES} actors died while they answered this line"
        return Answer(500, "", error_body(500, why))

    def close(self) -> None:
        """Ends all actors."""
        for task in self._tasks:
            task.cancel()
        for place in self._places:
            ray.kill(place.actor)
        if self._files is not None:
            self._files.close()

    async def _free_place(self) -> _Place:
        def free() -> list[_Place]:
            if all(place.is_dead for place in self._places):
                raise StoppedError("no actor can load the model any more; what is done is kept")
            return [p for p in self._places if p.is_up and p.n_open < self._most_each]

        async with self._moved:
            await self._moved.wait_for(free)
            return min(free(), key=lambda place: place.n_open)

    def _watch(self, place: _Place) -> None:
        task = asyncio.ensure_future(self._look_after(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self, place: _Place) -> None:
        """Waits until an actor has loaded the model, again after it died."""
        try:
            while True:
                try:
                    place.is_dead = bool(await place.actor.ready.remote())
                    break
                except ActorUnavailableError:
                    await asyncio.sleep(0.5)
            place.is_up = not place.is_dead
        except RayError:
            place.is_dead = True
        await self._tell()

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()
