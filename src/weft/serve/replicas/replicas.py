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
from ray.exceptions import RayActorError, RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException

from weft.cluster.prefixes import Block
from weft.cluster.ray_cluster import forget_note, get_note, put_note
from weft.errors import BusyError, ContextError, DeviceError
from weft.records import dataclass
from weft.serve.endpoints import nearest
from weft.serve.errors import ApiError
from weft.serve.log import logger
from weft.serve.options import ServeOptions
from weft.serve.replicas.deployment import FilesActor, Replica, files_actor, last_line
from weft.serve.replicas.loaded import PIECE, Call, Part
from weft.serve.replicas.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The options of replicas. Raises ContextError for a value out of range."""

    least: int = 1
    """Minimum number of replicas."""
    most: int = 1
    """Maximum number of replicas, under load."""
    cpus: float = 1
    """Number of CPUs of the cluster that each replica takes."""
    upscale_delay: float = 10.0
    """Seconds of more requests than the replicas can compute after which a replica is added."""
    downscale_delay: float = 300.0
    """Seconds of fewer requests after which a replica ends."""
    health_period: float = 5.0
    """Seconds between two health checks of a replica."""
    start_seconds: float = 3600.0
    """Maximum number of seconds until the first replicas have loaded the model."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ContextError(
                f"replicas are {self.least} to {self.most}; the least comes first, and is 1 or more"
            )

    @property
    def varies(self) -> bool:
        """True if the number of replicas follows the load."""
        return self.least < self.most


TRIES = 3
"""Number of replicas that a request is given to, one after another, if they die before they
answer."""
_SPARE = 2
"""Number of requests that a replica may have beside its texts, for those that take no time."""
_BEAT_SECONDS = 2.0
_NAME = "model"
ROUTER = "weft.cluster.prefix_router.PrefixRouter"


class Replicas:
    """The replicas of a model. What a server serves, see `run_server`."""

    def __init__(self, recipe: Recipe, options: ServeOptions, replicas: ReplicaOptions) -> None:
        """`options` are the options of the server in front. Nothing is started yet."""
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
        """Number of requests without a whole answer."""
        self.n_retried = 0
        """Number of requests that were given to another replica because the first had died."""

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
        large = len(call.body) > PIECE or call.kept or nearest(call.path).shape == "responses"
        return self._answer(self._handle if large else self._quick, call, blocks)

    async def _answer(
        self, handle: Any, call: Call, blocks: Sequence[Block]
    ) -> AsyncIterator[Part]:
        """Yields the parts of an answer. If it is closed early, the replica ends the request.

        Raises ApiError if the replica dies in the midst of its answer, or too many before."""
        self.n_open += 1
        try:
            for n_tries in range(1, TRIES + 1):
                began = False
                response = handle.answer.remote(call, blocks=blocks)
                try:
                    async for part in response:
                        began = True
                        yield part
                    response = None
                    return
                except RayActorError:
                    response = None
                    logger.error(
                        "a replica died while it answered %s%s", call.path,
                        "" if began or n_tries == TRIES else "; another one answers",
                    )  # fmt: skip
                    if began:
                        raise ApiError(
                            502,
                            "the replica that wrote this answer died; ask again",
                            code="replica_died",
                        ) from None
                    self.n_retried += n_tries < TRIES
                except (RayError, RayServeException) as error:
                    response = None
                    logger.error("a replica failed on %s: %s", call.path, last_line(error))
                    raise ApiError(
                        500, "the replica failed on this request; the server's log says more"
                    ) from None
                finally:
                    if response is not None:
                        response.cancel()
            raise ApiError(
                502, f"{TRIES} replicas died on this request; it is not tried again",
                code="replica_died",
            )  # fmt: skip
        finally:
            self.n_open -= 1

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
