"""Regimes: ranges of batch sizes, each with its own plan, which share the same arenas.

Which ops a device takes may depend on the batch: some devices take products only from some size on,
or only if enough tokens share the transfer of a weight. A plan for the largest ubatch would place a
single token badly. So a context plans each range once, when it is created, and never again.

    tokens   1        2 .. 31          32 .. n_ubatch
    plan     tg       small batches    pp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from weft.records import dataclass

__all__ = ["BOUNDS", "Regime", "RegimePlan", "bounds", "plan_regimes"]

BOUNDS = (1, 31)
"""Most tokens of all regimes but the last. As in ggml, devices that need big batches take them from
32 tokens on."""


class Regime:
    """A compiled graph for up to `max_tokens` tokens, its inputs and its output."""

    __slots__ = ("inputs", "max_tokens", "one_row", "output", "program", "rows", "session",
                 "states")  # fmt: skip

    def __init__(
        self,
        max_tokens: int,
        program: Program,
        arenas: ArenaPool,
        cache: KVCache,
        config: ModelConfig,
        session: Session | None = None,
    ) -> None:
        """`session` runs a program with the inputs and outputs of `program`; None: a plain one."""
        self.max_tokens = max_tokens
        self.program = program
        self.session = Session(program, arenas) if session is None else session
        program = self.session.program
        self.inputs = Inputs(self.session, cache, config)
        self.output: str = next(name for name in program.outputs if name != "states")
        """Name of the output with the rows that `decode` returns."""
        self.states: NDArray[Any] | None = None
        """What the output projection reads of the tokens of the last run [n_tokens * n_embd], if
        the graph keeps it."""
        if "states" in program.outputs:
            self.states = self.session.output_view("states")
        rows = program.tensors[program.outputs[self.output]]
        self.rows: NDArray[Any] | None = None
        """The output of the last run [rows * width], or None if it cannot be read in place."""
        if program.buffers[rows.buffer].buffer_type.is_host:
            self.rows = self.session.output_view(self.output)
        self.one_row: NDArray[Any] | None = None
        """The first row of it [1, width]."""
        if self.rows is not None:
            width = evaluate(rows.ne[0], {})
            self.one_row = self.rows[:width].reshape(1, width)

    @property
    def takes_one(self) -> bool:
        """True if a single token can be written, and its row read, directly in memory."""
        return self.inputs.takes_one and self.one_row is not None


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
