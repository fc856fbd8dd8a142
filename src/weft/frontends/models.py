"""Opens a model however it is stored: a GGUF file, or a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from weft.errors import ArgumentError
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.writer import encode_value


def open_model(
    path: str | os.PathLike[str],
    to: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    to_write: bool = False,
    whole: bool = True,
    planned: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> GGUFFile:
    """Opens the GGUF file at `path`, or the folder with config.json, safetensors and a tokenizer.

    With `to`, the name of a mix such as `q4_K_M`, matrices are quantized in memory, and `progress`
    gets the bytes that are done, and all; with `planned` each is quantized when its data are read.
    `to_write` is for what goes to a GGUF file: tensors of a
    folder are then in the order of GGUF files. With `whole` False the beginning of a GGUF file is
    enough, for plans (see `open_gguf`). Settings that a GGUF file lacks come from a config.json
    beside it (`hf/beside.py`), unless it is opened `to_write`. `metadata` has keys that are read
    with other values than in the file (see `with_keys`).

    Raises MissingFileError, FormatError, which names the file and what is wrong with it, and
    UnsupportedOpError for an unknown type."""
    if not isinstance(metadata, Mapping | None):
        raise ArgumentError(
            f"is {metadata!r:.60}; it must be a dict of keys and values", argument="metadata"
        )
    file = _open(path, to_write, whole)
    if metadata:
        file = with_keys(file, metadata)
    if to is None:
        return file
    from weft.frontends.gguf.quantize import loaded_as, planned_as

    return planned_as(file, to) if planned else loaded_as(file, to, progress=progress)


def with_keys(file: GGUFFile, keys: Mapping[str, object]) -> GGUFFile:
    """The open `file` with other values for keys of its metadata, or with further keys. The name of
    the architecture may be left out in front of a dot: `.rope.freq_base`.

    Positions that are scaled by a factor reach as far as that factor says, unless `keys` has a
    length of context. Raises FormatError for a value that GGUF cannot hold."""
    arch = file.architecture
    given = {f"{arch}{key}" if key.startswith(".") else key: value for key, value in keys.items()}
    length, before = f"{arch}.context_length", f"{arch}.rope.scaling.original_context_length"
    factor = given.get(f"{arch}.rope.scaling.factor")
    if isinstance(factor, int | float | np.floating) and factor > 1 and length not in given:
        trained = file.get_int(before, file.get_int(length, 0))
        given.setdefault(before, np.uint32(trained))
        reach = int(float(cast(int, given[before])) * float(factor))
        given[length] = np.uint32(min(reach, np.iinfo(np.uint32).max))
    raw = {key: file.metadata.raw(key) for key in file.metadata}
    raw |= {key: encode_value(key, value) for key, value in given.items()}
    return file.presented(made_metadata(file.path, raw), file.tensors.values())


def open_mmproj(path: str | os.PathLike[str]) -> GGUFFile:
    """Opens the `mmproj` file at `path`, or the towers of a folder with config.json and
    safetensors. Raises MissingFileError and FormatError."""
    if os.path.isdir(path):
        from weft.frontends.hf.towers import open_tower_folder

        return open_tower_folder(path)
    return open_gguf(path)


def _open(path: str | os.PathLike[str], to_write: bool, whole: bool) -> GGUFFile:
    if os.path.isdir(path):
        from weft.frontends.hf.folder import open_folder

        return open_folder(path, adjacent=to_write)
    file = open_gguf(path, whole=whole)
    if to_write or not (file.path.parent / "config.json").is_file():
        return file
    from weft.frontends.hf.beside import completed

    return completed(file)
