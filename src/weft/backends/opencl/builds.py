"""Programs: assembled from the kernel files, built once per device, kept on disk as binaries."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from hashlib import sha256
from typing import Any

from weft.backends.kernels.assembly import headers, source_of, tables
from weft.backends.kernels.cache import keep, kept
from weft.backends.opencl.devices import Found
from weft.backends.opencl.library import library
from weft.backends.opencl.probe import cache_folder
from weft.errors import DeviceError
from weft.flags import said_to_others

_OPTIONS_OF_OTHERS = ("PYOPENCL_BUILD_OPTIONS", "POCL_EXTRA_BUILD_FLAGS")
"""Variables by which pyopencl and PoCL add options to each build."""


class Programs:
    """The programs of a context."""

    def __init__(self, context: Any, device: Found) -> None:
        self._context = context
        self._device = device
        self._always = ("NATIVE_HALF",) if "fp16" in device.features else ()
        self.compiled = 0
        """The number of programs compiled from source."""
        self.loaded = 0
        """The number of programs loaded from disk."""

    def get(self, file: str, defines: tuple[str, ...]) -> Any:
        """The program of a file: from disk, else compiled.

        Raises DeviceError naming file, line and device when the source does not build."""
        source = tables(defines) + source_of(file)
        # products of four bytes, and subgroups, are functions of a later version
        newer = "bytes.h" in headers(file) and "dot4" in self._device.features
        newer = newer or "SUBGROUPS" in defines
        standard = "3.0" if newer else "1.2"
        options = [f"-cl-std=CL{standard}", *(f"-D{d}" for d in (*self._always, *defines))]
        added = map(said_to_others, _OPTIONS_OF_OTHERS)  # such binaries are kept apart
        text = "\0".join((self._device.key, *options, *added, source))
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
