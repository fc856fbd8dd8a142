"""Regimes: ranges of batch sizes, each with its own plan, which share the same arenas.

Which ops a device takes may depend on the batch: some devices take products only from some size on,
or only if enough tokens share the transfer of a weight. A plan for the largest ubatch would place a
single token badly. So a context plans each range once, when it is created, and never again.

    tokens   1        2 .. 31          32 .. n_ubatch
    plan     tg       small batches    pp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.compiler import Plan
from weft.graph import Graph
from weft.records import dataclass

__all__ = ["BOUNDS", "RegimePlan", "bounds", "plan_regimes"]

BOUNDS = (1, 31)
"""Maximum number of tokens of each regime but the last. As in ggml, devices that need big batches
take them from 32 tokens on."""


@dataclass(frozen=True, slots=True)
class RegimePlan:
    """The graph and the plan of a regime for up to `max_tokens` tokens."""

    max_tokens: int
    graph: Graph
    plan: Plan


def bounds(n_ubatch: int, n_devices: int) -> list[int]:
    """The most tokens of each regime, the largest first. A single device takes all batch sizes, so
    it has one regime; its kernels adapt to the batch at run time."""
    smaller = sorted({b for b in BOUNDS if b < n_ubatch}, reverse=True) if n_devices > 1 else []
    return [n_ubatch, *smaller]


def plan_regimes(
    graphs: Mapping[int, Graph], plan: Callable[[int, Graph], Plan]
) -> list[RegimePlan]:
    """Plans `graphs`, which are given by their most tokens, the largest first.

    Returns the regimes with the smallest first, leaving out those that would be placed like the
    next larger one."""
    regimes: list[RegimePlan] = []
    for max_tokens, graph in graphs.items():
        regime = RegimePlan(max_tokens, graph, plan(max_tokens, graph))
        if not regimes or _placement(regime.plan) != _placement(regimes[0].plan):
            regimes.insert(0, regime)
    return regimes


def _placement(plan: Plan) -> list[tuple[int, list[str], list[str]]]:
    return [
        (
            split.backend,
            [t.name for t in split.inputs],
            [node.op.name for node in split.nodes if not node.op.is_view],
        )
        for split in plan.schedule.splits
    ]
