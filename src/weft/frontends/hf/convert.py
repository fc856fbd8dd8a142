"""Writes a Hugging Face folder as a GGUF file, as the reference's converter does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.errors import FormatError
from weft.frontends.gguf.shards import write_shards
from weft.frontends.gguf.writer import TensorSource, encode_value
from weft.frontends.hf.family import Family, is_f32
from weft.frontends.hf.folder import (
    FILE_TYPES,
    Folder,
    is_some,
    read_folder,
    stored_bytes,
    understood,
)
from weft.frontends.hf.general import general_keys
from weft.frontends.hf.tokenizer_json import tokenizer_keys
from weft.frontends.hf.towers import read_tower_folder
from weft.frontends.hf.values import Values
from weft.records import dataclass

__all__ = ["OUTPUT_TYPES", "ConvertedTensor", "convert_folder"]

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
    max_bytes: int = 0,
    max_tensors: int = 0,
    mmproj: bool = False,
    change: Callable[[list[tuple[str, Values]]], list[tuple[str, Values]]] | None = None,
    progress: Callable[[ConvertedTensor], None] | None = None,
) -> list[ConvertedTensor]:
    """Reads the folder `source` and writes the GGUF file `target`.

    Keys, names, order, types and bytes are the same as from the reference's converter. `to` is one
    of `OUTPUT_TYPES`. One tensor is in memory at a time. `name` replaces the model's name.
    `max_bytes` and `max_tensors` cut the model into files (see `write_shards`). With `mmproj`, the
    file has the towers instead of the text model. `change` makes other tensors of those that files
    have. `progress` is called after each tensor. Raises FormatError for a folder that cannot be
    read."""
    if to not in OUTPUT_TYPES:
        raise FormatError(f"unknown type {to!r}; choose one of {', '.join(OUTPUT_TYPES)}")
    folder = read_tower_folder(source) if mmproj else read_folder(source, adjacent=True)
    if change is not None:
        folder = replace(folder, tensors=change(folder.tensors))
    kind = _guessed(folder) if to == "auto" else to
    report: list[ConvertedTensor] = []
    rows: list[TensorSource] = []
    for tensor, values in folder.tensors:
        dtype = _type_of(folder.family, tensor, values, kind)

        def make(
            tensor: str = tensor, values: Values = values, dtype: DType = dtype
        ) -> NDArray[np.uint8]:
            data = _encoded(folder, tensor, values, dtype)
            done = ConvertedTensor(tensor, values.kind, dtype, values.shape, data.nbytes)
            report.append(done)
            if progress is not None:
                progress(done)
            return data

        rows.append((tensor, dtype, values.shape[::-1] or (1,), make))
    write_shards(
        target, _metadata(folder, kind, name, "mmproj" if mmproj else "model"), rows,
        max_bytes=max_bytes, max_tensors=max_tensors, all_sizes=True,
    )  # fmt: skip
    return report


def _metadata(folder: Folder, kind: str, name: str | None, what: str) -> dict[str, object]:
    packed = {values.kind for _, values in folder.tensors if values.packed is not None}
    if packed and kind in ("f32", "f16", "bf16"):
        kind = packed.pop()
    with understood(folder.path):
        keys = folder.first_keys()
        keys |= dict(general_keys(Path(folder.path).resolve(), name, folder.tensors))
        keys["general.type"] = what
        keys |= dict(folder.keys(FILE_TYPES[kind]))
        keys["general.quantization_version"] = 2
        vocabulary = dict(folder.family.vocab(folder.config))
        keys |= vocabulary | tokenizer_keys(folder.config, vocabulary)
    return {key: encode_value(key, value) for key, value in keys.items() if is_some(value)}


def _guessed(folder: Folder) -> str:
    """The 16-bit type of the first matrix that has one."""
    for t in folder.stored.values():
        if len(t.shape) > 1 and t.kind in ("BF16", "F16"):
            return t.kind.lower()
    return "f16"


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
