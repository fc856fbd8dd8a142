"""The options of commands that use the machines of a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.command import MACHINES, usage_error
from weft.cli.replaced import parameters_of, replaces
from weft.records import dataclass

__all__ = ["OnRay", "ray_flags"]


@dataclass(frozen=True, slots=True)
class OnRay:
    """The options as they were typed."""

    address: str
    replicas: str | None

    def number(self) -> tuple[int, int]:
        """The least and the most replicas: those of `--replicas`, or one for each machine. The
        cluster must be joined."""
        from weft.cluster.ray_cluster import machines
        from weft.serve.replicas.options import parse_replicas

        if self.replicas is not None:
            return parse_replicas(self.replicas)
        n = max(sum(machine.cpus > 0 for machine in machines()), 1)
        return n, n


def _arguments(
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="[ADDRESS]", rich_help_panel=MACHINES,
            help="Replicas of the model on the machines of a Ray cluster: HOST:PORT of its head; "
            "without an address the one that runs here, else one of this machine alone.",
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN..MAX", rich_help_panel=MACHINES,
            help="With --ray, the number of replicas, or the least and the most, between which it "
            "follows the load. Default: one for each machine.",
        ),
    ] = None,
) -> OnRay | None:  # fmt: skip
    """What was asked for; None: nothing."""
    if ray is None:
        if replicas is not None:
            raise usage_error("--replicas is for many machines; give --ray, too")
        return None
    return OnRay(ray, replicas)


ray_flags = replaces("on_ray", parameters_of(_arguments), _arguments)
"""Replaces the parameter `on_ray` of a command by the options of this module."""
