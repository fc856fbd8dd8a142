"""`Allocation`: the memory of each tensor of a schedule."""

from __future__ import annotations

from typing import Any

from weft.errors import ScheduleError
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.records import dataclass

__all__ = ["Allocation", "Arena", "Placement", "padded", "without_device"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Bytes `offset` .. `offset + size` of chunk `chunk` of arena `arena`; `size` is unpadded."""

    arena: int
    chunk: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory of one buffer type, shared by every backend that uses the type."""

    buffer_type: Any
    chunks: tuple[int, ...]
    """Bytes of each block; one, unless the type limits a block's size."""
    lower_bound: int
    """The largest sum of bytes that are in use at the same time: no plan can be smaller."""
    planner: str = ""
    """The name of the planner that found this arena's plan."""

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunks)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory plan of a schedule."""

    arenas: tuple[Arena, ...]
    place: dict[Tensor, Placement]
    """Final tensor -> place, for every tensor that has memory of its own. Views, and tensors that
    had memory before, are not in it."""
    arena_of: tuple[int, ...]
    """Per backend of the schedule, the arena of its buffer type."""

    @property
    def total(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.size for arena in self.arenas)

    @property
    def lower_bound(self) -> int:
        """Sum of the arenas' lower bounds."""
        return sum(arena.lower_bound for arena in self.arenas)

    def find(self, tensor: Tensor) -> Placement | None:
        """The place of a final tensor or, for a view, of its base; None for memory that existed
        before."""
        base = tensor if tensor.view_src is None else tensor.view_src
        return self.place.get(base)

    def explain(self) -> str:
        """A line per arena: its bytes, chunks, lower bound and planner."""
        lines = []
        for arena in self.arenas:
            over = arena.size / arena.lower_bound - 1 if arena.lower_bound else 0.0
            lines.append(
                f"{arena.buffer_type.name}: {arena.size:,} B in {len(arena.chunks)} chunks, "
                f"{over:.1%} above the {arena.lower_bound:,} B in use at the peak"
                + (f" ({arena.planner})" if arena.planner else "")
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data: `arenas`, `total`, `lower_bound`."""
        return {
            "arenas": [
                {
                    "memory": arena.buffer_type.name,
                    "bytes": arena.size,
                    "chunks": list(arena.chunks),
                    "peak": arena.lower_bound,
                    "planner": arena.planner,
                }
                for arena in self.arenas
            ],
            "total": self.total,
            "lower_bound": self.lower_bound,
        }


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment` (a power of two)."""
    return (size + alignment - 1) & -alignment


def without_device(tensor: Tensor) -> ScheduleError:
    """The error of a tensor that needs memory and that no pass gave a device."""
    return ScheduleError(
        f"{describe(tensor)} has no device: it has no memory, is no input, and only views read it; "
        "mark it as an input or assign it to a device"
    )
