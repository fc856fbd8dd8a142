"""Writes or loads a model with its matrices in another type, for `weft quantize` and `--type`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.control_group import usable_processors
from weft.dtype import DType
from weft.errors import FormatError, UnsupportedOpError
from weft.frontends.gguf.imatrix_file import Importance, check_importance
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.mixes import Choices, find_mix, mix_types
from weft.frontends.gguf.pruned import Pruned, prune
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.resumable import ResumableFile
from weft.frontends.gguf.shards import layout_of_parts
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource, encode_value, lay_out
from weft.quants.native_rows import NotFiniteError, can_convert, convert_rows
from weft.records import dataclass

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
    keys: Mapping[str, object] | None = None,
    progress: Callable[[QuantizedTensor], None] | None = None,
    importance: Importance | None = None,
    n_threads: int | None = None,
) -> list[QuantizedTensor]:
    """Reads the GGUF file `source` and writes it to `target` with its matrices in other types. A
    file that is open is closed behind it.

    `to` is a file type's name, in any case (`Q4_K_M`, `q8_0`), see `mixes`, or `COPY`, which
    changes no tensor; each tensor gets the type and the bytes that llama-quantize gives it, with
    the weights of `importance` where it has some. Metadata stays, except for `general.file_type`,
    `general.quantization_version`, keys that tell of the importance matrix, and `keys`. One tensor
    is in memory at a time. `progress` is called after each tensor. A run that is stopped can be
    repeated, and then goes on with the tensors that are complete.

    Raises FormatError for a bad file or when the two are the same, UnsupportedOpError, before
    anything is written, for a type that cannot be, that needs an importance matrix, or that
    `choices` refuse for a tensor that is quantized already."""
    with source if isinstance(source, GGUFFile) else open_gguf(source) as file:
        if Path(target).resolve() in {path.resolve() for path in (file.path, *file.paths)}:
            raise FormatError(f"{str(target)!r} is the file being read; write to another name")
        choices = choices or Choices()
        if importance is not None:
            choices = replace(choices, imatrix=True)
        kept = prune(file, choices.without_layers)
        types = _types_of(file, kept, to, choices)
        _check(file, kept, types, to, importance)
        if not choices.requantize:
            _refuse_quantized(kept, types)
        metadata = _new_metadata(file, to, kept, importance, keys or {})
        n_threads = n_threads or usable_processors()

        def row(t: TensorInfo) -> TensorSource:
            after = types[t.name]

            def make() -> NDArray[np.uint8]:
                if after is t.dtype:
                    return t.data
                name = kept.old_names[t.name]
                weights = None if importance is None else importance.of(t, name)
                return convert_tensor(t, after, weights, n_threads)

            return t.name, after, t.ne[: max(1, t.n_dims)], make

        new_name = {old: new for new, old in kept.old_names.items()}
        parts = [
            [kept.tensors[new_name[t.name]] for t in part if t.name in new_name]
            for part in file.tensors_by_file()
        ]
        if not (choices.keep_split and len(parts) > 1):
            parts = [list(kept.tensors.values())]
        paths, owns = layout_of_parts(target, metadata, [len(part) for part in parts])
        layouts = [
            lay_out(path, own, [row(t) for t in part])
            for path, own, part in zip(paths, owns, parts, strict=True)
        ]
        report: list[QuantizedTensor] = []

        def done(t: TensorInfo, nbytes: int) -> None:
            report.append(
                QuantizedTensor(t.name, t.dtype, types[t.name], t.n_elements, t.nbytes, nbytes)
            )
            if progress is not None:
                progress(report[-1])

        about = _about(file, types, kept, importance)
        with ExitStack() as stack:
            files = [
                stack.enter_context(ResumableFile(path, layout, about))
                for path, layout in zip(paths, layouts, strict=True)
            ]
            for out, layout, part in zip(files, layouts, parts, strict=True):
                for i in out.write():
                    done(part[i], layout.rows[i].nbytes)
            for out in files:
                out.finish()
    return report


def _new_metadata(
    file: GGUFFile, to: str, kept: Pruned, importance: Importance | None, keys: Mapping[str, object]
) -> dict[str, object]:
    metadata: dict[str, object] = dict(file.copy_metadata())
    if to.upper() != COPY:
        metadata["general.file_type"] = find_mix(to).number
    metadata["general.quantization_version"] = 2
    return metadata | dict(keys) | dict(importance.keys if importance else {}) | dict(kept.keys)


def _about(
    file: GGUFFile, types: Mapping[str, DType], kept: Pruned, importance: Importance | None
) -> str:
    """The settings that decide the bytes of the new file, apart from its head."""
    states = [(str(path.resolve()), os.stat(path)) for path in file.paths]
    about = [f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states]
    about += [f"{kept.old_names[name]} {kind.name}" for name, kind in types.items()]
    if importance is not None:
        for name, weights in sorted(importance.weights.items()):
            about.append(f"{name} {zlib.crc32(np.ascontiguousarray(weights).data)}")
    return "\n".join(about)


def _refuse_quantized(kept: Pruned, types: Mapping[str, DType]) -> None:
    """Refuses to quantize again; f32 has every value of blocks, so that it loses nothing."""
    for name, t in kept.tensors.items():
        if t.dtype.is_quantized and types[name] is not t.dtype and types[name].name != "f32":
            raise UnsupportedOpError(
                f"{name} is {t.dtype.name} already, and quantizing it again to "
                f"{types[name].name} loses more than quantizing the original model; if you want "
                "that, add --allow-requantize"
            )


def types_of(file: GGUFFile, to: str, choices: Choices | None = None) -> dict[str, DType]:
    """The type of each tensor of `file` as `quantize_file` writes it, whether weft can or not."""
    return _types_of(file, prune(file, choices.without_layers if choices else ()), to, choices)


def refusal(file: GGUFFile, to: str, choices: Choices, importance: Importance | None) -> str | None:
    """Why `quantize_file` would not write this, or None."""
    kept = prune(file, choices.without_layers)
    try:
        _check(file, kept, _types_of(file, kept, to, choices), to, importance)
    except UnsupportedOpError as error:
        return str(error)
    return None


def _types_of(file: GGUFFile, kept: Pruned, to: str, choices: Choices | None) -> dict[str, DType]:
    if to.upper() == COPY:
        return {t.name: t.dtype for t in kept.tensors.values()}
    return mix_types(kept.tensors.values(), file.metadata, find_mix(to), choices)


def _check(
    file: GGUFFile, kept: Pruned, types: Mapping[str, DType], to: str, importance: Importance | None
) -> None:
    if to.upper() != COPY:
        check_importance(kept, types, find_mix(to), importance, file.architecture)


def would_be(
    file: GGUFFile, types: Mapping[str, DType], without_layers: Iterable[int] = ()
) -> GGUFFile:
    """The model that `file` would be with tensors of these types, for plans: its tensors have
    sizes, and values only of those that stay."""
    kept = prune(file, without_layers)
    metadata = file.metadata
    if kept.keys:
        raw = {key: file.metadata.raw(key) for key in file.metadata}
        raw |= {key: encode_value(key, value) for key, value in kept.keys.items()}
        metadata = made_metadata(file.path, raw)
    return file.presented(metadata, [_later(t, types[t.name]) for t in kept.tensors.values()])


def loaded_as(
    file: GGUFFile, to: str, *, progress: Callable[[int, int], None] | None = None
) -> GGUFFile:
    """The open model `file` with its matrices quantized in memory, to the types that
    `quantize_file` would write; the others stay where they are.

    `progress(done, total)` gets the bytes that are written, and all. Same errors as
    `quantize_file`."""
    mix = find_mix(to)
    kept = prune(file, ())
    types = _types_of(file, kept, to, None)
    _check(file, kept, types, to, None)
    raw = {key: file.metadata.raw(key) for key in file.metadata}
    raw["general.file_type"] = encode_value("general.file_type", mix.number)

    changed = [t for t in file.tensors.values() if types[t.name] is not t.dtype]
    total = sum(types[t.name].row_bytes(t.ne[0]) * (t.n_elements // t.ne[0]) for t in changed)
    done = 0

    def load(t: TensorInfo) -> TensorInfo:
        nonlocal done
        after = types[t.name]
        if after is t.dtype:
            return t
        data = convert_tensor(t, after)
        done += data.nbytes
        if progress is not None:
            progress(done, total)
        return replace(
            t,
            dtype=after,
            offset=-1,
            nbytes=data.nbytes,
            _make=lambda: data,
            _stored=None,
        )

    tensors = [load(t) for t in file.tensors.values()]
    return file.presented(made_metadata(file.path, raw), tensors)


def planned_as(file: GGUFFile, to: str) -> GGUFFile:
    """The open model `file` as `loaded_as` presents it, for plans: nothing is quantized before its
    data are read. Raises the same errors."""
    mix = find_mix(to)
    types = mix_types(file.tensors.values(), file.metadata, mix)
    raw = {key: file.metadata.raw(key) for key in file.metadata}
    raw["general.file_type"] = encode_value("general.file_type", mix.number)
    tensors = [_later(t, types[t.name]) for t in file.tensors.values()]
    return file.presented(made_metadata(file.path, raw), tensors)


def _later(t: TensorInfo, after: DType) -> TensorInfo:
    """The tensor in another type, which is computed when its data are read."""
    if after is t.dtype:
        return t
    nbytes = after.row_bytes(t.ne[0]) * (t.n_elements // t.ne[0])
    return replace(
        t, dtype=after, offset=-1, nbytes=nbytes, _stored=None,
        _make=lambda: convert_tensor(t, after),
    )  # fmt: skip


def convert_tensor(
    t: TensorInfo,
    after: DType,
    weights: NDArray[np.float32] | None = None,
    n_threads: int | None = None,
) -> NDArray[np.uint8]:
    """The bytes of a tensor in another type, with the weights of its columns `[matrices, ne0]`.

    Raises FormatError for values that are not finite."""
    if after.name == "i2_s":
        return quants.encode_i2_s(np.concatenate(list(floats_of(t))).reshape(-1))
    if can_convert(t.dtype, after, weighted=weights is not None):
        try:
            return convert_rows(
                t.data, t.dtype, after, t.ne[0], rows_per_matrix=t.ne[1], weights=weights,
                n_threads=n_threads,
            )  # fmt: skip
        except NotFiniteError:
            raise _not_finite(t) from None
    parts = [quants.encode(x, after).reshape(-1).view(np.uint8) for x in floats_of(t)]
    return np.concatenate(parts)


def _not_finite(t: TensorInfo) -> FormatError:
    return FormatError(f"tensor {t.name} has values that are not finite; it cannot be quantized")


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
            raise _not_finite(t)
        yield x
