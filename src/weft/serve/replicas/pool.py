"""Actors that answer the lines of a batch. They end with the process that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from weft.batch import Answer, Line, StoppedError
from weft.cluster.ray_cluster import machines
from weft.errors import DeviceError, WeftError
from weft.serve.errors import error_body
from weft.serve.replicas.deployment import Files, reader
from weft.serve.replicas.loaded import Loaded
from weft.serve.replicas.recipe import Recipe

__all__ = ["BatchActor", "Pool"]

TRIES = 3
"""Actors that a line is given to, one after another, if they die of it."""
_TELL_SECONDS = 20.0
_MOST_CALLS = 1000


class BatchActor:
    """An actor with a loaded model."""

    def __init__(self, recipe: Recipe, files: Any = None) -> None:
        """`files` is an actor of `Files`."""
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
        self.is_up = False


class Pool:
    """Actors that answer lines. The methods are for one event loop."""

    def __init__(self, recipe: Recipe, n: int, cpus: float, most_open: int) -> None:
        """Starts `n` actors of `cpus` CPUs; each has at most `most_open` lines at a time."""
        self._most_open = most_open
        files = None
        if len(machines()) > 1:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), False)
            files = ray.remote(Files).options(
                num_cpus=0, max_concurrency=4, scheduling_strategy=here
            ).remote(recipe)  # fmt: skip
        self._files = files
        make = ray.remote(BatchActor).options(
            num_cpus=cpus, max_restarts=-1, max_concurrency=_MOST_CALLS
        )  # fmt: skip
        self._places = [_Place(make.remote(recipe, files)) for _ in range(n)]
        self._cpus = cpus
        self._moved = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.n_died = 0
        """Actors that died and were started again."""

    async def start(self, say: Callable[[str], object]) -> None:
        """Returns when an actor has loaded the model. Raises DeviceError if one cannot."""
        tasks = [asyncio.ensure_future(self._look_after(place)) for place in self._places]
        told = False
        while not any(place.is_up for place in self._places):
            done, _ = await asyncio.wait(
                tasks, timeout=_TELL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if not done and not told:
                told = True
                free = ray.available_resources().get("CPU", 0)
                say(f"waiting for actors: each takes {self._cpus:g} CPUs, and {free:g} are free")
        self._tasks.update(tasks)

    async def answer(self, line: Line) -> Answer:
        """Answers a line by the actor with the fewest ones. Raises StoppedError if no actor can
        load the model any more."""
        for _ in range(TRIES):
            place = await self._free_place()
            place.n_open += 1
            try:
                answer: Answer = await place.actor.ask.remote(line.url, line.body)
                return Answer(*answer)
            except RayActorError:
                if place.is_up:
                    place.is_up = False
                    self.n_died += 1
                    self._tasks.add(asyncio.ensure_future(self._look_after(place)))
            except RayError as error:
                why = str(error).strip().split("\n")[-1][:300]
                return Answer(500, "", error_body(500, f"the actor failed on this line: {why}"))
            finally:
                place.n_open -= 1
                async with self._moved:
                    self._moved.notify_all()
        return Answer(
            500, "", error_body(500, f"{TRIES} actors died while they answered this line")
        )

    def close(self) -> None:
        """Ends all actors."""
        for task in self._tasks:
            task.cancel()
        for place in self._places:
            ray.kill(place.actor)
        if self._files is not None:
            ray.kill(self._files)

    async def _free_place(self) -> _Place:
        def free() -> list[_Place]:
            for task in [t for t in self._tasks if t.done()]:
                self._tasks.discard(task)
                task.result()
            return [p for p in self._places if p.is_up and p.n_open < self._most_open]

        async with self._moved:
            await self._moved.wait_for(free)
            return min(free(), key=lambda place: place.n_open)

    async def _look_after(self, place: _Place) -> None:
        """Waits until an actor has loaded the model, again after it died."""
        while True:
            try:
                why = await place.actor.ready.remote()
                break
            except RayActorError as error:
                if "restart" not in str(error).lower() and "unavailable" not in str(error).lower():
                    async with self._moved:
                        self._moved.notify_all()
                    raise StoppedError(f"an actor cannot be started again: {error}") from None
                await asyncio.sleep(0.5)
        if why:
            raise DeviceError(f"the model cannot be loaded on a machine: {why}")
        place.is_up = True
        async with self._moved:
            self._moved.notify_all()
