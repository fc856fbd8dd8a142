"""Questions of a client about a worker's kernels, where it has no such kernels itself.

    refusal op dst [src, ..] [parameter, ..] layout -> a sentence or null
    scratch_bytes op dst [src, ..] [parameter, ..] threads -> bytes
    activation_type type -> type
    interleaved_types, level_types, lookup_types -> [type, ..]

A tensor is `[type, [ne, ..], [nb, ..]]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends import Backend
from weft.backends.remote.encode import op_numbered, params_of, whole
from weft.dtype import dtype_from_id
from weft.errors import DeviceError
from weft.graph.params import pack
from weft.program import LAYOUTS

__all__ = ["answered"]

_TYPES = ("interleaved_types", "level_types", "lookup_types")
_MOST = 1 << 40


def answered(backend: Backend, question: object, values: Sequence[Any]) -> Any:
    """The answer of the kernels of a cpu. Raises DeviceError or ValueError for other
    questions."""
    from weft.backends.cpu import CpuBackend
    from weft.native import _native

    if not isinstance(backend, CpuBackend):
        raise DeviceError(f"{backend.name} answers no questions about kernels")
    target = backend.target
    if question in _TYPES:
        return sorted(getattr(_native, str(question))(target))
    if question == "activation_type":
        (type_id,) = values
        return int(_native.activation_type(target, _type(type_id)))
    if question not in ("refusal", "scratch_bytes"):
        raise DeviceError(f"there is no question {str(question)[:40]!r}")
    number, dst, src, slots, last = values
    op = op_numbered(number)
    if op.is_view or not isinstance(src, list) or len(src) > op.max_src:
        raise ValueError(f"{op.name} is not asked about so")
    params = pack(params_of(op, slots)) if slots else []
    if not params and op.params is not None and not op.params_optional:
        raise ValueError(f"{op.name} has parameters")
    given = (target, op.number, _tensor(dst), [_tensor(s) for s in src], params)
    if question == "scratch_bytes":
        return int(_native.scratch_bytes(*given, whole(last, 1, 4096, "threads")))
    return _native.refusal(*given, layout=whole(last, 0, len(LAYOUTS) - 1, "a layout"))


def _type(value: object) -> int:
    number = whole(value, 0, 1 << 16, "a type")
    if dtype_from_id(number) is None:
        raise ValueError(f"there is no type {number}")
    return number


def _tensor(value: object) -> tuple[int, list[int], list[int]]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a tensor is a type, sizes and strides")
    type_id, ne, nb = value
    if ne == [] and nb == []:
        return (0, [], [])
    sizes: list[list[int]] = []
    for part in (ne, nb):
        if not isinstance(part, list) or len(part) != 4:
            raise ValueError("a tensor has four sizes and strides")
        sizes.append([whole(n, 0, _MOST, "a size") for n in part])
    return (_type(type_id), sizes[0], sizes[1])
