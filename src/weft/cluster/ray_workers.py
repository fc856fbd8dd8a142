"""Workers on the nodes of a Ray cluster: Ray starts them, restarts them and ends them.

    source = start()                    # or start("10.0.0.1:6379")
    group = MachineGroup(source)        # LLM(..., machines="ray") does both

One actor for each node other than this process's (or for this one, if there is no other) serves the
node's cpu device on a port of its own, under a key that is made for this cluster of workers. Bytes
of tensors go over those links, never through Ray. Where this process ends, however it ends, Ray
ends the actors.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from weft.cluster.ray_cluster import Machine, import_ray, join, machines
from weft.errors import DeviceError
from weft.links.addresses import Address
from weft.links.keys import make_key

START_S = 60.0
"""Number of seconds after which a start is given up."""


def start(address: str | None = None, model_dirs: Sequence[str] = ()) -> RayWorkers:
    """Workers on the nodes of the cluster at `address` (HOST:PORT; None: see `join`), which look
    for model files in `model_dirs`, where they have these folders, and in the hub's cache.

    Raises DeviceError where the cluster or a worker is not there in time, and WeftError where the
    extra `weft[ray]` is missing."""
    join(address or "auto", "a Ray cluster")
    return RayWorkers(model_dirs)


class WorkerActor:
    """The actor on a node: a worker in a thread, which can be asked for its address."""

    def __init__(self, key: bytes, host: str, model_dirs: Sequence[str], timeout: int) -> None:
        from weft.cluster.lent import Lender
        from weft.cluster.running import known_folders, run_worker
        from weft.flags import FLAGS
        from weft.links.ends import bound_socket

        object.__setattr__(FLAGS, "machine_timeout", timeout)
        sock = bound_socket(Address(host, 0))
        self._port = int(sock.getsockname()[1])
        self._failed = ""

        def serve() -> None:
            try:
                lender = Lender(["cpu"], [*model_dirs, *known_folders()], key=key)
                run_worker(sock, host, lender, say=lambda text: print(text, flush=True))
            except Exception as error:
                self._failed = f"{error}"

        threading.Thread(target=serve, daemon=True).start()

    def address(self) -> tuple[int, int, str]:
        """The port, the process, and why the worker has failed (empty: it has not)."""
        return self._port, os.getpid(), self._failed


class RayWorkers:
    """The workers of one user of a cluster (`weft.backends.remote.group.WorkerSource`)."""

    def __init__(self, model_dirs: Sequence[str] = ()) -> None:
        """Starts them. The cluster must be joined."""
        self.key: bytes | None = make_key()
        self._ray = import_ray("a Ray cluster")
        self._nodes = _nodes(self._ray)
        self._model_dirs = [os.path.abspath(folder) for folder in model_dirs]
        self._actors: list[Any] = []
        self._end = weakref.finalize(self, _kill, self._ray, self._actors)
        atexit.register(self._end)
        try:
            self._actors += [self._make(node) for node in self._nodes]
            until = time.monotonic() + START_S
            self._addresses = [self._address(i, until) for i in range(len(self._nodes))]
        except BaseException:
            self.close()
            raise

    def _make(self, node: Machine) -> Any:
        from weft.flags import FLAGS

        ray = self._ray
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node.id, soft=False
        )
        actor = ray.remote(WorkerActor).options(
            num_cpus=max(node.cpus, 0), max_restarts=-1, scheduling_strategy=strategy
        )
        return actor.remote(self.key, node.address, self._model_dirs, FLAGS.machine_timeout)

    def _address(self, worker: int, until: float) -> Address:
        node = self._nodes[worker]
        left = max(until - time.monotonic(), 0.01)
        try:
            port, _, failed = self._ray.get(self._actors[worker].address.remote(), timeout=left)
        except self._ray.exceptions.GetTimeoutError:
            raise DeviceError(
                f"no worker was started on {node.address} within {START_S:g} s: its {node.cpus} "
                "CPUs are taken by others, or weft is not installed there; `ray status` says more"
            ) from None
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().split("\n")[-1][:300]
            raise DeviceError(f"the worker on {node.address} failed: {first}") from None
        if failed:
            raise DeviceError(f"the worker on {node.address} failed: {failed}")
        return Address(node.address, port)

    def addresses(self) -> Sequence[Address]:
        """The addresses of the workers, one per node."""
        return self._addresses

    def again(self, worker: int, seconds: float) -> Address | None:
        """The address of a worker once Ray has started it again; None if that took too long, for
        example because the node is gone."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self._addresses[worker] = self._address(worker, until)
            except DeviceError:
                if all(machine.id != self._nodes[worker].id for machine in machines()):
                    return None  # Ray has noticed that the node is gone
                time.sleep(0.1)  # it is being started
                continue
            return self._addresses[worker]
        return None

    def close(self) -> None:
        """Ends the workers."""
        self._end()
        atexit.unregister(self._end)


def _nodes(ray: Any) -> list[Machine]:
    """The nodes that get a worker: all with a CPU other than this process's, or else this one."""
    here = ray.get_runtime_context().get_node_id()
    found = [machine for machine in machines() if machine.cpus > 0]
    others = [machine for machine in found if machine.id != here]
    if not found:
        raise DeviceError("the Ray cluster has no node with a CPU to lend")
    return others or found


def _kill(ray: Any, actors: list[Any]) -> None:
    if ray.is_initialized():
        for actor in actors:
            ray.kill(actor, no_restart=True)
    actors.clear()
