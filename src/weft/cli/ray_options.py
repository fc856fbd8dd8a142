"""The options of commands that use the machines of a Ray cluster."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from weft.cli.command import MACHINES, usage_error
from weft.cli.groups import Group
from weft.errors import WeftError
from weft.extras import how_to_install
from weft.options import option
from weft.records import dataclass

MOST_REPLICAS = 1000


@dataclass(frozen=True, slots=True)
class OnRay:
    """The options as they were typed."""

    address: str
    replicas: tuple[int, int] | None
    """The least and the most."""

    def number(self) -> tuple[int, int]:
        """The least and the most replicas: those of `--replicas`, or one for each machine. The
        cluster must be joined."""
        from weft.cluster.ray_cluster import machines

        if self.replicas is not None:
            return self.replicas
        n = max(sum(machine.cpus > 0 for machine in machines()), 1)
        return n, n


class RayFlags(Group):
    """The machines of a Ray cluster. The command gets `OnRay`; None: nothing was asked for."""

    ray: str | None = option(
        None,
        "Replicas of the model on the machines of a Ray cluster: HOST:PORT of its head; without "
        "an address the one that runs here, else one of this machine alone.", panel=MACHINES,
        metavar="[ADDRESS]",
    )  # fmt: skip
    replicas: str | None = option(
        None,
        "With --ray, the number of replicas, or the least and the most, between which it follows "
        "the load. Default: one for each machine.", panel=MACHINES, metavar="N|MIN..MAX",
    )  # fmt: skip

    def made(self, given: Mapping[str, Any]) -> OnRay | None:
        """The replicas that the flags ask for."""
        if self.ray is None:
            if self.replicas is not None:
                raise usage_error("--replicas is for many machines; give --ray, too")
            return None
        return OnRay(self.ray, None if self.replicas is None else parse_replicas(self.replicas))


def parse_replicas(text: str) -> tuple[int, int]:
    """The least and the most replicas of `4` or `2..8`."""
    match = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text.strip())
    least = int(match[1]) if match else 0
    most = int(match[2] or match[1]) if match else 0
    if not 1 <= least <= most <= MOST_REPLICAS:
        raise usage_error(
            f"--replicas {text[:40]}: give a number, or the least and the most, of 1 to "
            f"{MOST_REPLICAS}, e.g. 4 or 2..8"
        )
    return least, most


def server_package(who: str, on_ray: OnRay | None) -> Any:
    """The package of the server, which commands without it do not import.

    Raises WeftError, which begins with `who` ("the server needs"), if a package is missing."""
    try:
        return importlib.import_module("weft.serve")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("weft"):
            raise
        extra = how_to_install("serve" if on_ray is None else "ray")
        raise WeftError(f"{who} {error.name}; {extra}") from None
