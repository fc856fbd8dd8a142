"""Ray clusters of several nodes on this machine: the one that tests share, and others.

Tests that share it name `xdist_group("ray")`. A test that loses nodes makes a cluster of its own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.lasting import Lasting

STORE = 100 << 20
OTHERS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Titles of processes of a node that run no actor and no task."""


class Nodes:
    """The nodes. No process of a test joins the cluster, so that Ray's warnings stay away."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def processes(self, title: str) -> list[int]:
        """The processes of Ray workers whose title begins like this."""
        raylets = {
            info.process.pid
            for node in self._cluster.list_all_nodes()
            for info in node.all_processes.get("raylet", ())
        }
        return [pid for pid, parent, name in _processes()
                if parent in raylets and name.startswith(title)]  # fmt: skip

    def kill(self, title: str, pick: random.Random | None = None) -> int:
        """Ends one such process by SIGKILL, the first or any; returns its id."""
        found = self.processes(title)
        pid = found[0] if pick is None else pick.choice(found)
        os.kill(pid, signal.SIGKILL)
        return pid

    def lose(self, title: str) -> list[int]:
        """Ends the last node that has such a process, as a power cut would: its raylet and all
        processes below it, by SIGKILL. Returns their ids."""
        node = [n for n in self._cluster.list_all_nodes() if self._below(n, title)][-1]
        raylets = [info.process.pid for info in node.all_processes.get("raylet", ())]
        ended = [*raylets, *self._below(node, "")]
        for pid in ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        return ended

    def _below(self, node: Any, title: str) -> list[int]:
        raylets = {info.process.pid for info in node.all_processes.get("raylet", ())}
        return [pid for pid, parent, name in _processes()
                if parent in raylets and name.startswith(title)]  # fmt: skip

    def add(self, cpus: int) -> None:
        """Adds a node."""
        self._cluster.add_node(num_cpus=cpus, object_store_memory=STORE)

    def wait_for_end(self, title: str, seconds: float = 120) -> list[int]:
        """Waits until there are no such processes; returns those that are left."""
        until = time.monotonic() + seconds
        while (left := self.processes(title)) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def end_actors(self, seconds: float = 5) -> None:
        """Waits until no actor and no task runs, and ends what a test that failed has left."""
        until = time.monotonic() + seconds
        while (left := self._busy()) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _busy(self) -> set[int]:
        """The processes that run an actor or a task."""
        others = (pid for title in OTHERS for pid in self.processes(title))
        return set(self.processes("ray::")).difference(others)


@contextmanager
def ray_nodes(*cpus: int) -> Iterator[Nodes]:
    """A cluster with a node for each of these numbers of CPUs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    arguments = {"object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(True, head_node_args={"num_cpus": cpus[0], **arguments})
    try:
        for n in cpus[1:]:
            cluster.add_node(num_cpus=n, object_store_memory=STORE)
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


@contextmanager
def _three() -> Iterator[Nodes]:
    with ray_nodes(1, 1, 1) as nodes:
        yield nodes


_SHARED = Lasting("ray", _three)


@pytest.fixture(scope="module")
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """The shared cluster: a head and two nodes, with a CPU each. Behind a file, nothing of its
    tests runs there any more."""
    pytest.importorskip("ray")
    nodes = _SHARED.get(request)
    yield nodes
    nodes.end_actors()


def _processes() -> Iterator[tuple[int, int, str]]:
    """The id, the parent and the title of every process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            yield int(folder.name), parent, title
