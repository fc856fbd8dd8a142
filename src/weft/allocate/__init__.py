"""Every byte, ahead of time: `allocate(schedule) -> Allocation`."""

from weft.allocate.graph_allocator import GraphAllocator
from weft.allocate.plan import Memory, allocate, place_lines
from weft.allocate.result import Allocation, Arena, Placement
from weft.allocate.validate import validate

__all__ = [
    "Allocation",
    "Arena",
    "GraphAllocator",
    "Memory",
    "Placement",
    "allocate",
    "place_lines",
    "validate",
]
