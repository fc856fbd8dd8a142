"""Starts, counts, replaces and ends the replicas of a model on a Ray cluster."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from weft.cluster.prefixes import Block
from weft.cluster.ray_cluster import forget_note, get_note, put_note
from weft.errors import BusyError, DeviceError
from weft.serve.log import logger
from weft.serve.options import ServeOptions
from weft.serve.replicas.calls import answer_of
from weft.serve.replicas.deployment import FilesActor, Replica, files_actor
from weft.serve.replicas.loaded import PIECE, Call, Part
from weft.serve.replicas.options import ReplicaOptions
from weft.serve.replicas.recipe import Recipe

__all__ = ["Replicas"]

_SPARE = 2
"""Requests beside the texts of a replica that it may have, for questions that take no time."""
_BEAT_SECONDS = 2.0
_NAME = "model"
ROUTER = "weft.cluster.prefix_router.PrefixRouter"


class Replicas:
    """The replicas of a model. What a server serves, see `run_server`."""

    def __init__(self, recipe: Recipe, options: ServeOptions, replicas: ReplicaOptions) -> None:
        """`options` are those of the server in front. Nothing is started yet."""
        self.options = options
        self.replicas = replicas
        self._recipe = recipe
        self.app = f"weft-{re.sub(r'[^A-Za-z0-9_-]', '-', self.model_id)[:60]}-{uuid4().hex[:8]}"
        self._handle: Any = None
        self._quick: Any = None
        self._files: FilesActor | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._is_own = False
        self._n_running = 0
        self._since_none = time.monotonic()
        self.n_open = 0
        """Requests without a whole answer."""
        self.n_retried = 0
        """Requests that were given to another replica, for theirs had died."""

    # ---- what a server asks ----

    @property
    def model_id(self) -> str:
        """The name of the model."""
        name = self._recipe.options.alias
        assert name is not None
        return name

    @property
    def n_running(self) -> int:
        """Replicas that answer requests, as of two seconds ago."""
        return self._n_running

    @property
    def n_waiting(self) -> int:
        """Requests beyond the texts that the replicas write at the same time."""
        return max(self.n_open - self._n_running * self._recipe.options.parallel, 0)

    def check_health(self) -> None:
        """Raises DeviceError if no replica answers requests."""
        if not self._n_running:
            seconds = time.monotonic() - self._since_none
            raise DeviceError(
                f"no replica has been running for {seconds:.0f} seconds; Ray starts others where "
                "the cluster has room"
            )

    # ---- start and end ----

    def start(self, say: Callable[[str], object] = lambda text: None) -> None:
        """Starts the replicas, and returns when the least number of them has loaded the model.

        Raises DeviceError if a replica cannot be started, with what it says."""
        self._files = files_actor(self._recipe)
        _quiet()
        self._is_own = not _serve_runs()
        serve.start(proxy_location="Disabled")
        self._beat_once()
        try:
            self._deploy(say)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._beats, name="weft replicas", daemon=True).start()

    def replace(self, recipe: Recipe | None = None) -> None:
        """Replaces all replicas, one after another, by ones with this recipe (None: as they are).
        Requests go on: a replica ends when it has answered all that it took. Returns when the new
        ones run. Raises DeviceError if they cannot be started."""
        with self._lock:
            recipe = self._recipe if recipe is None else recipe
            self._recipe = dataclasses.replace(recipe, turn=self._recipe.turn + 1)
            self._deploy(lambda text: None)

    def close(self, grace: float = 0.0) -> None:
        """Ends the replicas, which finish the requests that they have within `options.grace`."""
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(Exception):
            serve.delete(self.app)
        with suppress(Exception):
            if self._is_own and not serve.status().applications:
                serve.shutdown()
        with suppress(Exception):
            if self._files is not None:
                self._files.close()
            forget_note(self.app, "front")

    # ---- requests ----

    def parts(self, call: Call, blocks: Sequence[Block]) -> AsyncIterator[Part]:
        """The parts of an answer. Raises BusyError if too many requests wait."""
        most = max(self._n_running, 1) * self._recipe.options.parallel + self.options.max_queue
        if self.n_open >= most:
            raise BusyError(f"{self.options.max_queue} requests wait already; try again later")
        small = len(call.body) <= PIECE and not call.kept and "/responses" not in call.path
        return answer_of(self, self._quick if small else self._handle, call, blocks)

    async def metrics(self) -> dict[str, str]:
        """The metrics of each replica, by its name; a replica that does not answer is left out."""
        results = self._handle.broadcast("metrics")
        found = await results.results_async(timeout_s=5.0, return_exceptions=True)
        return dict(one for one in found if isinstance(one, tuple))

    def states(self) -> dict[str, int]:
        """The number of replicas by state, as Ray Serve names them."""
        app = serve.status().applications.get(self.app)
        deployment = None if app is None else app.deployments.get(_NAME)
        if deployment is None:
            return {}
        return {str(getattr(k, "value", k)): n for k, n in deployment.replica_states.items() if n}

    # ---- inside ----

    def _deploy(self, say: Callable[[str], object]) -> None:
        forget_note(self.app, "error")
        failed: list[BaseException] = []
        handles: list[Any] = []

        def run() -> None:
            try:
                files = self._files.name if self._files is not None else ""
                application = self._deployment().bind(self._recipe, self.app, files)
                handles.append(serve.run(application, name=self.app, route_prefix=None))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="weft deploys", daemon=True)
        thread.start()
        began, told = time.monotonic(), False
        while thread.is_alive():
            thread.join(0.2)
            why = get_note(self.app, "error")
            if why is not None:
                raise DeviceError(f"a replica cannot be started: {why.decode()}")
            seconds = time.monotonic() - began
            if seconds > 20 and not told:
                told = True
                say(f"waiting for replicas: {self._waits()}")
            if seconds > self.replicas.start_seconds:
                raise DeviceError(f"no replicas after {seconds:.0f} seconds: {self._waits()}")
        if failed:
            raise DeviceError(f"replicas cannot be started: {self._reason(failed[0])}")
        self._handle = handles[0].options(stream=True)
        self._quick = _over_connections(self._handle)
        self._look()

    def _deployment(self) -> Any:
        options, replicas = self._recipe.options, self.replicas
        number: dict[str, Any] = {"num_replicas": replicas.least}
        if replicas.varies:
            number = {
                "autoscaling_config": AutoscalingConfig(
                    min_replicas=replicas.least, initial_replicas=replicas.least,
                    max_replicas=replicas.most, target_ongoing_requests=options.parallel,
                    upscale_delay_s=replicas.upscale_delay,
                    downscale_delay_s=replicas.downscale_delay,
                    look_back_period_s=max(10.1, replicas.upscale_delay),
                )
            }  # fmt: skip
        return serve.deployment(Replica).options(
            name=_NAME, max_ongoing_requests=options.parallel + _SPARE, max_queued_requests=-1,
            ray_actor_options={"num_cpus": replicas.cpus},
            health_check_period_s=replicas.health_period,
            health_check_timeout_s=max(30.0, 2 * replicas.health_period),
            graceful_shutdown_wait_loop_s=0.2, graceful_shutdown_timeout_s=self.options.grace,
            request_router_config=RequestRouterConfig(
                request_router_class=ROUTER,
                request_router_kwargs={"most_ahead": max(options.parallel // 2, 1)},
            ),
            **number,
        )  # fmt: skip

    def _waits(self) -> str:
        free = ray.available_resources().get("CPU", 0)
        states = ", ".join(f"{n} {state.lower()}" for state, n in self.states().items())
        return (
            f"{states or 'none yet'}; each takes {self.replicas.cpus:g} CPUs, and {free:g} are free"
        )

    def _reason(self, error: BaseException) -> str:
        with suppress(Exception):
            app = serve.status().applications[self.app]
            message = app.deployments[_NAME].message or app.message
            if message:
                return str(message).strip().split("\n")[-1][:300]
        return str(error).strip().split("\n")[0][:300]

    def _beats(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            try:
                self._beat_once()
                self._look()
            except Exception as error:  # the head of the cluster is away
                logger.warning("the Ray cluster does not answer: %s", str(error)[:200])

    def _beat_once(self) -> None:
        put_note(self.app, "front", str(time.time()).encode())

    def _look(self) -> None:
        n = self.states().get("RUNNING", 0)
        if n and not self._n_running:
            self._since_none = time.monotonic()
        elif not n and self._n_running:
            self._since_none = time.monotonic()
            logger.error("no replica runs any more")
        self._n_running = n


def _over_connections(handle: Any) -> Any:
    """The handle with requests over Ray Serve's connections to replicas, which take a third of the
    time of its object store, but no message beyond 4 MiB; the same handle where Ray lacks them."""
    try:
        return handle.options(stream=True, _by_reference=False)
    except TypeError:
        return handle


def _serve_runs() -> bool:
    """True if Ray Serve runs on the cluster. `serve.status()` is empty whether it runs or not."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _quiet() -> None:
    """Ray Serve logs its steps as information."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
