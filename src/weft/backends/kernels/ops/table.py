"""The table of families: for each op, a rule that may refuse a node, and its launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from weft.backends.kernels.launch import Call, Launch
from weft.dtype import DType
from weft.errors import DeviceError
from weft.graph.op import find_op
from weft.graph.tensor import Tensor
from weft.program import Layout
from weft.records import dataclass

FLOATS = ("f32", "f16", "bf16")

Rule: TypeAlias = Callable[[Tensor], str | None]
"""Returns the reason why a node is refused, or None; reads metadata only."""
Launches: TypeAlias = Callable[[Call], list[Launch]]


@dataclass(frozen=True, slots=True)
class Family:
    """The rule and the launches of an op."""

    refuse: Rule
    launches: Launches


Own: TypeAlias = Mapping[str, Callable[[Call], list[Launch] | None]]
"""The launches of faster kernels that only one kind of device has, by op; None where the kernels do
not support types, sizes or layouts of the call."""


class OwnKernels(NamedTuple):
    """The kernels and fusions of one kind of device beside the table."""

    launches: Own
    joined: Mapping[tuple[str, str], Callable[[Call, Call], list[Launch] | None]]
    """The launches of two consecutive steps by their ops; the second reads the result of the
    first."""
    feeds: Callable[[DType, Layout], bool]
    """Whether products with such weights read activations in the form of `Launch.makes`."""


NO_OWN = OwnKernels({}, {}, lambda dtype, layout: False)

_TABLE: dict[str, Family] = {}


def family(*names: str, refuse: Rule) -> Callable[[Launches], Launches]:
    """Registers a function as the launches of the ops called `names`."""

    def register(launches: Launches) -> Launches:
        for name in names:
            if find_op(name).name in _TABLE:
                raise DeviceError(f"op {name} has two families of kernels")
            _TABLE[name] = Family(refuse, launches)
        return launches

    return register


def find_family(op: str) -> Family | None:
    """The family of an op, or None."""
    return _TABLE.get(op)


def source(node: Tensor, i: int) -> Tensor | None:
    """Source `i` of a node, or None."""
    return node.src[i] if i < len(node.src) else None


def floats(*which: int, result: bool = True) -> Rule:
    """A rule: these sources (absent ones do not count) and the result are floats of any size."""

    def refuse(node: Tensor) -> str | None:
        for i in which:
            t = source(node, i)
            if t is not None and t.dtype.name not in FLOATS:
                return f"source {i} must be f32, f16 or bf16, not {t.dtype.name}"
        if result and node.dtype.name not in FLOATS:
            return f"results must be f32, f16 or bf16, not {node.dtype.name}"
        return None

    return refuse


def rows_lie(t: Tensor, what: str) -> str | None:
    """The refusal of a tensor whose rows have gaps; else None."""
    if t.nb[0] != t.dtype.bytes:
        return f"rows of {what} must be contiguous"
    return None
