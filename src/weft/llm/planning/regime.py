"""Regimes: ranges of batch sizes with a plan each, over the same arenas.

What a device takes may depend on the batch: products from some size on, offloaded weights where
many tokens share the way. So a plan made for the largest ubatch would place a single token badly. A
context plans each range once, when it is created; after that no batch size plans anything.

    tokens   1        2 .. 31          32 .. n_ubatch
    plan     tg       small batches    pp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from weft.compiler import Plan
from weft.execute import ArenaPool, Session
from weft.graph import Graph
from weft.graph.size import evaluate
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.inputs import Inputs
from weft.llm.config import ModelConfig
from weft.program import Program

__all__ = ["BOUNDS", "Regime", "RegimePlan", "bounds", "plan_regimes"]

BOUNDS = (1, 31)
"""Most tokens of the regimes before the last. Devices that ask for big batches do so from 32 on, in
ggml too."""


class Regime:
    """A compiled graph for up to `max_tokens` tokens, its inputs and its output."""

    __slots__ = ("inputs", "max_tokens", "one_row", "output", "program", "rows", "session")

    def __init__(
        self,
        max_tokens: int,
        program: Program,
        arenas: ArenaPool,
        cache: KVCache,
        config: ModelConfig,
        session: Session | None = None,
    ) -> None:
        """`session`: one over a program like this, default: a plain one."""
        self.max_tokens = max_tokens
        self.program = program
        self.session = Session(program, arenas) if session is None else session
        program = self.session.program
        self.inputs = Inputs(self.session, cache, config)
        self.output: str = next(iter(program.outputs))
        """Name of the one output."""
        rows = program.tensors[program.outputs[self.output]]
        self.rows: NDArray[Any] | None = None
        """Its rows, where they can be read in place: flat, those of the last run."""
        if program.buffers[rows.buffer].buffer_type.is_host:
            self.rows = self.session.output_view(self.output)
        self.one_row: NDArray[Any] | None = None
        """The first of them [1, width]."""
        if self.rows is not None:
            width = evaluate(rows.ne[0], {})
            self.one_row = self.rows[:width].reshape(1, width)

    @property
    def takes_one(self) -> bool:
        """Whether a single token can be written and its row read without detours."""
        return self.inputs.takes_one and self.one_row is not None


@dataclass(frozen=True, slots=True)
class RegimePlan:
    """Where everything of a regime is."""

    max_tokens: int
    graph: Graph
    plan: Plan


def bounds(n_ubatch: int, n_devices: int) -> list[int]:
    """Most tokens of each regime, the largest first. One device places everything the same way, so
    it has one regime: kernels adapt to the batch at run time."""
    smaller = sorted({b for b in BOUNDS if b < n_ubatch}, reverse=True) if n_devices > 1 else []
    return [n_ubatch, *smaller]


def plan_regimes(
    graphs: Mapping[int, Graph], plan: Callable[[int, Graph], Plan]
) -> list[RegimePlan]:
    """The plans of graphs for up to so many tokens, the smallest first; `graphs` has the largest
    first. A smaller regime that would be placed as the next one is left out."""
    found: list[RegimePlan] = []
    for max_tokens, graph in graphs.items():
        made = RegimePlan(max_tokens, graph, plan(max_tokens, graph))
        if not found or _placement(made.plan) != _placement(found[0].plan):
            found.insert(0, made)
    return found


def _placement(plan: Plan) -> list[tuple[int, list[str], list[str]]]:
    return [
        (
            split.backend,
            [t.name for t in split.inputs],
            [node.op.name for node in split.nodes if not node.op.is_view],
        )
        for split in plan.schedule.splits
    ]
