"""`Op`, a row of the op table, and the decorator by which `weft.graph.ops` declares every op.

The order of declarations numbers the ops for native code, which is compiled from this table
(`native_header.py`). Files name ops, so that the numbers may change.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any, TypeAlias, TypeVar

from weft.errors import GraphError
from weft.graph.params import Params
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """The cost of an op that is a product, as a formula that native code computes, too."""

    formula: Callable[[Any, Any, Any], Any]
    """A function of `n`, the elements of the result, `s`, the sizes of the sources
    (`weft.graph.costs.Sizes`), and `p`, the record; it uses numbers, + - * and / alone."""
    of_weights: bool = True
    """The speed depends on the type of a weight."""
    moved: Callable[..., float] | None = None
    """The bytes that a node moves, from the values of symbols; None: the bytes of all its
    tensors."""


Cost: TypeAlias = float | MultiplyAdds | Callable[..., Any]
"""The work of a node: operations for each element of the result (0: data only move), multiply-adds,
or a function of `weft.graph.costs`."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row of the op table; compared by identity."""

    name: str
    number: int
    min_src: int
    max_src: int
    is_view: bool = False
    """The result shares the memory of its first source, without work."""
    can_inplace: bool = False
    """The result may be computed in place over a source's memory."""
    params: type[Params] | None = None
    params_optional: bool = False
    """A node may be without the record."""
    cost: Cost = 1.0
    constructor: Callable[..., Any] | None = None

    def takes(self, params: object) -> bool:
        """Whether `params` is a parameter record that a node of this op may have; None is no
        record."""
        if params is None:
            return self.params is None or self.params_optional
        return type(params) is self.params

    def __repr__(self) -> str:
        return self.name


NONE = Op("NONE", 0, 0, 10)
"""The op of every leaf."""

OPS: dict[str, Op] = {"NONE": NONE}

F = TypeVar("F", bound=Callable[..., Any])


def declares(
    name: str,
    *,
    sources: tuple[int, int] | None = None,
    view: bool = False,
    inplace: bool = False,
    params: type[Params] | None = None,
    params_optional: bool = False,
    cost: Cost = 1.0,
) -> Callable[[F], F]:
    """Decorates the constructor of the op called `name`, and puts the op into the table.

    `sources` are the least and the largest number of sources; by default they follow from the
    constructor's parameters of type Tensor (those that may be None can be absent). The other
    arguments are fields of `Op`. The function itself stays unchanged, so that making a node takes
    no longer."""

    def enter(constructor: F) -> F:
        if name in OPS:
            raise GraphError(f"op {name} is declared twice")
        least, most = _count_sources(constructor) if sources is None else sources
        row = (least, most, view, inplace, params, params_optional, cost, constructor)
        OPS[name] = Op(name, len(OPS), *row)
        return constructor

    return enter


def _count_sources(constructor: Callable[..., Any]) -> tuple[int, int]:
    types = [type_text(t) for name, t in constructor.__annotations__.items() if name != "return"]
    needed = types.count("Tensor")
    return needed, needed + types.count("Tensor | None")


def type_text(annotation: Any) -> str:
    """An annotation as source text, also where its module does not keep annotations as text."""
    if isinstance(annotation, str):
        return annotation
    is_class = isinstance(annotation, type) and not isinstance(annotation, GenericAlias)
    return str(annotation.__name__ if is_class else annotation).replace("weft.graph.tensor.", "")


def find_op(name: str) -> Op:
    """The row called `name`; raises GraphError when the table has none."""
    op = OPS.get(name)
    if op is None:
        raise GraphError(f"unknown op {name!r}; known ops: {', '.join(OPS)}")
    return op
