"""The needs of a node's kernels, counted in their launches: nothing is listed by op."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from weft.backends.kernels.launch import Call, Launch, Limits, Scratch, Slot, Table, View
from weft.backends.kernels.ops import OwnKernels, find_family
from weft.dtype import DType
from weft.graph.size import Size, lower
from weft.graph.tensor import Tensor

_Sizes = tuple[Size, ...]
_Form = tuple[DType, _Sizes, _Sizes]
"""Type, sizes and strides of a tensor."""


def buffers(node: Tensor, limits: Limits, own: OwnKernels) -> int:
    """The most buffers that a kernel of the node reads and writes; 0 where it needs no kernel.

    Sizes with symbols count as the smallest."""
    sources = tuple(None if t is None else _form(t) for t in node.src)
    return _buffers(node.op.name, node.params, _form(node), sources, limits, own.launches.get)


def computed_types(node: Tensor) -> set[str]:
    """The types of the numbers with which kernels of the node compute."""
    family = find_family(node.op.name)
    return set() if family is None else {t.dtype.name for t in family.computed(node)}


def _form(t: Tensor) -> _Form:
    return t.dtype, tuple(t.ne), tuple(t.nb)


@lru_cache(maxsize=1024)
def _buffers(
    op: str, params: Any, result: _Form, sources: tuple[_Form | None, ...], limits: Limits, own: Any
) -> int:
    family = find_family(op)
    if family is None:
        return 0
    views = [None if form is None else _view(form) for form in sources]
    call = Call(op, _view(result), tuple(views), params, limits)
    if 0 in call.dst.ne:
        return 0
    special = own(op)
    launches = None if special is None else special(call)
    if launches is None:
        launches = family.launches(call)
    return max(map(_buffers_of, launches), default=0)


def _view(form: _Form) -> View:
    dtype, ne, nb = form
    sizes = tuple(n if isinstance(n, int) else max(1, lower(n)) for n in ne)
    strides = tuple(n if isinstance(n, int) else lower(n) for n in nb)
    return View(dtype, sizes, strides, 0, None)


def _buffers_of(launch: Launch) -> int:
    kinds = (View, Scratch, Table)
    return sum(isinstance(arg, kinds) or arg is Slot.FAULT for arg in launch.args)
