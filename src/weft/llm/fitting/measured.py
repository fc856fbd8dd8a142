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

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DTYPES, DType
from weft.errors import ArgumentError, FormatError
from weft.flags import FLAGS
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.imatrix_file import Importance
from weft.frontends.gguf.quantize import convert_tensor, would_be
from weft.frontends.gguf.tensors import TensorInfo
from weft.llm.cache.cache_types import CACHE_TYPES, CacheTypes
from weft.llm.config import ModelConfig
from weft.llm.fitting.baseline import Held
from weft.llm.fitting.choices import Group
from weft.llm.model import Model
from weft.llm.quality.divergence import KLDivergence

Manner: TypeAlias = Literal["each", "scaled", "error"]
MANNERS: tuple[Manner, ...] = get_args(Manner)

Sensitivities: TypeAlias = dict[str, dict[str, float]]
"""Name of a group -> name of a type -> divergence, nats."""
Progress: TypeAlias = Callable[[int, int, str], None]

_PROBE_BITS = 4.5
"""Number of bits, about, of the type that stands for others: its divergence is well above rounding,
and still small."""


def n_probes(groups: Sequence[Group], manner: Manner, kept: Kept | None = None) -> int:
    """The number of texts that must be computed; those whose figures `kept` has are not counted."""
    probes = [(g, dtype) for g in groups for dtype in _probed(g, manner)]
    return sum(kept is None or kept.get(_key(g, dtype)) is None for g, dtype in probes)


def n_cache_probes(pairs: Sequence[CacheTypes], kept: Kept) -> int:
    """The number of texts that must be computed for pairs of cache types."""
    return sum(kept.get(_cache_key(pair)) is None for pair in pairs)


def _probed(group: Group, manner: Manner) -> list[DType]:
    """The types in which the divergence of a group is measured."""
    changes = _changes(group)
    if manner == "each":
        return changes
    if manner == "error" or not changes:
        return []
    return [min(changes, key=lambda d: abs(8 * d.bytes / d.block - _PROBE_BITS))]


def _key(group: Group, dtype: DType) -> str:
    return f"kl {group.name} {dtype.name}"


def _cache_key(pair: CacheTypes) -> str:
    return f"kl cache {pair.stored}"


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
    all that are not kept, what is measured); while errors are computed, which needs no text, with
    groups. Raises FormatError for values that are not finite."""
    if manner not in MANNERS:
        raise ArgumentError(f"there is no manner {manner!r}; it is one of {', '.join(MANNERS)}")
    total, done = n_probes(groups, manner, kept), 0
    found: Sensitivities = {}

    def probe(group: Group, dtype: DType) -> float:
        nonlocal done
        key = _key(group, dtype)
        known = kept.get(key)
        if known is not None:
            return known
        if progress is not None:
            progress(done, total, f"{group.name} as {dtype.name}")
        assert held is not None
        figures = divergence_of(file, dict.fromkeys(group.tensors, dtype), held, importance)
        known = max(0.0, figures.kl.value)  # rounding may make it negative
        kept.add(key, known)
        done += 1
        if progress is not None:
            progress(done, total, f"{group.name} as {dtype.name}")
        return known

    for number, group in enumerate(groups):
        if progress is not None and manner == "error":
            progress(number, len(groups), f"errors of {group.name}")
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
            (at,) = _probed(group, manner)
            scale = probe(group, at) / errors[at] if errors[at] > 0 else 0.0
        row.update((dtype.name, scale * error) for dtype, error in errors.items())
    return found


def divergence_of(
    file: GGUFFile, types: Mapping[str, DType], held: Held, importance: Importance | None = None
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


# The measurements of a model in the user's cache folder, so that nothing is measured twice.
#
# One file for each model, text and manner, a JSON object a line. A run that is killed loses at most
# the line it was writing; what is torn or damaged is measured again.

_MOST_BYTES = 64 << 20
_MEASUREMENTS_SAMPLE = 4096
"""Number of bytes at the beginning and the end of a tensor that are hashed to tell it from
others."""


def kept_folder() -> Path:
    """The folder of all such files."""
    return Path(FLAGS.cache) / "probes"


def digest_of(file: GGUFFile, *more: object) -> str:
    """A name for the tensors of a file (names, types, sizes, and bytes at the beginning and the end
    of each) and for what else a measurement depends on."""
    digest = sha256(repr(more).encode())
    digest.update(file.architecture.encode())
    for t in file.tensors.values():
        digest.update(f"\n{t.name} {t.dtype.name} {t.ne}".encode())
        data = t.data
        digest.update(data[:_MEASUREMENTS_SAMPLE].tobytes())
        digest.update(data[-_MEASUREMENTS_SAMPLE:].tobytes())
    return digest.hexdigest()[:32]


class Kept:
    """Figures by key, read from a file and added to it."""

    def __init__(self, path: Path | None) -> None:
        """`path` is None to keep nothing beyond this object."""
        self._path = path
        self._values: dict[str, float] = {}
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> float | None:
        """The figure of `key`; None: it is not known."""
        return self._values.get(key)

    def add(self, key: str, value: float) -> None:
        """Remembers a figure. Raises FormatError if the file cannot be written."""
        self._values[key] = value
        if self._path is None:
            return
        line = json.dumps({"key": key, "value": value}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # in one write, on a line of its own, even behind one that a kill has torn
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, ("\n" + line).encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise FormatError(
                f"{self._path}: what was measured cannot be kept there: "
                f"{error.strerror or error}; WEFT_CACHE names another folder"
            ) from None

    def _read(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        for line in data.split(b"\n"):
            try:
                row: Any = json.loads(line)
                key, value = row["key"], row["value"]
            except (ValueError, LookupError, TypeError, RecursionError):
                continue
            if isinstance(key, str) and isinstance(value, (int, float)) and math.isfinite(value):
                self._values[key] = float(value)


_ORDER = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Cache types, in falling order of bits."""


def cache_pairs(config: ModelConfig) -> list[CacheTypes]:
    """The pairs that a model can have, in falling order of bits."""
    k = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_k % DTYPES[t].block == 0]
    v = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_v % DTYPES[t].block == 0]
    pairs = [CacheTypes(a, b) for a, b in product(k, v)]
    return sorted(pairs, key=lambda p: -sum(map(_bits, p)))


def usual_pairs(config: ModelConfig) -> list[CacheTypes]:
    """The pairs that are worth a choice, f16 first: equal types, and keys of f16 or q8_0 with
    smaller values, because keys lose more by the same step."""
    return [
        pair
        for pair in cache_pairs(config)
        for k, v in (pair,)
        if not {"f32", "bf16"} & {k, v}
        and (k == v or (k in ("f16", "q8_0") and _bits(v) < _bits(k)))
    ]


def _bits(name: str) -> float:
    return 8 * DTYPES[name].bytes / DTYPES[name].block


def score_cache(held: Held, pair: CacheTypes) -> KLDivergence:
    """The figures of the model of `held` with a cache of these types."""
    return held.score(held.model, **pair._asdict())


def measure_caches(
    held: Held,
    pairs: Sequence[CacheTypes],
    kept: Kept,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[CacheTypes, float]:
    """The divergence of each pair, nats; as `weft.llm.fitting.measured.measure` does for types."""
    found: dict[CacheTypes, float] = {}
    done, total = 0, n_cache_probes(pairs, kept)
    for pair in pairs:
        key = _cache_key(pair)
        known = kept.get(key)
        if known is None:
            if progress is not None:
                progress(done, total, f"cache of {pair}")
            done += 1
            known = max(0.0, score_cache(held, pair).kl.value)
            kept.add(key, known)
        found[pair] = known
    return found
