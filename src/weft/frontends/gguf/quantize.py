"""Writes or loads a model with its matrices in another type, for `weft quantize` and `--type`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import FormatError
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.mixes import find_mix, mix_types
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import encode_value, write_gguf
from weft.records import dataclass

__all__ = ["QuantizedTensor", "floats_of", "loaded_as", "quantize_file"]

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
    pure: bool = False,
    progress: Callable[[QuantizedTensor], None] | None = None,
) -> list[QuantizedTensor]:
    """Reads the GGUF file `source` and writes it to `target` with its matrices in other types. A
    file that is open is closed behind it.

    `to` is a file type's name, in any case (`Q4_K_M`, `q8_0`), see `mixes`; each tensor gets the
    type that llama-quantize gives it. `pure` takes the mix's base type for every matrix. Metadata
    stays, except for `general.file_type` and `general.quantization_version`. One tensor is in
    memory at a time. `progress` is called after each tensor. Raises FormatError for a bad file or
    when the two are the same, UnsupportedOpError for a type that cannot be written."""
    mix = find_mix(to)
    path = source.path if isinstance(source, GGUFFile) else Path(source)
    if path.resolve() == Path(target).resolve():
        raise FormatError(f"{str(target)!r} is the file being read; write to another name")
    report: list[QuantizedTensor] = []
    with source if isinstance(source, GGUFFile) else open_gguf(source) as file:
        metadata: dict[str, object] = dict(file.copy_metadata())
        metadata["general.file_type"] = mix.number
        metadata["general.quantization_version"] = 2
        types = mix_types(file.tensors.values(), file.metadata, mix, pure=pure)
        rows = []
        for t in file.tensors.values():
            after = types[t.name]

            def make(t: TensorInfo = t, after: DType = after) -> NDArray[np.uint8]:
                data = t.data if after is t.dtype else _convert(t, after)
                done = QuantizedTensor(t.name, t.dtype, after, t.n_elements, t.nbytes, data.nbytes)
                report.append(done)
                if progress is not None:
                    progress(done)
                return data

            rows.append((t.name, after, t.ne[: max(1, t.n_dims)], make))
        write_gguf(target, metadata, rows)
    return report


def loaded_as(
    file: GGUFFile, to: str, *, progress: Callable[[int, int], None] | None = None
) -> GGUFFile:
    """The open model `file` with its matrices quantized in memory, to the types that
    `quantize_file` would write; the others stay where they are.

    Works on as many tensors at a time as there are processors. `progress(done, total)` gets the
    bytes that are written, and all. Same errors as `quantize_file`."""
    mix = find_mix(to)
    types = mix_types(file.tensors.values(), file.metadata, mix)
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
