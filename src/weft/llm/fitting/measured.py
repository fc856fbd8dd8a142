"""The divergence that each group in each type causes alone, measured on a text.

Three manners, from the dearest to the cheapest:

- `each` changes one group to one type, all else as it is, and measures the divergence: for every
  group and type.
- `scaled` does so once for each group, and takes the divergence in other types in proportion to
  their squared error, weighted by an importance matrix where there is one.
- `error` measures no divergence: the squared error itself stands for it.

Choices add up what groups cause alone. That holds where the sum is small: divergence grows with the
square of a change, and the changes of different groups have little to do with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import ArgumentError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.importance import Importance
from weft.frontends.gguf.quantize import convert_tensor, would_be
from weft.frontends.gguf.tensors import TensorInfo
from weft.llm.fitting.baseline import Held
from weft.llm.fitting.choices import Group
from weft.llm.fitting.measurements import Kept
from weft.llm.model import Model
from weft.llm.quality.divergence import KLDivergence

__all__ = ["MANNERS", "Manner", "Sensitivities", "divergence_of", "measure", "n_probes",
           "relative_error"]  # fmt: skip

Manner: TypeAlias = Literal["each", "scaled", "error"]
MANNERS: tuple[Manner, ...] = get_args(Manner)

Sensitivities: TypeAlias = dict[str, dict[str, float]]
"""Name of a group -> name of a type -> divergence, nats."""
Progress: TypeAlias = Callable[[int, int, str], None]

_PROBE_BITS = 4.5
"""Number of bits, about, of the type that stands for others: its divergence is well above rounding,
and still small."""


def n_probes(groups: Sequence[Group], manner: Manner) -> int:
    """The number of texts that must be computed."""
    if manner == "error":
        return 0
    if manner == "scaled":
        return sum(len(_changes(g)) > 0 for g in groups)
    return sum(len(_changes(g)) for g in groups)


def measure(
    file: GGUFFile,
    groups: Sequence[Group],
    manner: Manner,
    held: Held | None,
    kept: Kept,
    importance: Importance | None = None,
    progress: Progress | None = None,
) -> Sensitivities:
    """The divergence that each group of `file` causes in each of its types.

    Figures that `kept` has are not measured again; new figures are added to it. `held` has the text
    under the model as it is (None for the manner `error`). `progress` is called with (probes done,
    all, what is measured). Raises FormatError for values that are not finite."""
    if manner not in MANNERS:
        raise ArgumentError(f"there is no manner {manner!r}; it is one of {', '.join(MANNERS)}")
    total, done = n_probes(groups, manner), 0
    found: Sensitivities = {}

    def probe(group: Group, dtype: DType) -> float:
        nonlocal done
        if progress is not None:
            progress(done, total, f"{group.name} as {dtype.name}")
        key = f"kl {group.name} {dtype.name}"
        known = kept.get(key)
        if known is None:
            assert held is not None
            figures = divergence_of(file, dict.fromkeys(group.tensors, dtype), held, importance)
            known = max(0.0, figures.kl.value)  # rounding may make it negative
            kept.add(key, known)
        done += 1
        if progress is not None:
            progress(done, total, f"{group.name} as {dtype.name}")
        return known

    for group in groups:
        changes = _changes(group)
        row = found[group.name] = dict.fromkeys((t.name for t in group.types), 0.0)
        if not changes:
            continue
        if manner == "each":
            row.update((dtype.name, probe(group, dtype)) for dtype in changes)
            continue
        errors = {d: _error(file, group, d, kept, importance) for d in changes}
        scale = 1.0
        if manner == "scaled":
            at = min(changes, key=lambda d: abs(8 * d.bytes / d.block - _PROBE_BITS))
            scale = probe(group, at) / errors[at] if errors[at] > 0 else 0.0
        row.update((dtype.name, scale * error) for dtype, error in errors.items())
    return found


def divergence_of(
    file: GGUFFile,
    types: Mapping[str, DType],
    held: Held,
    importance: Importance | None = None,
) -> KLDivergence:
    """The divergence of the model with some tensors in other types."""
    return held.score(Model(retyped(file, types, importance)))


def retyped(
    file: GGUFFile, types: Mapping[str, DType], importance: Importance | None = None
) -> GGUFFile:
    """The model with some tensors in other types, which are quantized when they are read."""
    all_types = {t.name: types.get(t.name, t.dtype) for t in file.tensors.values()}
    new = would_be(file, all_types)
    if importance is None:
        return new

    def weighted(t: TensorInfo) -> TensorInfo:
        before, weights = file.tensors[t.name], importance.of(file.tensors[t.name])
        if t.dtype is before.dtype or weights is None:
            return t
        return replace(t, _make=lambda: convert_tensor(before, t.dtype, weights))

    return new.presented(new.metadata, map(weighted, new.tensors.values()))


def _changes(group: Group) -> list[DType]:
    return [dtype for dtype in group.types if dtype is not group.before]


def _error(
    file: GGUFFile, group: Group, dtype: DType, kept: Kept, importance: Importance | None
) -> float:
    """The mean relative error of the group's tensors."""
    key = f"error {group.name} {dtype.name}"
    known = kept.get(key)
    if known is None:
        each = list(_errors(file, group, dtype, importance))
        known = sum(each) / len(each)
        kept.add(key, known)
    return known


def _errors(
    file: GGUFFile, group: Group, dtype: DType, importance: Importance | None
) -> Iterator[float]:
    return (relative_error(file.tensors[name], dtype, importance) for name in group.tensors)


_SAMPLE = 1 << 21
"""Maximum number of values that are encoded."""


def relative_error(t: TensorInfo, dtype: DType, importance: Importance | None = None) -> float:
    """sum w (x - q(x))^2 / sum w x^2 over the values of `t` in type `dtype`; 0 for its own type.

    The weight of a column is the mean square of the activations that meet it, if an importance
    matrix has it. For large tensors, rows at even distances stand for all.

    Raises FormatError for values that are not finite."""
    if dtype is t.dtype:
        return 0.0
    part = _sampled(t)
    n = t.ne[0]
    given = None if importance is None else importance.of(t)
    weights = None if given is None else given.mean(axis=0, keepdims=True)
    coded = convert_tensor(part, dtype, weights)
    x = _values(part.data, part)
    error = _values(coded, replace(part, dtype=dtype)) - x
    w = np.ones((1, n), np.float32) if weights is None else weights
    whole = float((w * x * x).sum(dtype=np.float64))
    lost = float((w * error * error).sum(dtype=np.float64))
    return lost / whole if whole > 0 else 0.0


def _sampled(t: TensorInfo) -> TensorInfo:
    """A matrix of rows of a tensor: all of them, or rows with `_SAMPLE` values together."""
    if t.dtype.name == "i2_s":  # one scale for all rows
        return t
    rows = t.data.reshape(-1, t.dtype.row_bytes(t.ne[0]))
    some = np.ascontiguousarray(rows[:: max(1, len(rows) * t.ne[0] // _SAMPLE)])
    sizes = (t.ne[0], len(some), 1, 1)
    return replace(t, ne=sizes, nbytes=some.nbytes, offset=-1, _make=lambda: some.reshape(-1))


def _values(data: NDArray[np.uint8], t: TensorInfo) -> NDArray[np.float32]:
    """The values of a matrix, f32 [n, ne0]."""
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        return quants.decode_i2_s(data, t.n_elements).reshape(-1, n)
    return quants.decode(data.reshape(-1, t.dtype.row_bytes(n)), t.dtype, n)
