"""The class that Ray Serve runs on the machines, and the actor that gives files to them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from weft.cluster.model_files import ReadPart, read_part
from weft.cluster.prefixes import Block
from weft.cluster.ray_cluster import get_note, machines, put_note
from weft.errors import WeftError
from weft.serve.replicas.loaded import Call, Loaded, Part
from weft.serve.replicas.recipe import Recipe

_SPACE = "weft"
FRONT_SECONDS = 60.0
"""Seconds without a beat of the server in front after which replicas end themselves."""


class Replica:
    """A replica of a model; see `Loaded`."""

    def __init__(self, recipe: Recipe, app: str, files: str = "") -> None:
        """`app` is the application of Ray Serve, `files` the name of an actor of
        `Files`."""
        self._app = app
        self._front: tuple[bytes | None, float] = (None, time.monotonic())
        try:
            self._loaded = Loaded(recipe, reader(files))
        except (WeftError, MemoryError) as error:
            put_note(app, "error", str(error).encode())
            raise RuntimeError(str(error)) from None

    async def answer(self, call: Call, blocks: Sequence[Block] = ()) -> AsyncIterator[Part]:
        """Yields the parts of an answer. `blocks` were for the router."""
        parts = self._loaded.answer(call)
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()  # type: ignore[attr-defined]

    async def metrics(self) -> tuple[str, str]:
        """The name of this replica and its metrics."""
        return serve.get_replica_context().replica_id.unique_id, await self._loaded.metrics()

    async def check_health(self) -> None:
        """Called by Ray Serve; an error means that another replica must be started."""
        self._loaded.check_health()
        seen = await asyncio.to_thread(get_note, self._app, "front")
        now = time.monotonic()
        if seen != self._front[0]:
            self._front = seen, now
        elif now - self._front[1] > FRONT_SECONDS:
            self._front = seen, now
            # its process was killed; nobody else would free the machines
            threading.Thread(target=serve.delete, args=(self._app,), daemon=True).start()


class Files:
    """An actor on the machine of the server, which gives files to machines that lack them."""

    def __init__(self, recipe: Recipe) -> None:
        self._allowed = {path for files in recipe.files.values() for path in files.paths()}

    def part(self, path: str, n: int) -> bytes:
        """Part `n` of a file of the model."""
        if path not in self._allowed:
            raise ValueError(f"{path} is no file of the model")
        return read_part(path, n)


class FilesActor:
    """An actor of `Files` on this machine. It ends with this process, or by `close`."""

    def __init__(self, recipe: Recipe) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), False)
        self.name = f"weft-files-{uuid4().hex}"
        self._actor = ray.remote(Files).options(
            num_cpus=0, max_concurrency=4, scheduling_strategy=here, name=self.name,
            namespace=_SPACE,
        ).remote(recipe)  # fmt: skip

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)


def files_actor(recipe: Recipe) -> FilesActor | None:
    """An actor that gives files; None where the cluster has no other machine."""
    return None if len(machines()) < 2 else FilesActor(recipe)


def reader(name: str) -> ReadPart | None:
    """A function that reads parts through the actor of that name; None for an empty name."""
    if not name:
        return None

    def read(path: str, n: int) -> bytes:
        actor = ray.get_actor(name, namespace=_SPACE)
        data: bytes = ray.get(actor.part.remote(path, n))
        return data

    return read


def last_line(error: BaseException) -> str:
    """The last line of an error of Ray, which says why."""
    return (str(error).strip().split("\n") or [""])[-1][:300]
