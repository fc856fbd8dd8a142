"""Compiles kernel files with g++ into libraries of this process, and launches their kernels."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.calls import Packed
from weft.backends.kernels.cache import cache_folder, keep, kept
from weft.backends.kernels.launch import Local
from weft.errors import DeviceError

__all__ = ["Range", "ShimKernels", "compile_shim", "compiler", "runtime_path"]

Range = tuple[int, int, bool]
"""Memory that a launch may access: its address, its bytes, and whether it may be written."""
Entry = Callable[[Sequence[int], Sequence[int], int, int, Iterable[Range]], None]

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_HEADERS = ("runtime.h", "shim.h", "fibres.h")
_RUNTIME = ("-O2",)
_KERNELS = ("-O1", "-fno-strict-aliasing", "-w", "-fvisibility=hidden")
_CHECKED = ("-fsanitize=thread", "-nostdlib", "-lm", "-lc", "-lgcc")
"""Accesses call functions of the runtime's; the sanitizer's own library is left out."""

_FOLDER = Path(__file__).parent
_running = Lock()
"""One launch at a time: the runtime has one block."""


def compiler() -> str | None:
    """The C++ compiler that the shim uses; None where there is none."""
    return shutil.which("g++")


def _run(text: str, options: Sequence[str]) -> bytes:
    gpp = compiler()
    if gpp is None:
        raise DeviceError("kernels cannot be compiled for this processor: there is no g++")
    command = [gpp, "-std=c++17", f"-I{_FOLDER}", "-x", "c++", "-", *options]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise DeviceError(f"g++ refuses a kernel:\n{done.stderr.decode(errors='replace')[:4000]}")
    return done.stdout


def _library(text: str, options: Sequence[str], mode: int = 0) -> ctypes.CDLL:
    """The library of a C++ text, from the cache where it was compiled before."""
    header = "".join((_FOLDER / name).read_text() for name in _HEADERS)
    key = sha256("\0".join((*options, header, text)).encode()).hexdigest()
    path = cache_folder("cuda-shim") / f"{key}.so"
    if kept(path):
        return ctypes.CDLL(str(path), os.RTLD_NOW | mode)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernels.so"
        _run(text, ("-fPIC", "-shared", "-o", str(made), *options))
        keep(path, made.read_bytes())
        return ctypes.CDLL(str(made), os.RTLD_NOW | mode)


@cache
def _runtime_library() -> ctypes.CDLL:
    return _library((_FOLDER / "runtime.cpp").read_text(), _RUNTIME, os.RTLD_GLOBAL)


def runtime_path() -> str:
    """The file of the runtime's library."""
    return str(_runtime_library()._name)


@cache
def _runtime() -> Any:
    """The function of the runtime that launches kernels."""
    library = _runtime_library()
    launch = library.weft_shim_launch
    launch.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    launch.argtypes = [
        ctypes.c_char_p, pointer, pointer, pointer, ctypes.c_size_t, pointer, ctypes.c_int, pointer,
        ctypes.c_int, pointer, pointer,
    ]  # fmt: skip
    return launch


_ENDS = """
extern "C" uchar __start_weft_shared[] __attribute__((weak));
extern "C" uchar __stop_weft_shared[] __attribute__((weak));
extern "C" SHIM_UNCHECKED __attribute__((visibility("default")))
void weft_shim_shared(void** ends) {
  ends[0] = __start_weft_shared;
  ends[1] = __stop_weft_shared;
}
"""


class ShimKernels:
    """The kernels of a text, compiled for this processor."""

    def __init__(self, library: ctypes.CDLL, checks: bool) -> None:
        self._library = library
        self._checks = checks
        ends = (ctypes.c_void_p * 2)()
        library.weft_shim_shared(ends)
        self._ends = tuple(end or 0 for end in ends)

    @property
    def path(self) -> str:
        """The file of the library."""
        return str(self._library._name)

    def entry(self, kernel: str) -> Entry:
        """A kernel as a function of its grid, its block, its dynamic shared memory, the address of
        an array of pointers to its parameters, and the memory that it may access. It returns when
        the kernel is done, and raises DeviceError when that touches other memory, or races."""
        launch = _runtime()
        function = getattr(self._library, f"weft_shim_entry_{kernel}")
        name = kernel.encode()

        def run(
            grid: Sequence[int],
            block: Sequence[int],
            shared: int,
            params: int,
            known: Iterable[Range],
        ) -> None:
            ranges = np.array([*known], np.uint64).reshape(-1, 3)
            sizes = [(ctypes.c_uint * 3)(*n, *[1] * (3 - len(n))) for n in (grid, block)]
            with _running:
                error = launch(
                    name, function, *sizes, shared, params, self._checks, ranges.ctypes.data,
                    len(ranges), *self._ends,
                )  # fmt: skip
            if error:
                raise DeviceError(error.decode(errors="replace"))

        return run

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[NDArray[Any] | bytes | Local],
    ) -> None:
        """Launches a kernel on arrays of this process; `Local` is shared memory."""
        packed, known, shared = [], [], 0
        for arg in args:
            if isinstance(arg, Local):
                start = -(-shared // 16) * 16
                packed.append(start.to_bytes(4, "little"))
                shared = start + arg.nbytes
            elif isinstance(arg, bytes):
                packed.append(arg)
            else:
                packed.append(arg.ctypes.data.to_bytes(8, "little"))
                known.append((arg.ctypes.data, arg.nbytes, bool(arg.flags.writeable)))
        params = Packed(packed)
        self.entry(kernel)(grid, block, shared, params.address, known)


@cache
def compile_shim(source: str, defines: tuple[str, ...] = (), checks: bool = True) -> ShimKernels:
    """The kernels of a text, one object for all who ask. With `checks`, every access of memory is
    checked.

    Raises DeviceError with the compiler's words when it refuses the text."""
    options = [f"-D{define}" for define in defines]
    _runtime()  # before the kernels, whose symbols it has
    plain = _run(source, ("-E", "-P", "-w", *options)).decode()
    entries = "".join(f"SHIM_ENTRY({name})\n" for name in sorted(set(_KERNEL.findall(plain))))
    text = f'#include "shim.h"\n{source}\n{entries}{_ENDS}'
    return ShimKernels(_library(text, (*_KERNELS, *options, *(_CHECKED if checks else ()))), checks)
