"""Writes or loads a model with its matrices in another type, for `weft quantize` and `--type`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import FormatError, UnsupportedOpError
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.mixes import Choices, find_mix, mix_types
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.shards import write_parts
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource, encode_value, write_gguf
from weft.records import dataclass

__all__ = [
    "COPY", "QuantizedTensor", "floats_of", "loaded_as", "quantize_file", "types_of", "would_be",
]  # fmt: skip

COPY = "COPY"
"""The name under which `quantize_file` leaves all tensors as they are."""

_CHUNK = 1 << 22  # elements encoded at a time: 16 MiB of float32


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor before and after."""

    name: str
    before: DType
    after: DType
    n_elements: int
    old_bytes: int
    new_bytes: int


def quantize_file(
    source: str | os.PathLike[str] | GGUFFile,
    target: str | os.PathLike[str],
    to: str,
    *,
    choices: Choices | None = None,
    keep_split: bool = False,
    keys: Mapping[str, object] | None = None,
    progress: Callable[[QuantizedTensor], None] | None = None,
) -> list[QuantizedTensor]:
    """Reads the GGUF file `source` and writes it to `target` with its matrices in other types. A
    file that is open is closed behind it.

    `to` is a file type's name, in any case (`Q4_K_M`, `q8_0`), see `mixes`, or `COPY`, which
    changes no tensor; each tensor gets the type that llama-quantize gives it. `choices` are those
    of a user. With `keep_split` a model of several files stays one. Metadata stays, except for
    `general.file_type`, `general.quantization_version` and `keys`. One tensor is in memory at a
    time. `progress` is called after each tensor. Raises FormatError for a bad file or when the two
    are the same, UnsupportedOpError, before anything is written, for a type that cannot be."""
    report: list[QuantizedTensor] = []
    with source if isinstance(source, GGUFFile) else open_gguf(source) as file:
        if Path(target).resolve() in {path.resolve() for path in (file.path, *file.paths)}:
            raise FormatError(f"{str(target)!r} is the file being read; write to another name")
        types = types_of(file, to, choices)
        metadata: dict[str, object] = dict(file.copy_metadata())
        if to.upper() != COPY:
            metadata["general.file_type"] = find_mix(to).number
        metadata["general.quantization_version"] = 2
        metadata.update(keys or {})

        def row(t: TensorInfo) -> TensorSource:
            after = types[t.name]

            def make() -> NDArray[np.uint8]:
                data = t.data if after is t.dtype else _convert(t, after)
                done = QuantizedTensor(t.name, t.dtype, after, t.n_elements, t.nbytes, data.nbytes)
                report.append(done)
                if progress is not None:
                    progress(done)
                return data

            return t.name, after, t.ne[: max(1, t.n_dims)], make

        parts = file.tensors_by_file()
        if keep_split and len(parts) > 1:
            write_parts(target, metadata, [[row(t) for t in part] for part in parts])
        else:
            write_gguf(target, metadata, [row(t) for t in file.tensors.values()])
    return report


def types_of(file: GGUFFile, to: str, choices: Choices | None = None) -> dict[str, DType]:
    """The type of each tensor of `file` as `quantize_file` writes it. Raises UnsupportedOpError if
    there is one that weft cannot write."""
    if to.upper() == COPY:
        return {t.name: t.dtype for t in file.tensors.values()}
    mix = find_mix(to)
    types = mix_types(file.tensors.values(), file.metadata, mix, choices)
    for name, after in types.items():
        if after is not file.tensors[name].dtype and not _can_write(after):
            raise UnsupportedOpError(
                f"weft cannot write {after.name} yet, which {mix.name} has for {name}; "
                "use another type"
            )
    return types


def _can_write(dtype: DType) -> bool:
    return dtype.name == "i2_s" or quants.can_encode(dtype)


def would_be(file: GGUFFile, types: Mapping[str, DType]) -> GGUFFile:
    """The model that `file` would be with tensors of these types, for plans: its tensors have
    sizes, and values only of those that stay."""

    def changed(t: TensorInfo) -> TensorInfo:
        after = types[t.name]
        if after is t.dtype:
            return t
        nbytes = after.row_bytes(t.ne[0]) * (t.n_elements // t.ne[0])
        return replace(t, dtype=after, offset=-1, nbytes=nbytes, _make=lambda: _convert(t, after))

    return file.presented(file.metadata, [changed(t) for t in file.tensors.values()])


def loaded_as(
    file: GGUFFile, to: str, *, progress: Callable[[int, int], None] | None = None
) -> GGUFFile:
    """The open model `file` with its matrices quantized in memory, to the types that
    `quantize_file` would write; the others stay where they are.

    Works on as many tensors at a time as there are processors. `progress(done, total)` gets the
    bytes that are written, and all. Same errors as `quantize_file`."""
    mix = find_mix(to)
    types = types_of(file, to)
    raw = {key: file.metadata.raw(key) for key in file.metadata}
    raw["general.file_type"] = encode_value("general.file_type", mix.number)

    changed = [t for t in file.tensors.values() if types[t.name] is not t.dtype]
    total = sum(types[t.name].row_bytes(t.ne[0]) * (t.n_elements // t.ne[0]) for t in changed)
    done = 0
    lock = Lock()

    def load(t: TensorInfo) -> TensorInfo:
        nonlocal done
        after = types[t.name]
        if after is t.dtype:
            return t
        data = _convert(t, after)
        with lock:
            done += data.nbytes
            if progress is not None:
                progress(done, total)
        return replace(t, dtype=after, offset=-1, nbytes=data.nbytes, _make=lambda: data)

    with ThreadPoolExecutor(os.cpu_count() or 1, "weft-quantize") as pool:
        tensors = list(pool.map(load, file.tensors.values()))
    return file.presented(made_metadata(file.path, raw), tensors)


def planned_as(file: GGUFFile, to: str) -> GGUFFile:
    """The open model `file` as `loaded_as` presents it, for plans: nothing is quantized before its
    data are read. Raises the same errors."""
    mix = find_mix(to)
    types = mix_types(file.tensors.values(), file.metadata, mix)

    def later(t: TensorInfo) -> TensorInfo:
        after = types[t.name]
        if after is t.dtype:
            return t
        nbytes = after.row_bytes(t.ne[0]) * (t.n_elements // t.ne[0])
        return replace(t, dtype=after, offset=-1, nbytes=nbytes, _make=lambda: _convert(t, after))

    raw = {key: file.metadata.raw(key) for key in file.metadata}
    raw["general.file_type"] = encode_value("general.file_type", mix.number)
    return file.presented(made_metadata(file.path, raw), map(later, file.tensors.values()))


def _convert(t: TensorInfo, after: DType) -> NDArray[np.uint8]:
    if after.name == "i2_s":
        return quants.encode_i2_s(np.concatenate(list(floats_of(t))).reshape(-1))
    parts = [quants.encode(x, after).reshape(-1).view(np.uint8) for x in floats_of(t)]
    return np.concatenate(parts)


def floats_of(t: TensorInfo) -> Iterator[NDArray[np.float32]]:
    """The tensor's rows as float32 `[rows, ne0]`, some at a time."""
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        yield quants.decode_i2_s(t.data, t.n_elements).reshape(-1, n)
        return
    rows = t.data.reshape(-1, t.dtype.row_bytes(n))
    step = max(1, _CHUNK // n)
    for start in range(0, len(rows), step):
        x = quants.decode(rows[start : start + step], t.dtype, n)
        if not np.isfinite(x).all():
            raise FormatError(
                f"tensor {t.name} has values that are not finite; it cannot be quantized"
            )
        yield x
