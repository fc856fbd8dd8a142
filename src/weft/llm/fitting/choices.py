"""Groups of tensors that get one type, and the types that each may get.

A group is a tensor, or in models of many tensors the tensors of one role in consecutive layers, so
that there are at most `MOST_GROUPS` to measure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from weft import quants
from weft.dtype import DTYPES, DType
from weft.errors import UnsupportedOpError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.imatrix_file import Importance
from weft.frontends.gguf.mixes import MIXES, Choices, is_quantized, named_type, needs_imatrix
from weft.frontends.gguf.tensors import TensorInfo
from weft.quants.native_rows import NEEDS_WEIGHTS, can_convert
from weft.records import dataclass

MOST_GROUPS = 256
"""Maximum number of groups; in larger models the groups of several layers join."""

TYPES = (
    "q8_0", "q6_K", "q5_K", "q5_1", "q5_0", "q4_K", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "mxfp4",
    "nvfp4", "q3_K", "iq3_s", "iq3_xxs", "q2_K", "iq2_s", "iq2_xs", "iq2_xxs", "q2_0", "iq1_m",
    "iq1_s", "q1_0",
)  # fmt: skip
"""Types that tensors may get, in falling order of bits."""
_FLOATS = ("f16", "bf16")


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that get the same type."""

    name: str
    tensors: tuple[str, ...]
    types: tuple[DType, ...]
    """The types that the group may get. The first is the type in the file, if all its tensors have
    the same."""
    before: DType
    """The type of the first tensor in the file."""

    @property
    def is_kept(self) -> bool:
        """Whether one of the types is the one that the tensors have."""
        return self.before in self.types


def groups_of(
    file: GGUFFile,
    choices: Choices | None = None,
    types: Sequence[str] = TYPES,
    most: int = MOST_GROUPS,
    importance: Importance | None = None,
) -> list[Group]:
    """The groups of the tensors of `file` that are quantized, in the order of the file.

    `choices` are types that a user chose: a tensor for which they name a type has no other. Types
    that are of no use without an importance matrix need `importance`. Raises UnsupportedOpError if
    there is nothing to choose."""
    arch = file.architecture
    choices = choices or Choices()
    tensors = [
        t
        for t in file.tensors.values()
        if is_quantized(t, arch) and not (choices.leave_output and t.name == "output.weight")
    ]
    if not tensors:
        raise UnsupportedOpError(f"{file.path.name} has no matrices that could have another type")
    allowed = {t.name: _types(t, choices, types, importance) for t in tensors}
    groups = [
        Group(_name(part), tuple(t.name for t in part), _common(part, allowed), part[0].dtype)
        for part in _joined(tensors, allowed, most)
    ]
    if all(len(group.types) == 1 for group in groups):
        raise UnsupportedOpError(
            f"{file.path.name}: every matrix has a single type to choose from; name fewer types "
            "(--tensor-type, --fit-types), or give a file of f16 or q8_0"
        )
    return groups


def _types(
    t: TensorInfo, choices: Choices, names: Sequence[str], importance: Importance | None
) -> tuple[DType, ...]:
    """The type that a tensor has, and all that are smaller."""
    named = named_type(t, choices)
    if named is not None:
        return (named,)
    found = [t.dtype]
    weighted = importance is not None and importance.of(t) is not None
    for name in (*_FLOATS, *names) if t.dtype.name == "f32" else names:
        dtype = DTYPES[name]
        if t.ne[0] % dtype.block or not _can_write(t, dtype, weighted):
            continue
        if dtype.row_bytes(t.ne[0]) < t.dtype.row_bytes(t.ne[0]):
            found.append(dtype)
    return tuple(found)


def _can_write(t: TensorInfo, dtype: DType, weighted: bool) -> bool:
    if not weighted and (
        dtype.name in NEEDS_WEIGHTS or needs_imatrix(t.name, dtype, MIXES["Q8_0"])
    ):
        return False
    return quants.can_encode(dtype) or can_convert(t.dtype, dtype, weighted=weighted)


def _joined(
    tensors: Sequence[TensorInfo], allowed: Mapping[str, Sequence[DType]], most: int
) -> Iterable[list[TensorInfo]]:
    """Tensors one by one, or of several layers together, so that there are at most `most`
    groups."""
    for n_layers in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 1 << 30):
        groups: dict[tuple[object, ...], list[TensorInfo]] = {}
        for t in tensors:
            layer = re.match(r"blk\.(\d+)\.(.*)", t.name)
            role = layer[2] if layer else t.name
            part = int(layer[1]) // n_layers if layer else -1
            key = (role, part, t.dtype.name, tuple(d.name for d in allowed[t.name]))
            groups.setdefault(key, []).append(t)
        if len(groups) <= most or n_layers == 1 << 30:
            return groups.values()
    raise AssertionError


def _common(
    part: Sequence[TensorInfo], allowed: Mapping[str, tuple[DType, ...]]
) -> tuple[DType, ...]:
    return allowed[part[0].name]  # the same for all: they are part of the key


def _name(part: Sequence[TensorInfo]) -> str:
    if len(part) == 1:
        return part[0].name
    first, last = (re.match(r"blk\.(\d+)\.(.*)", t.name) for t in (part[0], part[-1]))
    assert first and last
    return f"blk.{first[1]}-{last[1]}.{first[2]}"
