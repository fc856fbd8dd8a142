"""Importance matrices: how much each column of a weight matrix counts, read and written.

For a matrix there are the sums, over the tokens of a text, of the squares of its inputs, and the
number of tokens; for a stack of experts there are sums and a number for each of them. Two formats:

GGUF: `general.type` is `imatrix`, `imatrix.datasets` the texts, `imatrix.chunk_count` and
`imatrix.chunk_size` the chunks and the tokens of one. For each matrix NAME there are two f32
tensors: `NAME.in_sum2`, ne = [columns, experts], and `NAME.counts`, ne = [1, experts].

The older one (`.dat`), little endian: i32 entries; for each i32 length and bytes of the name, i32
calls, i32 values, f32 values[]; at the end i32 chunks, i32 length and bytes of the text's name,
which may be missing. A value is the mean square times the calls; experts stand one after the other.

Source: common/imatrix-loader.cpp and tools/imatrix/imatrix.cpp in llama.cpp.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DType
from weft.errors import FormatError, UnsupportedOpError
from weft.files import write_bytes
from weft.frontends.gguf.filemap import FileMap, quoted
from weft.frontends.gguf.format import MAGIC
from weft.frontends.gguf.mixes import Mix, is_quantized, needs_imatrix
from weft.frontends.gguf.pruned import Pruned
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource, write_gguf
from weft.quants import can_encode
from weft.quants.native_rows import NEEDS_WEIGHTS, can_convert
from weft.records import dataclass

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_ENTRIES = 1 << 18


@dataclass(frozen=True, slots=True)
class ImatrixEntry:
    """Measurements at the input of one matrix, or of a stack of experts."""

    sums: NDArray[np.float32]
    """`[experts, columns]`: sums of squares; in the older format, means times calls."""
    counts: NDArray[np.int64]
    """`[experts]`: number of tokens in each sum; in the older format the number of calls, `[1]`."""


@dataclass(frozen=True, slots=True)
class Imatrix:
    """An importance matrix as a file has it."""

    entries: Mapping[str, ImatrixEntry]
    """By the name of the weights, sorted."""
    datasets: tuple[str, ...]
    """Names of the texts that the matrix was measured on."""
    chunk_count: int
    chunk_size: int
    """Number of tokens in a chunk; 0 in the older format, which does not state it."""
    is_legacy: bool
    """True if the file has the older format."""
    has_metadata: bool
    """False for a GGUF file that lacks a key of `imatrix.*`."""


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """The importance matrix in the file `path`, of either format.

    Raises FormatError, naming the file and the entry, for a file that is neither or is damaged."""
    file = FileMap(path)
    try:
        is_gguf = file.size >= len(MAGIC) and file.buffer[: len(MAGIC)] == MAGIC
        if not is_gguf:
            return _read_legacy(file)
    finally:
        file.close()
    with open_gguf(path) as gguf:
        return _read_gguf(gguf)


def importance_of(imatrix: Imatrix) -> dict[str, NDArray[np.float32]]:
    """The weight of each column when a matrix is quantized, `[experts * columns]` by name.

    It is the mean square of the column's input; an expert that saw no token has ones. Raises
    FormatError for a value that is not finite."""
    weights: dict[str, NDArray[np.float32]] = {}
    for name, entry in imatrix.entries.items():
        counts = entry.counts.astype(np.float32)[:, None]
        with np.errstate(all="ignore"):
            if imatrix.is_legacy:
                means = entry.sums / counts if counts[0, 0] > 0 else entry.sums
            else:
                means = np.where(counts > 0, entry.sums / counts, np.float32(1))
        if not np.isfinite(means).all():
            raise FormatError(
                f"the importance matrix has values for {name} that are not finite; measure it again"
            )
        weights[name] = np.ascontiguousarray(means, np.float32).reshape(-1)
    return weights


def write_imatrix(
    path: str | os.PathLike[str],
    imatrix: Imatrix,
    *,
    legacy: bool = False,
    keys: Mapping[str, object] | None = None,
) -> None:
    """Writes an importance matrix that was measured (sums and counts), as GGUF or, with `legacy`,
    in the older format, which has no place for counts of experts. `keys` are more metadata of a
    GGUF file."""
    entries = sorted(imatrix.entries.items())
    if legacy:
        write_bytes(path, _legacy_bytes(imatrix, entries))
        return
    metadata: dict[str, object] = {
        "general.type": "imatrix",
        "imatrix.datasets": list(imatrix.datasets) or [""],
        "imatrix.chunk_count": np.uint32(imatrix.chunk_count),
        "imatrix.chunk_size": np.uint32(imatrix.chunk_size),
        **(keys or {}),
    }
    rows: list[TensorSource] = []
    for name, entry in entries:
        experts, columns = entry.sums.shape
        counts = entry.counts.astype("<f4")
        rows.append((name + _SUMS, "f32", (columns, experts), entry.sums.astype("<f4")))
        rows.append((name + _COUNTS, "f32", (1, experts), counts))
    write_gguf(path, metadata, rows)


def _read_gguf(file: GGUFFile) -> Imatrix:
    pairs: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in file.tensors.items():
        for suffix in (_SUMS, _COUNTS):
            if name.endswith(suffix):
                pairs.setdefault(name.removesuffix(suffix), {})[suffix] = tensor
    if not pairs:
        raise FormatError(
            f"{file.path} is not an importance matrix: it has no tensor that ends in {_SUMS}"
        )
    entries = {name: _entry(file, name, pairs[name]) for name in sorted(pairs)}
    keys = [f"imatrix.{key}" for key in ("datasets", "chunk_count", "chunk_size")]
    datasets = file.get_str_list(keys[0], []) if keys[0] in file.metadata else []
    return Imatrix(
        entries, tuple(datasets), file.get_int(keys[1], 0), file.get_int(keys[2], 0), False,
        all(key in file.metadata for key in keys),
    )  # fmt: skip


def _entry(file: GGUFFile, name: str, pair: Mapping[str, TensorInfo]) -> ImatrixEntry:
    if len(pair) < 2 or any(t.dtype.name != "f32" for t in pair.values()):
        raise FormatError(
            f"{file.path}: {name} must have two f32 tensors, {_SUMS} and {_COUNTS}; measure the "
            "importance matrix again"
        )
    sums, counts = (pair[s].data.view("<f4").astype(np.float32) for s in (_SUMS, _COUNTS))
    if sums.size % counts.size:
        raise FormatError(
            f"{file.path}: {name} has {sums.size} sums and {counts.size} counts; the first must be "
            "a multiple of the second: measure the importance matrix again"
        )
    if not (np.isfinite(counts) & (np.abs(counts) < 2**62)).all():
        raise FormatError(f"{file.path}: {name}{_COUNTS} has values that are not counts")
    # Halves away from zero, as lround.
    whole = np.trunc(counts.astype(np.float64) + np.copysign(0.5, counts))
    return ImatrixEntry(sums.reshape(counts.size, -1), whole.astype(np.int64))


class _Reader:
    """Reads the older format; every read is checked against the end of the file."""

    def __init__(self, file: FileMap) -> None:
        self.file = file
        self.at = 0

    def take(self, n: int, what: str) -> bytes:
        if n < 0 or n > self.file.size - self.at:
            raise self.file.error(
                f"no importance matrix, or a damaged one: {what} at byte {self.at} needs {n} "
                f"bytes, and the file has {self.file.size - self.at} more"
            )
        self.at += n
        return bytes(self.file.buffer[self.at - n : self.at])

    def i32(self, what: str) -> int:
        return int(struct.unpack("<i", self.take(4, what))[0])


def _read_legacy(file: FileMap) -> Imatrix:
    reader = _Reader(file)
    n = reader.i32("the number of entries")
    if not 1 <= n <= _MAX_ENTRIES:
        raise file.error("this is not an importance matrix: neither GGUF nor the older format")
    entries = dict(_legacy_entries(reader, n))
    chunks, datasets = 0, []
    if reader.at < file.size:
        chunks = reader.i32("the number of chunks")
        if file.size - reader.at >= 4:
            length = reader.i32("the length of the text's name")
            if 0 < length <= file.size - reader.at:
                text = reader.take(length, "the text's name")
                datasets = [text.split(b"\0")[0].decode("utf-8", "replace")]
    return Imatrix(dict(sorted(entries.items())), tuple(datasets), chunks, 0, True, True)


def _legacy_entries(reader: _Reader, n: int) -> Iterator[tuple[str, ImatrixEntry]]:
    for i in range(n):
        raw = reader.take(reader.i32(f"the length of name {i}"), f"name {i}")
        name = raw.split(b"\0")[0].decode("utf-8", "replace")
        calls = reader.i32(f"the calls of {quoted(name)}")
        size = reader.i32(f"the number of values of {quoted(name)}")
        if size < 1:
            raise reader.file.error(f"{quoted(name)} has {size} values; the file is damaged")
        values = np.frombuffer(reader.take(4 * size, f"values of {quoted(name)}"), "<f4")
        yield name, ImatrixEntry(values.astype(np.float32)[None], np.array([calls], np.int64))


def _legacy_bytes(imatrix: Imatrix, entries: Sequence[tuple[str, ImatrixEntry]]) -> bytes:
    """The older format, of a matrix of either; entries without any count are left out."""
    kept = [(name, entry) for name, entry in entries if entry.counts.any()]
    out = [struct.pack("<i", len(kept))]
    for name, entry in kept:
        calls, values = _calls_and_values(imatrix, entry)
        raw = name.encode()
        out += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", calls, values.size)]
        out.append(values.astype("<f4").tobytes())
    dataset = (imatrix.datasets[-1] if imatrix.datasets else "").encode()
    out += [struct.pack("<ii", imatrix.chunk_count, len(dataset)), dataset]
    return b"".join(out)


def _calls_and_values(imatrix: Imatrix, entry: ImatrixEntry) -> tuple[int, NDArray[np.float32]]:
    if imatrix.is_legacy:
        return int(entry.counts[0]), entry.sums.reshape(-1)
    size = max(imatrix.chunk_size, 1)
    calls = -(-int(entry.counts.max()) // size)
    counts = entry.counts.astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        means = np.where(counts == 0, np.float32(1), entry.sums / counts)
    return calls, (means * np.float32(calls)).reshape(-1)


def _matches(name: str, parts: Sequence[str]) -> bool:
    """True if one of `parts` is a part of the name."""
    return any(part in name for part in parts)


def chosen(
    weights: Mapping[str, NDArray[np.float32]],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> dict[str, NDArray[np.float32]]:
    """The weights of matrices whose names have a part of `include` (if there are any) and none of
    `exclude`."""
    return {
        name: w
        for name, w in weights.items()
        if (not include or _matches(name, include)) and not _matches(name, exclude)
    }


def imatrix_keys(path: str | os.PathLike[str], imatrix: Imatrix, n_used: int) -> dict[str, object]:
    """The metadata keys that tell a quantized file's importance matrix, as llama-quantize writes
    them (texts up to 127 bytes)."""
    keys: dict[str, object] = {"quantize.imatrix.file": _cut(os.fspath(path))}
    if imatrix.datasets:
        keys["quantize.imatrix.dataset"] = _cut(imatrix.datasets[0])
    keys["quantize.imatrix.entries_count"] = np.uint32(n_used)
    if imatrix.chunk_count > 0:
        keys["quantize.imatrix.chunks_count"] = np.uint32(imatrix.chunk_count)
    return keys


def _cut(text: str | Path) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")[:127]


_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True, slots=True)
class Importance:
    """The weights of columns by the name of the tensor, and the keys that tell of them."""

    weights: Mapping[str, NDArray[np.float32]]
    keys: Mapping[str, object]

    def of(self, t: TensorInfo, name: str | None = None) -> NDArray[np.float32] | None:
        """The weights of a tensor, `[matrices, ne0]`, or None without any. `name` is the tensor's
        where the matrix was measured. Raises FormatError if they are of other sizes."""
        weights = self.weights.get(name or t.name)
        if weights is None:
            return None
        if weights.size != t.ne[0] * t.ne[2]:
            if t.name in _EMBEDDINGS:
                return None
            raise FormatError(
                f"the importance matrix has {weights.size} weights for {t.name}, and the tensor "
                f"{t.ne[0]} columns and {t.ne[2]} matrices; measure one with this model"
            )
        return weights.reshape(-1, t.ne[0])


def read_importance(
    path: str | os.PathLike[str], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Importance | None:
    """Reads an importance matrix; with `include`, only for tensors whose names have one of these
    parts, and with `exclude`, for none whose name has one. None if nothing is left.

    Raises FormatError for a file that is none or has no `imatrix.*` keys."""
    imatrix = read_imatrix(path)
    if not imatrix.has_metadata:
        raise FormatError(
            f"{os.fspath(path)}: the keys imatrix.datasets, imatrix.chunk_count and "
            "imatrix.chunk_size are missing; measure the importance matrix again"
        )
    weights = chosen(importance_of(imatrix), include, exclude)
    if not weights:
        return None
    return Importance(weights, imatrix_keys(path, imatrix, len(weights)))


def check_importance(
    kept: Pruned, types: Mapping[str, DType], mix: Mix, importance: Importance | None, arch: str
) -> None:
    """Raises UnsupportedOpError for a tensor whose new type is of no use without an importance
    matrix when there is none, or it lacks the tensor; and for one that weft cannot write."""
    for t in kept.tensors.values():
        after = types[t.name]
        name = kept.old_names[t.name]
        weights = None if importance is None else importance.of(t, name)
        changes = after is not t.dtype
        if weights is None and (changes or (importance is None and is_quantized(t, arch))):
            low = needs_imatrix(t.name, after, mix)
            if low or (changes and after.name in NEEDS_WEIGHTS):
                lack = "" if importance is None else ", and the one that was given does not have it"
                raise UnsupportedOpError(
                    f"{t.name} as {after.name} needs an importance matrix{lack}; make one with "
                    "`weft imatrix` and pass it with --imatrix, or use another type"
                )
        if changes and not _can_write(t.dtype, after, weights is not None):
            raise UnsupportedOpError(
                f"weft cannot write {after.name}, which {mix.name} has for {t.name}; use another "
                "type"
            )


def _can_write(before: DType, after: DType, weighted: bool) -> bool:
    if after.name == "i2_s" or can_encode(after):
        return True
    return can_convert(before, after, weighted=weighted)
