"""Kernels as WGSL: translated from the kernel files once, and kept on disk. Codebooks are in a
buffer: drivers keep constant arrays in the registers of each item, which takes them half a minute
to compile where an array has 512 words."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.assembly import codebooks, headers, source_of
from weft.backends.kernels.cache import cache_folder, keep, kept
from weft.backends.webgpu.translation import translate


@cache
def translated(
    file: str,
    defines: tuple[str, ...],
    kernel: str,
    group: tuple[int, ...],
    local: int,
    has_wide: bool,
) -> str:
    """A kernel of a file as a module of WGSL (see `translate`), for a device that has integers of
    64 bits or has not.

    Raises TranslationError for what is not known."""
    source = source_of(file)
    places = {name: word for name, (word, _) in _placed(defines).items()}
    wide = has_wide and "whole.h" in headers(file)  # integers of any size are its data
    about = (
        _translator(), source, *defines, kernel, *map(str, group), str(local), str(wide),
        str(places),
    )  # fmt: skip
    key = sha256("\0".join(about).encode()).hexdigest()
    path = cache_folder("webgpu") / f"{key}.wgsl"
    code = kept(path).decode(errors="replace")
    if not code:
        code = translate(source, defines, kernel, group, local, wide=wide, stored=places)
        keep(path, code.encode())
    return code


@cache
def stored(defines: tuple[str, ...]) -> bytes:
    """The words of the codebooks that a kernel reads, for the buffer behind its others; empty for a
    kernel without."""
    return b"".join(codes.astype("<u4").tobytes() for _, codes in _placed(defines).values())


def _placed(defines: tuple[str, ...]) -> dict[str, tuple[int, NDArray[np.uint16]]]:
    """The first word in that buffer, and the codes, of each codebook."""
    found, word = {}, 0
    for name, codes in codebooks(defines).items():
        found[name] = word, codes
        word += len(codes)
    return found


@cache
def _translator() -> str:
    """A hash of the translation's own source."""
    folder = files("weft.backends.webgpu") / "translation"
    parts = sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p.name.endswith(".py"))
    return sha256(b"\0".join(data for _, data in parts)).hexdigest()
