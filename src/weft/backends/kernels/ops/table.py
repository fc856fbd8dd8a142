"""The table of families: for each op, a rule that may refuse a node, and its launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


Computed: TypeAlias = Callable[[Tensor], Sequence[Tensor]]
"""The sources and results of a node with whose numbers kernels compute, in the type that they
have: others are indices, or moved as bytes, or floats."""

WHOLE = ("i8", "i16", "i32", "i64")
NUMBERS = (*FLOATS, *WHOLE)


class Numbers:
    """A rule: these sources (absent ones do not count) and the result are not f64 or blocks.

    Kernels compute with these sources, and with the result unless it is an index."""

    def __init__(self, *which: int, index: bool = False) -> None:
        self._which = which
        self._index = index

    def __call__(self, node: Tensor) -> str | None:
        """The refusal of a node, or None."""
        for t in (*self._sources(node), node):
            if t.dtype.name not in NUMBERS:
                return f"no kernel computes with {t.dtype.name}"
        return None

    def computed(self, node: Tensor) -> Sequence[Tensor]:
        """The tensors that are numbers to kernels."""
        return [*self._sources(node), *([] if self._index else [node])]

    def _sources(self, node: Tensor) -> list[Tensor]:
        return [t for i in self._which if (t := source(node, i)) is not None]


@dataclass(frozen=True, slots=True)
class Family:
    """The rule and the launches of an op, and the numbers that it computes with."""

    refuse: Rule
    launches: Launches
    computed: Computed


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


def family(
    *names: str, refuse: Rule, computed: Computed | None = None
) -> Callable[[Launches], Launches]:
    """Registers a function as the launches of the ops called `names`; `computed` is by default
    what the rule says, if it is one of `Numbers`."""
    if computed is None:
        computed = refuse.computed if isinstance(refuse, Numbers) else _nothing

    def register(launches: Launches) -> Launches:
        for name in names:
            if find_op(name).name in _TABLE:
                raise DeviceError(f"op {name} has two families of kernels")
            _TABLE[name] = Family(refuse, launches, computed)
        return launches

    return register


def _nothing(node: Tensor) -> Sequence[Tensor]:
    return ()


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
