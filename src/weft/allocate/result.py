"""`Allocation`: the memory of each tensor of a schedule; `uses`: when it needs that memory."""

from __future__ import annotations

from typing import Any

from weft.errors import ScheduleError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.result import Schedule


@dataclass(frozen=True, slots=True)
class Placement:
    """Bytes `offset` .. `offset + size` of chunk `chunk` of arena `arena`; `size` is unpadded."""

    arena: int
    chunk: int
    offset: int
    size: int

    def __str__(self) -> str:
        return f"bytes {self.offset}..{self.offset + self.size} of chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory of one buffer type, shared by every backend that uses the type."""

    buffer_type: Any
    chunks: tuple[int, ...]
    """Bytes of each block; one, unless the type limits a block's size."""
    lower_bound: int
    """The largest sum of bytes that are in use at the same time: no plan can be smaller."""
    planner: str = ""

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunks)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory plan of a schedule."""

    arenas: tuple[Arena, ...]
    place: dict[Tensor, Placement]
    """Place of every final tensor that has memory of its own. Views, and tensors that had memory
    before, are not in it."""
    arena_of: tuple[int, ...]
    """Arena of the buffer type of each backend of the schedule."""

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
        return self.place.get(tensor.base)

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


def uses(schedule: Schedule) -> tuple[list[tuple[int, Tensor]], dict[Tensor, int]]:
    """The node at which each value without memory of its own is written (sorted; -1: before the
    run), and the last node that needs the value.

    `validate` and reports use this. Planners have `lifetimes`, so that the one checks the other."""
    nodes, until = schedule.plan_nodes, dict[Tensor, int]()
    written = {leaf: -1 for leaf in schedule.plan_leaves if _is_planned(leaf)}
    read = {src for node in nodes for src in node.src if src is not node}
    filled = {node.view_src for node in nodes if not (node.op.is_view or node.op is NONE)}
    for i, node in enumerate(nodes):
        if _is_planned(node):
            role = schedule.roles.get(node)
            if role is not None and role.kind == "copy":
                start = i - 1
            else:
                start = -1 if node.op is NONE or node.is_input else i
            written.setdefault(node, start)
        if node.op.is_view:
            continue
        for src in node.src:
            if src is not None and src is not node and not _is_empty(src, filled):
                until[src.base] = i
        if node.op is not NONE:
            until[node.base] = i
    for tensor in (*nodes, *schedule.plan_leaves):
        if tensor.is_output or (tensor.op is not NONE and tensor not in read):
            until[tensor.base] = len(nodes)
    for tensor, start in written.items():
        until.setdefault(tensor, start)
    return sorted(((at, t) for t, at in written.items()), key=lambda write: write[0]), until


def replaces(node: Tensor, src: Tensor) -> bool:
    """Whether `node` may be computed in place over `src`, given that it is the last reader."""
    alike = src.dtype is node.dtype and src.ne == node.ne and src.nb == node.nb
    readers = [s for s in node.src if s is not None and s.base is src]
    return node.op.can_inplace and alike and not src.is_output and readers == [src]


def _is_planned(tensor: Tensor) -> bool:
    return tensor.base is tensor and tensor.buffer is None


def _is_empty(tensor: Tensor, filled: set[Tensor | None]) -> bool:
    """Whether a leaf views a leaf that is not an input, so that nobody has set its value."""
    base = tensor.view_src
    if base is None or base in filled or base.flags:
        return False
    return tensor.op is NONE and base.op is NONE
