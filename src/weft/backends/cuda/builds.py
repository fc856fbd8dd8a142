"""Kernels compiled by NVRTC for an architecture, and kept on disk by source, options and compiler.

It needs no GPU: what is compiled here for sm_90 runs wherever there is one.
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files
from typing import Any

from weft.backends.cuda.assembly import DEVICE, source_of
from weft.backends.cuda.library import nvrtc
from weft.backends.kernels.cache import cache_folder, keep, kept
from weft.errors import DeviceError

__all__ = ["Builds", "compiled"]

_OPTIONS = ("--std=c++17", "--fmad=true", "--extra-device-vectorization")


class Builds:
    """The compiled files of an architecture."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture
        self.compiled = 0
        """The number of programs compiled from source."""
        self.loaded = 0
        """The number of programs loaded from disk."""

    def image(self, file: str, defines: tuple[str, ...]) -> bytes:
        """A file as the driver loads it; raises DeviceError with file and line."""
        header = (files("weft.backends.cuda") / "kernels" / DEVICE).read_text()
        text = f'#line 1 "{DEVICE}"\n{header}\n{source_of(file, defines)}'
        options = (*_OPTIONS, *(f"-D{d}" for d in defines))
        version = nvrtc().nvrtcVersion()[1:]
        key = "\0".join((str(version), str(self.architecture), *options, text))
        path = cache_folder("cuda") / f"{sha256(key.encode()).hexdigest()}.bin"
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
