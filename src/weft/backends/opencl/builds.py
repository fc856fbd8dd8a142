"""Programs: assembled from the kernel files, built once per device, kept on disk as binaries."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np

from weft.backends.opencl.devices import Found
from weft.backends.opencl.enums import enums_of
from weft.backends.opencl.library import guarded, library
from weft.backends.opencl.probe import cache_folder, keep, kept
from weft.errors import DeviceError
from weft.quants import grid

__all__ = ["Programs", "source_of"]

_HEADERS = {
    "binary.cl": ("place.h",),
    "unary.cl": ("place.h", "functions.h"),
    "glu.cl": ("place.h", "functions.h"),
    "matmul.cl": ("formats.h", "codebooks.h", "planes.h"),
    "outer.cl": ("formats.h", "codebooks.h"),
    "planes.cl": ("formats.h",),
    "attention.cl": ("formats.h", "codebooks.h"),
    "copy.cl": ("formats.h", "codebooks.h", "planes.h", "blocks.h", "moves.h"),
    "tensor.cl": ("place.h", "moves.h", "whole.h"),
    "map.cl": ("place.h", "functions.h", "whole.h"),
    "tensor_reduce.cl": ("place.h", "whole.h"),
    "gather.cl": ("place.h", "moves.h", "whole.h"),
    "recurrent.cl": ("place.h",),
    "hyper.cl": ("place.h", "formats.h", "codebooks.h"),
    "back.cl": ("place.h",),
    "conv.cl": ("place.h",),
    "window.cl": ("place.h", "moves.h", "whole.h"),
}
"""The headers that a kernel file needs besides `common.h`."""


@cache
def source_of(file: str) -> str:
    """A kernel file behind its enumerations and headers, as the compiler gets it. Errors name
    files and lines."""
    folder = files("weft.backends.opencl") / "kernels"
    parts = [enums_of(file)]
    for name in ("common.h", *_HEADERS.get(file, ()), file):
        parts.append(f'#line 1 "{name}"\n{(folder / name).read_text()}')
    return "\n".join(parts)


_CODEBOOKS = {
    "iq1_s": (2, (-1, 0, 1)),
    "iq1_m": (2, (-1, 0, 1)),
    "iq2_xxs": (2, (8, 25, 43)),
    "iq2_xs": (2, (8, 25, 43)),
    "iq2_s": (2, (8, 25, 43)),
    "iq3_xxs": (3, (4, 12, 20, 28, 36, 44, 52, 62)),
    "iq3_s": (3, (1, 3, 5, 7, 9, 11, 13, 15)),
}
"""The bits of a level in a format's codebook, and the levels."""


@cache
def codebook(name: str) -> str:
    """The codebook of a format as an array for `codebooks.h`; empty for a format without."""
    if name not in _CODEBOOKS:
        return ""
    bits, levels = _CODEBOOKS[name]
    vectors = grid(name)
    places = np.searchsorted(np.array(levels, np.float32), vectors).astype(np.uint32)
    codes = (places << (bits * np.arange(vectors.shape[1], dtype=np.uint32))).sum(1)
    array = "GRID_iq1_s" if name == "iq1_m" else f"GRID_{name}"
    return f"__constant ushort {array}[{len(codes)}] = {{{','.join(map(str, codes))}}};\n"


def tables(defines: tuple[str, ...]) -> str:
    """The codebooks of the formats that are used."""
    return "".join({codebook(d.removeprefix("USE_")): None for d in defines})


class Programs:
    """The programs of a context."""

    def __init__(self, context: Any, device: Found) -> None:
        self._context = context
        self._device = device
        self._always = ("NATIVE_HALF",) if "fp16" in device.features else ()
        self._built: dict[tuple[str, tuple[str, ...]], Any] = {}
        self.compiled = 0
        """The number of programs compiled from source."""
        self.loaded = 0
        """The number of programs loaded from disk."""

    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> Any:
        """A kernel object of its own, whose arguments no other caller sets.

        Raises DeviceError naming file, line and device when the source does not build."""
        program = self._built.get((file, defines))
        if program is None:
            program = self._built[file, defines] = self._get(file, defines)
        with guarded(f"kernel {name} of {file} on {self._device.name}"):
            return library().Kernel(program, name)

    def _get(self, file: str, defines: tuple[str, ...]) -> Any:
        source = tables(defines) + source_of(file)
        options = ["-cl-std=CL1.2", *(f"-D{d}" for d in (*self._always, *defines))]
        text = "\0".join((self._device.key, *options, source))
        path = cache_folder() / f"{sha256(text.encode()).hexdigest()}.bin"
        binary = kept(path)
        program = self._from_binary(binary, options) if binary else None
        if program is None:
            program = self.build(file, source, options)
            self.compiled += 1
            with suppress(library().Error):  # a driver may not give its binaries
                binaries = program.get_info(library().program_info.BINARIES)
                keep(path, binaries[0])
        else:
            self.loaded += 1
        return program

    def build(self, file: str, source: str, options: list[str]) -> Any:
        """Compiles a source."""
        cl = library()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pyopencl warns of every note of a compiler
                return cl.Program(self._context, source).build(options, cache_dir=False)
        except cl.Error as error:
            raise DeviceError(
                f"{file} does not build on {self._device.name} "
                f"({' '.join(options)}): {_first_error(str(error))}"
            ) from error

    def _from_binary(self, binary: bytes, options: list[str]) -> Any:
        """The program of a binary; None where the driver no longer accepts it."""
        cl = library()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = cl.Program(self._context, [self._device.handle], [binary])
                return program.build(options, cache_dir=False)
        except cl.Error:
            return None


_PLACE = r"([\w.]+\.(?:cl|h)):(\d+)(?::\d+)?:\s*"
_ERRORS = (rf"{_PLACE}(?:fatal )?error:\s*(.*)", rf"error:\s*{_PLACE}(.*)")
"""The forms in which compilers write an error: clang's and PoCL's."""


def _first_error(log: str) -> str:
    """The first error as `norm.cl line 12: ...`, or the first lines where the log has no such
    error."""
    for pattern in _ERRORS:
        match = re.search(pattern, log)
        if match is not None:
            return f"{match[1]} line {match[2]}: {match[3]}"
    lines = [line.strip() for line in log.splitlines()]
    # pyopencl puts the call and the device around the compiler's messages
    messages = [
        line for line in lines if line and not line.startswith(("clBuild", "Build on", "(opt"))
    ]
    return "; ".join((messages or lines)[:4])
