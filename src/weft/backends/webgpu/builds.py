"""Kernels as WGSL: translated from the kernel files once, and kept on disk."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from weft.backends.kernels.assembly import headers, source_of, tables
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
    source = tables(defines) + source_of(file)
    wide = has_wide and "whole.h" in headers(file)  # integers of any size are its data
    about = (_translator(), source, *defines, kernel, *map(str, group), str(local), str(wide))
    key = sha256("\0".join(about).encode()).hexdigest()
    path = cache_folder("webgpu") / f"{key}.wgsl"
    code = kept(path).decode(errors="replace")
    if not code:
        code = translate(source, defines, kernel, group, local, wide=wide)
        keep(path, code.encode())
    return code


@cache
def _translator() -> str:
    """A hash of the translation's own source."""
    folder = files("weft.backends.webgpu") / "translation"
    parts = sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p.name.endswith(".py"))
    return sha256(b"\0".join(data for _, data in parts)).hexdigest()
