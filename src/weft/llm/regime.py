"""Regimes: ranges of batch sizes with a plan each, over the same arenas.

What a device takes may depend on the batch: products from some size on, offloaded weights where
many tokens share the way. So a plan made for the largest ubatch would place a single token badly. A
context plans each range once, when it is created; after that no batch size plans anything.

    tokens   1        2 .. 31          32 .. n_ubatch
    plan     tg       small batches    pp
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.compile import compile
from weft.execute import ArenaPool, Session
from weft.graph import Graph
from weft.program import Program

__all__ = ["BOUNDS", "Regime", "plan_regimes"]

BOUNDS = (1, 31)
"""Most tokens of the regimes before the last. Devices that ask for big batches do so from 32 on, in
ggml too."""


class Regime:
    """A compiled graph for up to `max_tokens` tokens, and the views that its inputs are written
    to."""

    __slots__ = ("inputs", "max_tokens", "on_host", "output", "program", "session")

    def __init__(self, max_tokens: int, program: Program, arenas: ArenaPool) -> None:
        self.max_tokens = max_tokens
        self.program = program
        self.session = Session(program, arenas)
        self.inputs: dict[str, NDArray[Any]] = {
            name: self.session.input_view(name) for name in program.inputs
        }
        self.output: str = next(iter(program.outputs))
        """Name of the one output."""
        rows = program.tensors[program.outputs[self.output]]
        self.on_host = program.buffers[rows.buffer].buffer_type.is_host
        """Whether its rows can be read in place."""


def plan_regimes(
    build: Callable[[int], Graph], backends: Sequence[Backend], n_ubatch: int
) -> list[tuple[int, Program]]:
    """(most tokens, program) of each regime, the smallest first. `build` makes the graph for up to
    so many tokens.

    A smaller regime that would be placed as the next one is left out: kernels adapt to the batch
    at run time. One device places everything the same way, so it has one regime."""
    programs = [(n_ubatch, compile(build(n_ubatch), backends))]
    if len(backends) > 1:
        for bound in sorted({b for b in BOUNDS if b < n_ubatch}, reverse=True):
            program = compile(build(bound), backends)
            if _placement(program) != _placement(programs[0][1]):
                programs.insert(0, (bound, program))
    return programs


def _placement(program: Program) -> list[tuple[str, int, list[str]]]:
    return [(s.device, len(s.copies), [step.op.name for step in s.steps]) for s in program.splits]
