"""Joins a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import logging
import os
import re
import socket
from typing import Any

from weft.errors import ContextError, DeviceError, WeftError
from weft.extras import how_to_install
from weft.records import dataclass

ADDRESS = re.compile(r"auto|local|(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}")
"""The form of a cluster's address; `auto` stands for the cluster that runs on this machine, or else
a new one."""
LOCAL_STORE = 256 << 20
"""Bytes of the object store of a cluster that is started here; models do not go through it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a cluster."""

    id: str
    address: str
    cpus: int
    """Number of CPUs that Ray gives away on this node, used ones included."""


def import_ray(what: str) -> Any:
    """The package `ray`. Raises WeftError if the extra is missing, which `what` needs."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports of use are the user's choice
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise WeftError(f"{what} needs ray; {how_to_install('ray')}") from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def join(address: str = "auto", what: str = "--ray") -> str:
    """Joins the cluster at `HOST:PORT`. `auto` is the one that runs on this machine or that
    `RAY_ADDRESS` names, or else a new one of this machine alone; `local` is always a new one. A
    process that is in a cluster stays in it. Returns a description of the cluster for people.

    Raises ContextError for a malformed address, DeviceError if nobody answers there or no cluster
    can be started, and WeftError if the extra is missing."""
    ray = import_ray(what)
    if ray.is_initialized():
        return f"the Ray cluster of this process, {_sizes()}"
    if not ADDRESS.fullmatch(address):
        raise ContextError(
            f"--ray {address[:80]}: give the HOST:PORT that `ray start --head` printed, auto or "
            "local"
        )
    _require_answer(address)
    _keep_stdout(ray)
    settings: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if address != "local":
        try:
            ray.init(address, **settings)
        except (ConnectionError, RuntimeError) as error:
            if address != "auto":
                raise DeviceError(
                    f"--ray {address}: no Ray cluster answers there ({_first_line(error)}); start "
                    "one with `ray start --head`"
                ) from None
        else:
            return f"the Ray cluster at {ray.get_runtime_context().gcs_address}, {_sizes()}"
    _ask_for_a_token(ray)
    try:
        ray.init("local", include_dashboard=False, object_store_memory=LOCAL_STORE, **settings)
    except (ConnectionError, RuntimeError) as error:  # a busy machine, among others
        raise DeviceError(
            f"--ray: no Ray cluster can be started on this machine ({_first_line(error)}); try "
            "again, or start one with `ray start --head`"
        ) from None
    found = "" if address == "local" else "no Ray cluster runs here, so "
    return f"{found}a Ray cluster was started on this machine, {_sizes()}"


def machines() -> list[Machine]:
    """The nodes of the joined cluster that are alive."""
    import ray

    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]


def cpus_each(least: int, most: int, each: int | None = None) -> int:
    """The CPUs of each replica: `each`, or the number with which `most` replicas share the machines
    of the cluster evenly, and at least 1. Raises DeviceError if there is no room for `least`."""
    cpus = [machine.cpus for machine in machines()]
    if each is None:
        tries = range(max(cpus, default=0), 1, -1)
        each = next((n for n in tries if _room(cpus, n) >= most), 1)
    room = _room(cpus, each)
    if room < least:
        raise DeviceError(
            f"{least} replicas of {each} CPUs are more than the machines of the Ray cluster can "
            f"hold, which have {', '.join(map(str, cpus))} CPUs; give smaller --replicas or "
            "--threads, or add machines with `ray start --address`"
        )
    return each


def _room(cpus: list[int], each: int) -> int:
    """The replicas that machines of these CPUs can hold."""
    return sum(n // each for n in cpus)


def _ask_for_a_token(ray: Any) -> None:
    """Lets a cluster that is started here refuse whoever has no token (Ray 2.52 and later), since
    its services listen on all networks. A user who set RAY_AUTH_MODE has chosen."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    ray._raylet.Config.initialize("")  # this process has read the mode when ray was imported


def _require_answer(address: str) -> None:
    """Raises DeviceError if HOST:PORT accepts no connection; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as failed:
        error = getattr(failed, "strerror", None) or failed
        raise DeviceError(
            f"--ray {address}: no Ray cluster answers there ({error}); start one with "
            "`ray start --head`"
        ) from None


def _keep_stdout(ray: Any) -> None:
    """Makes Ray write to stderr that a process of the cluster died. It has no setting for that, and
    stdout is for texts."""
    worker: Any = getattr(ray._private, "worker", None)
    write = getattr(worker, "print_to_stdstream", None)
    if write is not None:
        worker.print_to_stdstream = lambda data, *rest, **more: write(
            {**data, "is_err": True}, *rest, **more
        )


def _sizes() -> str:
    there = machines()
    cpus = sum(machine.cpus for machine in there)
    return f"{len(there)} machine{'s' * (len(there) != 1)} with {cpus} CPUs"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200].rstrip(".")


# **** small notes that processes leave for each other, in Ray's key-value store ****

_SPACE = b"weft"


def put_note(app: str, name: str, value: bytes) -> None:
    """Leaves a note of an application."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_key(app, name), value, overwrite=True, namespace=_SPACE)


def get_note(app: str, name: str) -> bytes | None:
    """A note of an application; None if there is none."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(_key(app, name), namespace=_SPACE)
    return value


def forget_note(app: str, name: str) -> None:
    """Removes a note."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_key(app, name), namespace=_SPACE)


def _key(app: str, name: str) -> bytes:
    return f"{app}/{name}".encode()
