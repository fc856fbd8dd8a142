"""The needs of a node's kernels, counted in their launches: nothing is listed by op."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from weft.backends.kernels.assembly import codebooks
from weft.backends.kernels.launch import Call, Launch, Limits, Scratch, Slot, Table, View
from weft.backends.kernels.ops import OwnKernels, find_family
from weft.backends.kernels.windows import launches_of
from weft.dtype import DType
from weft.graph.size import Size, lower, upper
from weft.graph.tensor import Tensor

_Sizes = tuple[Size, ...]
_Form = tuple[DType, _Sizes, _Sizes]
"""Type, sizes and strides of a tensor."""


def buffers(node: Tensor, limits: Limits, own: OwnKernels) -> int:
    """The most buffers that a kernel of the node reads and writes, with one for its codebooks; 0
    where it needs no kernel.

    Sizes with symbols count as the smallest."""
    return _buffers(*_key(node, limits, own))


def largest(node: Tensor, limits: Limits, own: OwnKernels) -> int:
    """The bytes of the largest tensor or scratch memory that a kernel of the node has at once, in
    pieces where it is cut. Sizes with symbols count as the largest."""
    return _largest(*_key(node, limits, own))


def _key(node: Tensor, limits: Limits, own: OwnKernels) -> tuple[Any, ...]:
    sources = tuple(None if t is None else _form(t) for t in node.src)
    return node.op.name, node.params, _form(node), sources, limits, own.launches.get


def computed_types(node: Tensor) -> set[str]:
    """The types of the numbers with which kernels of the node compute."""
    family = find_family(node.op.name)
    return set() if family is None else {t.dtype.name for t in family.computed(node)}


def _form(t: Tensor) -> _Form:
    return t.dtype, tuple(t.ne), tuple(t.nb)


@lru_cache(maxsize=1024)
def _buffers(*node: Any) -> int:
    return max(map(_buffers_of, _launches(lower, *node)), default=0)


@lru_cache(maxsize=1024)
def _largest(*node: Any) -> int:
    launches = _launches(upper, *node)
    return max((_bytes_of(arg) for launch in launches for arg in launch.args), default=0)


def _launches(
    bound: Callable[[Size], int],
    op: str,
    params: Any,
    result: _Form,
    sources: tuple[_Form | None, ...],
    limits: Limits,
    own: Any,
) -> list[Launch]:
    """The launches of a node whose symbols have their smallest or largest values."""
    if find_family(op) is None:
        return []
    views = [None if form is None else _view(form, bound) for form in sources]
    return launches_of(Call(op, _view(result, bound), tuple(views), params, limits), own)


def _view(form: _Form, bound: Callable[[Size], int]) -> View:
    dtype, ne, nb = form
    sizes = tuple(n if isinstance(n, int) else max(1, bound(n)) for n in ne)
    strides = tuple(n if isinstance(n, int) else bound(n) for n in nb)
    return View(dtype, sizes, strides, 0, None)


def _bytes_of(arg: Any) -> int:
    return arg.nbytes if isinstance(arg, View | Scratch) else 0


def _buffers_of(launch: Launch) -> int:
    kinds = (View, Scratch, Table)
    n = sum(isinstance(arg, kinds) or arg is Slot.FAULT for arg in launch.args)
    return n + bool(codebooks(launch.defines))
