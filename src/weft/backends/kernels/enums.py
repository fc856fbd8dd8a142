"""The enumerations that kernel files read arguments by, written into their sources."""

from __future__ import annotations

from enum import IntEnum

from weft.graph.ops import BinaryOp, GluOp, MapOp, PadMode, PoolKind, ReduceOp, TriKind, UnaryOp


class Fault(IntEnum):
    """The reason, recorded by a kernel, why data have no result."""

    BAD_INDEX = 0
    """An index outside 0 .. n-1."""
    BAD_WRAPPED_INDEX = 1
    """An index outside -n .. n-1, where negative ones count from the end."""
    DIVISION_BY_ZERO = 2


class Arithmetic(IntEnum):
    """The functions of `binary`."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3


class Elementwise(IntEnum):
    """The functions of `unary` for ops other than UNARY; their numbers follow the numbers of
    UnaryOp."""

    SQRT = 101
    LOG = 102
    SIN = 103
    COS = 104
    SCALE = 105
    CLAMP = 106
    FILL = 107
    LEAKY_RELU = 108


class Norm(IntEnum):
    """The functions of `norm`."""

    NORM = 0
    RMS_NORM = 1
    L2_NORM = 2


class Kept(IntEnum):
    """The elements that `masked` keeps for ops other than TRI; their numbers follow TriKind's."""

    UP_TO_PAST = 4
    DIAGONAL = 5


_ENUMS: dict[str, tuple[type[IntEnum], ...]] = {
    "binary.cl": (Arithmetic,),
    "gather.cl": (PadMode,),
    "glu.cl": (GluOp,),
    "map.cl": (MapOp,),
    "norm.cl": (Norm,),
    "reduce.cl": (TriKind, Kept),
    "tensor.cl": (BinaryOp,),
    "tensor_reduce.cl": (ReduceOp,),
    "unary.cl": (UnaryOp, Elementwise),
    "window.cl": (PoolKind,),
}


def enums_of(file: str) -> str:
    """The enumerations of a kernel file as C."""
    enums: tuple[type[IntEnum], ...] = (Fault, *_ENUMS.get(file, ()))
    lines = []
    for enum in enums:
        members = ", ".join(f"{member.name} = {member.value}" for member in enum)
        lines.append(f"enum {{ {members} }};\n")
    return "".join(lines)
