"""Opens a Hugging Face folder as the GGUF file that a converter would make of it.

Tensors that need no change are mapped from the safetensors files. Others, such as norms, which are
float32, and experts with a tensor each, are computed when they are loaded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.errors import FormatError, WeftError
from weft.frontends.gguf.format import ROPE_HALVES, tensor_bytes
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.mix_table import MIXES
from weft.frontends.gguf.reader import GGUFFile, present_as_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import encode_value
from weft.frontends.hf.checkpoints import readable
from weft.frontends.hf.completed import family_metadata, rope_tensors, rotated_elements
from weft.frontends.hf.config import Config, read_config_json
from weft.frontends.hf.families import find_family
from weft.frontends.hf.family import Family, family_tensors, is_f32
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.safetensors import Stored, open_shards
from weft.frontends.hf.tokenizer_json import tokenizer_keys
from weft.frontends.hf.values import Values
from weft.records import dataclass

_WRITTEN = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4",
    "nvfp4",
)  # fmt: skip
FILE_TYPES = {mix.base: mix.number for mix in MIXES.values() if mix.base in _WRITTEN}
"""The types that a converter writes, and `general.file_type` of a file with each."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The contents of a folder, as its GGUF file has them apart from the types of tensors."""

    path: Path
    family: Family
    config: Config
    stored: Mapping[str, Stored]
    """Tensors as the safetensors files store them."""
    tensors: list[tuple[str, Values]]
    """GGUF names and values, in the order in which converters write them."""
    own_keys: dict[str, object]
    """Metadata of the architecture, without its name in front."""

    def first_keys(self) -> dict[str, object]:
        """Metadata in front of the model's name."""
        own = self._whole(self.family.first(self.config), 0)
        return {"general.architecture": self.family.arch, **dict(own)}

    def keys(self, file_type: int) -> Iterator[tuple[str, object]]:
        """Metadata of the architecture, and `general.file_type`."""
        yield from self._whole(self.own_keys.items(), file_type)

    def _whole(self, pairs: Pairs, file_type: int) -> Iterator[tuple[str, object]]:
        for key, value in pairs:
            whole = key.startswith(
                ("general.", "tokenizer.", "xielu.", "diffusion.", "vision.pos_emb_")
            )
            name = key if whole else f"{self.family.arch}.{key}"
            yield name, file_type if key == "general.file_type" else value


_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of Python for values of a wrong kind."""


@contextmanager
def understood(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Raises FormatError for values of JSON files that are of another kind than they must be."""
    try:
        yield
    except WeftError:
        raise
    except _WRONG as error:
        raise FormatError(
            f"{os.fspath(folder)}: config.json or the tokenizer's files have a value of a wrong "
            f"kind ({type(error).__name__}: {str(error)[:100]}); download the folder again"
        ) from error


def read_family(folder: Path) -> tuple[Family, Config]:
    """The family and the configuration of a folder, by its config.json."""
    config = read_config_json(folder)
    try:
        family = find_family(config)
    except FormatError as error:
        raise FormatError(f"{folder}: {error}") from None
    return family, Config(folder, config, family.defaults)


def read_folder(path: str | os.PathLike[str], *, adjacent: bool) -> Folder:
    """Reads config.json and the headers of the safetensors files; no tensor is read.

    With `adjacent`, rows of queries and keys are in the order of GGUF files. Raises FormatError for
    a folder that is incomplete, damaged or of an unknown class."""
    folder = Path(path)
    with understood(folder):
        family, c = read_family(folder)
        stored = open_shards(folder)
        values = readable(c, stored)
        keys = family_metadata(family, c)
        tensors = [(family.gguf_name(c, name), v) for name, v in rope_tensors(family, c, keys)]
        n_rotated = rotated_elements(c, keys) if adjacent and family.adjacent else None
        tensors += family_tensors(family, c, values, n_rotated)
    twice = [name for name, n in Counter(name for name, _ in tensors).items() if n > 1]
    if twice:
        raise FormatError(
            f"{folder}: several tensors have the place of {twice[0]} in a model of the "
            f"architecture {family.arch}; leaving one out would give wrong results"
        )
    # blocks go first, as converters write them
    tensors.sort(key=lambda t: t[1].packed is None or t[1].kind not in FILE_TYPES)
    return Folder(folder, family, c, stored, tensors, keys)


def open_folder(path: str | os.PathLike[str], *, adjacent: bool = False) -> GGUFFile:
    """Opens a folder with config.json and safetensors; see `read_folder`.

    Without `adjacent` queries and keys are mapped as they are, and the metadata says so."""
    return present_folder(read_folder(path, adjacent=adjacent), "model", adjacent=adjacent)


def present_folder(folder: Folder, kind: str, *, adjacent: bool = True) -> GGUFFile:
    """The GGUF file that a converter would make of a folder; `kind` is "model" or "mmproj"."""
    files = list({id(t.file): t.file for t in folder.stored.values()}.values())
    kinds = [v.kind for _, v in folder.tensors for _ in range(len(v.shape) > 1)]
    usual = max(set(kinds), key=kinds.count, default="f32")
    with understood(folder.path):
        keys = folder.first_keys()
        keys |= {"general.type": kind, "general.name": folder.path.resolve().name}
        keys |= dict(folder.keys(FILE_TYPES.get(usual, 0)))
        vocabulary = dict(folder.family.vocab(folder.config))
        keys |= vocabulary | tokenizer_keys(folder.config, vocabulary)
        if folder.family.halves or (folder.family.adjacent and not adjacent):
            keys[ROPE_HALVES] = True
        raw = {key: encode_value(key, value) for key, value in keys.items() if is_some(value)}
    folder.config.forget()
    infos = [_info(folder, name, values) for name, values in folder.tensors]
    return present_as_gguf(folder.path, made_metadata(folder.path, raw), infos, files)


def _info(folder: Folder, name: str, values: Values) -> TensorInfo:
    wide = values.packed is None and is_f32(folder.family, name, len(values.shape))
    wide = wide or (folder.family.is_kernel(name) and values.kind != "f16")
    dtype = find_dtype("f32" if wide else values.kind)
    ne = values.shape[::-1] or (1,)
    if len(ne) > 4 or min(ne) < 1:
        raise FormatError(f"{folder.path}: tensor {name} has the sizes {list(values.shape)}")
    padded = (*ne, 1, 1, 1)
    ne4 = (padded[0], padded[1], padded[2], padded[3])
    nbytes = tensor_bytes(dtype, ne)
    stored = values.stored
    if stored is not None and values.kind == dtype.name and stored.offset % dtype.bytes == 0:
        return TensorInfo(name, dtype, ne4, len(ne), stored.offset, nbytes, stored.file)
    first = next(iter(folder.stored.values())).file
    return TensorInfo(
        name, dtype, ne4, len(ne), -1, nbytes, first, _maker(folder.path, name, values, dtype)
    )


def _maker(path: Path, name: str, values: Values, dtype: DType) -> Callable[[], NDArray[np.uint8]]:
    # a copy where the place in the file does not suit the type
    return lambda: np.array(stored_bytes(path, name, values, dtype), copy=values.stored is not None)


def is_some(value: object) -> bool:
    """False for empty texts and lists, which converters do not write."""
    return not isinstance(value, str | list) or len(value) > 0


def stored_bytes(path: Path, name: str, values: Values, dtype: DType) -> NDArray[np.uint8]:
    """The bytes that a GGUF file stores for `values` in the type `dtype`, uint8 `[nbytes]`."""
    if values.stored is not None and values.kind == dtype.name:
        return values.stored.data
    try:
        if values.packed is not None and values.kind == dtype.name:
            return values.packed().reshape(-1)
        x = values.load()
    except MemoryError:
        raise FormatError(f"{path}: no memory for tensor {name}") from None
    except WeftError:
        raise
    except _WRONG as error:  # parts of a quantized checkpoint
        raise FormatError(
            f"{path}: tensor {name} cannot be put together ({str(error)[:100]}); download the "
            "folder again"
        ) from error
    return np.ascontiguousarray(quants.to_storage(x, dtype)).reshape(-1).view(np.uint8)
