"""The enumerations that kernel files read arguments by, written into their sources."""

from __future__ import annotations

from enum import IntEnum

from weft.graph.ops import BinaryOp, GluOp, MapOp, PadMode, PoolKind, ReduceOp, TriKind, UnaryOp

__all__ = ["Arithmetic", "Elementwise", "Kept", "enums_of"]


class Arithmetic(IntEnum):
    """What `binary` computes."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3


class Elementwise(IntEnum):
    """What `unary` computes for an op that is no UNARY. The numbers are behind those of UnaryOp."""

    SQR = 100
    SQRT = 101
    LOG = 102
    SIN = 103
    COS = 104
    SCALE = 105
    CLAMP = 106
    FILL = 107
    LEAKY_RELU = 108


class Kept(IntEnum):
    """Which elements `masked` keeps for an op that is no TRI. The numbers are behind TriKind's."""

    UP_TO_PAST = 4
    DIAGONAL = 5


_ENUMS: dict[str, tuple[type[IntEnum], ...]] = {
    "binary.cl": (Arithmetic,),
    "gather.cl": (PadMode,),
    "glu.cl": (GluOp,),
    "map.cl": (MapOp,),
    "reduce.cl": (TriKind, Kept),
    "tensor.cl": (BinaryOp,),
    "tensor_reduce.cl": (ReduceOp,),
    "unary.cl": (UnaryOp, Elementwise),
    "window.cl": (PoolKind,),
}


def enums_of(file: str) -> str:
    """The enumerations of a kernel file as C; empty for a file without."""
    lines = []
    for enum in _ENUMS.get(file, ()):
        members = ", ".join(f"{member.name} = {member.value}" for member in enum)
        lines.append(f"enum {{ {members} }};\n")
    return "".join(lines)
