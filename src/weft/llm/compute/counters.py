"""What a context counts: plans made, bytes taken."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "MemoryUse"]


@dataclass(slots=True)
class Counters:
    """What planning cost so far. After warm-up none but `graphs_reused` grows, and where a cache is
    compacted, the last two."""

    graphs_built: int = 0
    graphs_reused: int = 0
    reserves: int = 0
    """Times that memory was planned."""
    reallocs: int = 0
    """Times that an arena had to grow."""
    compactions: int = 0
    """Times that cells moved together, see `Context.compact`."""
    cells_moved: int = 0
    """Cells that moved then."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that a context's plan takes."""

    weights: int
    """Mapped from the file; the system can drop and read them again."""
    cache: int
    compute: int
    repacked: int = 0
    """Weights that were repacked at load and no longer need the file."""
    scratch: int = 0
    """Of the kernels, all threads."""
