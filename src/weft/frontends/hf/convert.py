"""Writes a Hugging Face folder as a GGUF file, as the reference's converter does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.errors import FormatError
from weft.extras import how_to_install
from weft.frontends.gguf.format import ROPE_HALVES, RawValue, ValueType
from weft.frontends.gguf.shards import UNLIMITED, ShardLimits, write_shards
from weft.frontends.gguf.writer import TensorSource, encode_value, write_gguf
from weft.frontends.hf.completed import family_metadata, rotated_elements
from weft.frontends.hf.family import Family, is_f32
from weft.frontends.hf.folder import (
    FILE_TYPES,
    Folder,
    is_some,
    read_family,
    read_folder,
    stored_bytes,
    understood,
)
from weft.frontends.hf.lora import PeftPair, PeftSettings, peft_pairs, read_settings
from weft.frontends.hf.tokenizer_json import tokenizer_keys
from weft.frontends.hf.towers import read_tower_folder
from weft.frontends.hf.values import Values
from weft.records import dataclass

OUTPUT_TYPES = ("auto", "f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0")
"""Types that matrices are converted to; `auto` keeps the 16-bit type of the folder."""

_WIDE = {"token_embd", "per_layer_token_embd", "output", "altup_router", "laurel_l", "laurel_r"}


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """A tensor that was written."""

    name: str
    before: str
    """The type in the folder."""
    after: DType
    shape: tuple[int, ...]
    nbytes: int


def convert_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str = "auto",
    *,
    name: str | None = None,
    limits: ShardLimits = UNLIMITED,
    mmproj: bool = False,
    change: Callable[[list[tuple[str, Values]]], list[tuple[str, Values]]] | None = None,
    progress: Callable[[ConvertedTensor], None] | None = None,
) -> list[ConvertedTensor]:
    """Reads the folder `source` and writes the GGUF file `target`.

    Keys, names, order, types and bytes are the same as from the reference's converter. `to` is one
    of `OUTPUT_TYPES`. One tensor is in memory at a time. `name` replaces the model's name.
    `limits` cut the model into files. With `mmproj`, the file has the towers instead of the text
    model. `change` makes other tensors of those that files have. `progress` is called after each
    tensor. Raises FormatError for a folder that cannot be read."""
    if to not in OUTPUT_TYPES:
        raise FormatError(f"unknown type {to!r}; choose one of {', '.join(OUTPUT_TYPES)}")
    folder = read_tower_folder(source) if mmproj else read_folder(source, adjacent=True)
    if to != "auto":
        folder = replace(folder, tensors=[(n, _loosened(v)) for n, v in folder.tensors])
    if change is not None:
        folder = replace(folder, tensors=change(folder.tensors))
    kind = to
    if to == "auto":
        kind = _usual(t.kind.lower() for t in folder.stored.values() if len(t.shape) > 1)
    rows = _Rows(progress)
    for tensor, values in folder.tensors:
        dtype = _type_of(folder.family, tensor, values, kind)
        rows.add(tensor, values, dtype, partial(_encoded, folder, tensor, values, dtype))
    metadata = _metadata(folder, kind, name, "mmproj" if mmproj else "model")
    write_shards(target, metadata, rows.sources, limits, all_sizes=True)
    return rows.report


def _loosened(values: Values) -> Values:
    """Blocks as floats. Tables of numbers stay, and so do blocks that the reference writes."""
    stays = values.kind in ("mxfp4", "nvfp4") or not find_dtype(values.kind).is_quantized
    return values if stays else values.unpacked()


class _Rows:
    """The tensors of a new file, and a report of those that are written."""

    def __init__(self, progress: Callable[[ConvertedTensor], None] | None) -> None:
        self.sources: list[TensorSource] = []
        self.report: list[ConvertedTensor] = []
        self._progress = progress

    def add(
        self, name: str, values: Values, dtype: DType, encode: Callable[[], NDArray[np.uint8]]
    ) -> None:
        """Adds a tensor, whose bytes `encode` makes when it is written."""

        def make() -> NDArray[np.uint8]:
            data = encode()
            done = ConvertedTensor(name, values.kind, dtype, values.shape, data.nbytes)
            self.report.append(done)
            if self._progress is not None:
                self._progress(done)
            return data

        self.sources.append((name, dtype, values.shape[::-1] or (1,), make))


def _metadata(folder: Folder, kind: str, name: str | None, what: str) -> dict[str, object]:
    packed = [values.kind for _, values in folder.tensors if values.packed is not None]
    packed = [one for one in packed if one in FILE_TYPES]  # tables of numbers have no part in it
    if packed and kind in ("f32", "f16", "bf16"):
        kind = max(sorted(set(packed)), key=packed.count)
    with understood(folder.path):
        keys = folder.first_keys()
        keys |= dict(general_keys(Path(folder.path).resolve(), name, folder.tensors))
        keys["general.type"] = what
        keys |= dict(folder.keys(FILE_TYPES[kind]))
        keys["general.quantization_version"] = 2
        if folder.family.halves:
            keys[ROPE_HALVES] = True
        vocabulary = dict(folder.family.vocab(folder.config))
        keys |= vocabulary | tokenizer_keys(folder.config, vocabulary)
    folder.config.forget()
    return {key: encode_value(key, value) for key, value in keys.items() if is_some(value)}


def _usual(kinds: Iterable[str]) -> str:
    """The 16-bit type of the first matrix that has one."""
    return next((kind for kind in kinds if kind in ("f16", "bf16")), "f16")


def _type_of(family: Family, name: str, values: Values, kind: str) -> DType:
    if values.packed is not None:
        return find_dtype(values.kind)
    stem = name.removesuffix(".weight")
    if is_f32(family, name, len(values.shape)):
        return find_dtype("f32")
    if family.is_kernel(name):
        return find_dtype("f16")
    dtype = find_dtype("f16" if kind.startswith("tq") and stem in _WIDE else kind)
    return dtype if values.shape[-1] % dtype.block == 0 else find_dtype("f16")


def _encoded(folder: Folder, name: str, values: Values, dtype: DType) -> NDArray[np.uint8]:
    if dtype.is_quantized and values.packed is None:
        return quants.encode(values.load(), dtype).reshape(-1)
    return stored_bytes(folder.path, name, values, dtype)


# `general.*` metadata of a converted model: its name, size, licence and what it was made from.
#
# How a model's name is taken apart, and its card read, is up to the package `gguf`.


def general_keys(
    folder: Path, name: str | None, tensors: Iterable[tuple[str, Values]], *, kind: str = "model"
) -> Iterator[tuple[str, RawValue]]:
    """Keys and values in the order of the reference's converter. `name` replaces the model's own;
    `kind` is `model` or `adapter`.

    Raises FormatError if the extra `weft[hf]` is not installed."""
    try:
        import gguf
    except ImportError:
        raise FormatError(
            "weft convert needs the package gguf for the names of models; " + how_to_install("hf")
        ) from None
    sizes = {name: values.shape for name, values in tensors}
    writer: Any = gguf.GGUFWriter(None, "llama")
    counts = _parameters(writer, sizes)
    about = _about(gguf, folder, name, counts[0])
    if about.name is None:
        about.name = folder.name
    if about.size_label is None and counts[0] > 0:
        about.size_label = gguf.size_label(*counts)
    yield "general.type", encode_value("general.type", kind)
    if kind == "adapter":
        yield "adapter.type", encode_value("adapter.type", "lora")
    about.set_gguf_meta_model(writer)
    for key, value in writer.kv_data[0].items():
        if key == "general.architecture":
            continue
        try:
            packed = _raw(gguf, key, value)
        except Exception:  # the package takes what a file says as it is
            raise FormatError(
                f"{folder}: {key} would be {value.value!r:.60}, which is of the wrong kind; mend "
                "the README.md or generation_config.json of the folder"
            ) from None
        yield key, packed


def _about(gguf: Any, folder: Path, name: str | None, count: int) -> Any:
    """The contents of the model's card and its generation settings. Raises FormatError for files
    that the package cannot read."""
    try:
        about = gguf.Metadata.load(None, folder, name, count)
        generation = gguf.Metadata.load_generation_config(folder)
        if about.sampling_penalty_repeat is None:  # newer versions of the package read it
            about.sampling_penalty_repeat = generation.get("repetition_penalty")
    except Exception as error:  # whatever the package raises over a stranger's files
        raise FormatError(
            f"{folder}: README.md, config.json or generation_config.json cannot be read "
            f"({type(error).__name__}: {str(error)[:80]})"
        ) from None
    return about


def _parameters(writer: Any, sizes: dict[str, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Elements in all, outside experts, of one expert in every layer, and the number of experts."""
    import numpy as np

    for name, shape in sizes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 0)
    counts: tuple[int, int, int, int] = writer.get_total_parameter_count()
    return counts


def _raw(gguf: Any, key: str, value: Any) -> RawValue:
    """A value of the package's writer, packed as it packs it."""
    packed: bytes = gguf.GGUFWriter(None, "llama")._pack_val(
        value.value, value.type, add_vtype=False, sub_type=getattr(value, "sub_type", None)
    )
    return RawValue(ValueType(int(value.type)), packed)


ADAPTER_TYPES = ("f32", "f16", "bf16", "q8_0", "auto")
"""Types of an adapter's matrices; `auto` keeps the 16-bit type of the folder."""


def convert_adapter(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    base: str | os.PathLike[str],
    to: str = "f32",
    *,
    name: str | None = None,
    progress: Callable[[ConvertedTensor], None] | None = None,
) -> list[ConvertedTensor]:
    """Reads the folder `source`, which PEFT saved, and writes the GGUF file `target`. From the
    model's folder `base`, config.json is read.

    Keys, names, order, types and bytes are the same as from the reference's converter. A file says
    one alpha for all matrices; where `alpha_pattern` or `use_rslora` say otherwise, B is multiplied
    by the rest. `to` is one of `ADAPTER_TYPES`. `name` replaces the adapter's name. `progress` is
    called after each tensor. Raises FormatError for a folder that cannot be read, or an adapter
    that files have no words for."""
    if to not in ADAPTER_TYPES:
        raise FormatError(f"unknown type {to!r}; choose one of {', '.join(ADAPTER_TYPES)}")
    settings = read_settings(source)
    if not settings.alpha:
        raise FormatError(f"{settings.path}: lora_alpha is 0, which changes nothing; train it anew")
    family, c = read_family(Path(base))
    try:
        n_rotated = rotated_elements(c, family_metadata(family, c)) if family.adjacent else None
        pairs = list(peft_pairs(settings, family, c, n_rotated=n_rotated))
    except FormatError as e:
        raise e if str(e).startswith(str(source)) else FormatError(f"{base}: {e}") from None
    tensors = [half for pair in pairs for half in _halves(settings, pair)]
    kind = to
    if to == "auto":
        kind = _usual(pair.a.kind for pair in pairs if pair.a.kind == pair.b.kind)
    rows = _Rows(progress)
    for tensor, values in tensors:
        dtype = find_dtype(kind)
        if values.shape[-1] % dtype.block:
            dtype = find_dtype("f16")
        rows.add(tensor, values, dtype, partial(_encoded_half, values, dtype))
    keys: dict[str, object] = {"general.architecture": family.arch}
    keys |= dict(general_keys(Path(source).resolve(), name, tensors, kind="adapter"))
    keys["adapter.lora.alpha"] = float(settings.alpha)
    invocation = settings.invocation_tokens
    if invocation:
        keys["adapter.alora.invocation_tokens"] = np.array(invocation, np.uint32)
    keys["general.quantization_version"] = 2
    packed = {key: encode_value(key, value) for key, value in keys.items()}
    write_gguf(target, packed, rows.sources, all_sizes=True)
    return rows.report


def _halves(settings: PeftSettings, pair: PeftPair) -> Iterator[tuple[str, Values]]:
    """The names and values of A and B."""
    rest = np.float32(pair.scale * pair.b.shape[-1] / settings.alpha)
    b = pair.b if rest == 1 else pair.b.through(lambda x: x * rest)
    yield f"{pair.name}.lora_a", pair.a
    yield f"{pair.name}.lora_b", b


def _encoded_half(values: Values, dtype: DType) -> NDArray[np.uint8]:
    x = values.load()
    made = quants.encode(x, dtype) if dtype.is_quantized else quants.to_storage(x, dtype)
    return np.ascontiguousarray(made).reshape(-1).view(np.uint8)
