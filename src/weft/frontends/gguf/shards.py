"""Cuts models into several files and joins them, changes a key, and checks the values of tensors.

The files of a model are called `name-00001-of-00003.gguf`; the first has the metadata, and each
says in `split.no`, `split.count` and `split.tensors.count` what it is a part of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import find_dtype
from weft.errors import FormatError
from weft.frontends.gguf.format import SCALARS, RawValue, ValueType, tensor_bytes
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource, encode_value, write_gguf

_CHUNK = 1 << 22  # elements checked at a time
MAX_SHARDS = 99_999  # what the names have digits for


class ShardLimits(NamedTuple):
    """Maximum numbers of bytes of tensors and of tensors in a file; 0: there is no limit. A tensor
    that is larger has a file of its own."""

    max_bytes: int = 0
    max_tensors: int = 0


UNLIMITED = ShardLimits()


def write_shards(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    tensors: Sequence[TensorSource],
    limits: ShardLimits = UNLIMITED,
    *,
    all_sizes: bool = False,
) -> list[Path]:
    """Writes a model as files within the limits. Returns the files.

    One file keeps the name `path`. Same errors as `write_gguf`."""
    target = Path(path)
    parts = _parts(tensors, *limits)
    if len(parts) == 1:
        write_gguf(target, metadata, tensors, all_sizes=all_sizes)
        return [target]
    return write_parts(target, metadata, parts, all_sizes=all_sizes)


def write_parts(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    parts: Sequence[Sequence[TensorSource]],
    *,
    all_sizes: bool = False,
) -> list[Path]:
    """Writes a model as one file for each list of tensors. Returns the files, whose names are
    `path` with numbers."""
    paths, metadata_of = layout_of_parts(path, metadata, [len(part) for part in parts], split=True)
    for part, to, own in zip(parts, paths, metadata_of, strict=True):
        write_gguf(to, own, part, all_sizes=all_sizes)
    return paths


def layout_of_parts(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    n_tensors: Sequence[int],
    *,
    split: bool = False,
) -> tuple[list[Path], list[dict[str, object]]]:
    """The names and the metadata of the files of a model, which have `n_tensors` each. One file
    keeps its name, unless `split` asks for numbers."""
    target, n = Path(path), len(n_tensors)
    if n == 1 and not split:
        return [target], [dict(metadata)]
    if n > MAX_SHARDS:
        raise FormatError(f"{target}: {n} files; names have room for {MAX_SHARDS}")
    paths = [target.with_name(f"{target.stem}-{i:05d}-of-{n:05d}.gguf") for i in range(1, n + 1)]
    owns: list[dict[str, object]] = []
    for i in range(n):
        own: dict[str, object] = dict(metadata) if i == 0 else {}
        own["split.no"] = np.uint16(i)
        own["split.count"] = np.uint16(n)
        own["split.tensors.count"] = np.int32(sum(n_tensors))
        if i and "general.alignment" in metadata:
            own["general.alignment"] = metadata["general.alignment"]
        owns.append(own)
    return paths, owns


def _parts(
    tensors: Sequence[TensorSource], max_bytes: int, max_tensors: int
) -> list[list[TensorSource]]:
    parts: list[list[TensorSource]] = [[]]
    nbytes = 0
    for tensor in tensors:
        own = tensor_bytes(find_dtype(tensor[1]), tensor[2])
        full = (max_tensors and len(parts[-1]) >= max_tensors) or (
            max_bytes and nbytes + own > max_bytes
        )
        if parts[-1] and full:
            parts.append([])
            nbytes = 0
        parts[-1].append(tensor)
        nbytes += own
    return parts


def split_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], limits: ShardLimits
) -> list[Path]:
    """Writes the model `source` as several files; see `write_shards`."""
    with open_gguf(source) as file:
        return write_shards(target, file.copy_metadata(), _rows(file), limits)


def merge_shards(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Writes all files of a model, of which `source` is one, as the file `target`."""
    with open_gguf(source) as file:
        _require_other(file, target)
        write_gguf(target, file.copy_metadata(), _rows(file))


def set_key(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    key: str,
    text: str,
    kind: str | None = None,
) -> None:
    """Writes the model `source` to `target` with another value of a metadata key.

    `text` is read as the type of the key's value, or as `kind` (`u32`, `f32`, `bool`, `string`,
    ...), which a new key needs. The two may be the same file. Raises FormatError if the value does
    not fit."""
    with open_gguf(source) as file:
        if len(file.paths) > 1:
            raise FormatError(f"{file.path}: the model has several files; merge them first")
        metadata = file.copy_metadata()
        metadata[key] = _parsed(file, key, text, kind)
        write_gguf(target, metadata, _rows(file))


def _parsed(file: GGUFFile, key: str, text: str, kind: str | None) -> RawValue:
    names = {type_.label: type_ for type_ in ValueType if type_ is not ValueType.ARRAY}
    if kind is not None and kind not in names:
        raise FormatError(f"unknown type {kind!r}; choose one of {', '.join(names)}")
    if kind is None and key not in file.metadata:
        raise FormatError(f"{file.path} has no key {key!r}; say the type of a new one")
    type_ = names[kind] if kind else file.metadata.type_of(key)
    if type_ is ValueType.ARRAY:
        raise FormatError(f"{key} is an array; weft sets single values only")
    if type_ is ValueType.STRING:
        return encode_value(key, text)
    words = {"true": "1", "false": "0"} if type_ is ValueType.BOOL else {}
    try:
        number = float(text) if type_.label in ("f32", "f64") else int(words.get(text, text))
        if type_ is ValueType.BOOL and number not in (0, 1):
            raise ValueError
        value = np.array(number).astype(SCALARS[type_], casting="unsafe")
        if type_.label not in ("f32", "f64") and int(value) != number:
            raise OverflowError
    except (ValueError, OverflowError):
        raise FormatError(f"{text!r} is no {type_.label}, the type of {key}") from None
    return RawValue(type_, value.tobytes())


def _rows(file: GGUFFile) -> list[TensorSource]:
    def of(t: TensorInfo) -> TensorSource:
        return t.name, t.dtype, t.ne[: max(1, t.n_dims)], lambda: t.data

    return [of(t) for t in file.tensors.values()]


def _require_other(file: GGUFFile, target: str | os.PathLike[str]) -> None:
    if Path(target).resolve() in {path.resolve() for path in file.paths}:
        raise FormatError(f"{str(target)!r} is a file being read; write to another name")


def bad_tensors(file: GGUFFile) -> Iterator[tuple[TensorInfo, str]]:
    """Tensors with values that are not finite, and what is wrong; every value is read."""
    for t in file.tensors.values():
        n_bad = sum(int((~np.isfinite(x)).sum()) for x in _values(t))
        if n_bad:
            yield t, f"{n_bad} of {t.n_elements} values are not finite"


def _values(t: TensorInfo) -> Iterator[NDArray[np.float32]]:
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        yield quants.decode_i2_s(t.data, t.n_elements)
        return
    rows = t.data.reshape(-1, t.dtype.row_bytes(n))
    step = max(1, _CHUNK // n)
    for start in range(0, len(rows), step):
        yield quants.decode(rows[start : start + step], t.dtype, n)
