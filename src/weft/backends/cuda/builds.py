"""Kernels for an architecture: from weft's wheel, else compiled by NVRTC and kept on disk by
source, options and compiler.

It needs no GPU: what is compiled here for sm_90 runs wherever there is one.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from weft.backends.cuda.assembly import DEVICE, source_of
from weft.backends.cuda.library import nvrtc
from weft.backends.cuda.packed import FOLDER, key_of, packed
from weft.backends.kernels.cache import cache_folder, keep, kept
from weft.errors import DeviceError

_OPTIONS = ("--std=c++17", "--fmad=true", "--extra-device-vectorization")


def text_of(file: str, defines: tuple[str, ...]) -> str:
    """A kernel file as a compiler for GPUs gets it."""
    header = (files("weft.backends.cuda") / "kernels" / DEVICE).read_text()
    return f'#line 1 "{DEVICE}"\n{header}\n{source_of(file, defines)}'


def options_of(defines: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a compiler besides the architecture."""
    return (*_OPTIONS, *(f"-D{d}" for d in defines))


class Builds:
    """The compiled files of an architecture."""

    def __init__(self, architecture: int, folder: Path = FOLDER) -> None:
        """`folder` has what came with weft."""
        self.architecture = architecture
        self.folder = folder
        self.compiled = 0
        """The number of programs compiled from source."""
        self.loaded = 0
        """The number of programs loaded from disk."""
        self.packed = 0
        """The number of programs that came with weft."""

    def image(self, file: str, defines: tuple[str, ...]) -> bytes:
        """A file as the driver loads it; raises DeviceError with file and line."""
        text, options = text_of(file, defines), options_of(defines)
        image = packed(file, text, options, self.architecture, self.folder)
        if image:
            self.packed += 1
            return image
        try:
            version = nvrtc().nvrtcVersion()[1:]
        except DeviceError as error:
            raise DeviceError(
                f"{file} ({' '.join(defines)}) is not among the kernels that came with weft for "
                f"sm_{self.architecture}: {error}"
            ) from error
        key = key_of(text, (str(version), *options), self.architecture)
        path = cache_folder("cuda") / f"{key}.bin"
        image = kept(path)
        if image:
            self.loaded += 1
            return image
        image = compiled(file, text, options, self.architecture)
        self.compiled += 1
        keep(path, image)
        return image


def compiled(file: str, text: str, options: tuple[str, ...], architecture: int) -> bytes:
    """A source as machine code; for an architecture that is newer than the compiler, as the
    assembly of its newest one, which the driver translates."""
    library = nvrtc()
    known = library.nvrtcGetSupportedArchs()[-1]
    exact = architecture in known
    target = f"sm_{architecture}" if exact else f"compute_{max(known)}"
    error, program = library.nvrtcCreateProgram(text.encode(), file.encode(), 0, [], [])
    if error != 0:
        raise DeviceError(f"{file}: NVRTC makes no program ({error.name})")
    try:
        given = [f"--gpu-architecture={target}".encode(), *(o.encode() for o in options)]
        (error,) = library.nvrtcCompileProgram(program, len(given), given)
        if error != 0:
            raise DeviceError(
                f"{file} does not build for {target} ({' '.join(options)}): "
                f"{first_error(_log(library, program))}"
            )
        kind = "CUBIN" if exact else "PTX"
        size = getattr(library, f"nvrtcGet{kind}Size")(program)[1]
        image: bytes = b" " * size
        getattr(library, f"nvrtcGet{kind}")(program, image)
        return image
    finally:
        library.nvrtcDestroyProgram(program)


def _log(library: Any, program: Any) -> str:
    log: bytes = b" " * library.nvrtcGetProgramLogSize(program)[1]
    library.nvrtcGetProgramLog(program, log)
    return log.decode(errors="replace").rstrip("\0 \n")


def first_error(log: str) -> str:
    """The first error as `norm.cl line 12: ...`, or the first lines."""
    match = re.search(r"([\w.]+)\((\d+)\): (?:catastrophic )?error:?\s*(?:#\d+: )?(.*)", log)
    if match is not None:
        return f"{match[1]} line {match[2]}: {match[3]}"
    return "; ".join([line.strip() for line in log.splitlines() if line.strip()][:4])
