"""Opens a model however it is stored: a GGUF file, or a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Callable

from weft.frontends.gguf.reader import GGUFFile, open_gguf

__all__ = ["open_mmproj", "open_model"]


def open_model(
    path: str | os.PathLike[str],
    to: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    to_write: bool = False,
    whole: bool = True,
) -> GGUFFile:
    """Opens the GGUF file at `path`, or the folder with config.json, safetensors and a tokenizer.

    With `to`, the name of a mix such as `q4_K_M`, matrices are quantized in memory, and `progress`
    gets the bytes that are done, and all. `to_write` is for what goes to a GGUF file: tensors of a
    folder are then in the order of GGUF files. With `whole` False the beginning of a GGUF file is
    enough, for plans (see `open_gguf`). Raises MissingFileError, FormatError, which names the file
    and what is wrong with it, and UnsupportedOpError for an unknown type."""
    file = _open(path, to_write, whole)
    if to is None:
        return file
    from weft.frontends.gguf.quantize import loaded_as

    return loaded_as(file, to, progress=progress)


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
    return open_gguf(path, whole=whole)
