"""The `remote` devices, lent by workers on other machines or in other processes of this one.

`machine` sends commands to a worker over a `connection`, which takes its answers, `streams` copies
from worker to worker, `memory` has its blocks, `queue` the order of commands, `recording` times of
runs, `encode` makes data of programs and back, `rules` says what a device takes, `backend` puts
them together, `group` finds lost workers again. `hashes` tells files apart. The other side is
`weft.cluster.running`.
"""

from __future__ import annotations

from typing import Any

from weft.backends.registry import BackendInfo
from weft.backends.remote.backend import RemoteBackend
from weft.backends.remote.machine import Machine, machine_at
from weft.errors import DeviceError
from weft.links.addresses import parse_address
from weft.options import require_options

__all__ = ["Machine", "RemoteBackend", "describe", "machine_at", "make"]


def describe() -> list[BackendInfo]:
    """None: machines are named by whoever uses them."""
    return []


def make(suffix: str | None = None, **options: Any) -> RemoteBackend:
    """`remote:HOST:PORT/DEVICE`, by default the worker's cpu. Options: `key` (bytes) that the
    worker asks for, and `name`, by which plans call the device."""
    require_options("remote", options, ("key", "name"))
    if not suffix:
        raise DeviceError("backend 'remote' needs an address: remote:HOST:PORT/cpu")
    address, _, device = suffix.partition("/")
    machine = machine_at(parse_address(address, "remote"), options.get("key"))
    return RemoteBackend(machine, device or "cpu", options.get("name"))
