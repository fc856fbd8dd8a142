"""The counters and memory use of a context."""

from __future__ import annotations

from collections.abc import Sequence

from weft.llm.planning.plan import MemoryNeed
from weft.program import Program
from weft.records import dataclass


@dataclass(slots=True)
class Counters:
    """Counts of events since the context was created.

    After the warm-up only `graphs_reused` grows, and the last two if the cache is compacted."""

    graphs_built: int = 0
    graphs_reused: int = 0
    """Ubatches that ran a graph compiled before."""
    reserves: int = 0
    """Memory plans made."""
    reallocs: int = 0
    """Number of times that an arena had to grow."""
    compactions: int = 0
    cells_moved: int = 0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a context, in bytes."""

    weights: int
    """Weights mapped from the file; the system can drop and reread them."""
    cache: int
    """Keys, values and recurrent states."""
    compute: int
    """Intermediate results of the graphs, and copies between devices."""
    repacked: int = 0
    """Weights that were repacked on loading and no longer need the file."""
    experts: int = 0
    """Slots for experts, the others of which stay in the file."""
    scratch: int = 0
    """Scratch memory of the kernels, for all threads."""


def memory_use(needs: Sequence[MemoryNeed], programs: Sequence[Program]) -> MemoryUse:
    """The sums over all memories, and what the kernels of `programs` need."""
    return MemoryUse(
        weights=sum(n.weights for n in needs),
        cache=sum(n.cache for n in needs),
        compute=sum(n.compute + n.copies for n in needs),
        repacked=sum(sum(n.repacked.values()) for n in needs),
        experts=sum(n.experts for n in needs),
        scratch=max(program.work_bytes for program in programs),
    )
