"""Kernel files put together for compilers of CUDA C++, on a GPU and on a processor."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from weft.backends.kernels import assembly

__all__ = ["DEVICE", "PREFIX", "source_of"]

_HEADERS: dict[str, tuple[str, ...]] = {
    "quantize.cu": ("tensor.h", "floats.h"),
    "gemv.cu": ("tensor.h", "codes.h"),
    "gemv_float.cu": ("tensor.h", "floats.h"),
    "gemm.cu": ("tensor.h", "codes.h", "tile.h"),
    "gemm_half.cu": ("tensor.h", "floats.h", "tile.h"),
    "experts.cu": ("tensor.h",),
    "flash.cu": ("tensor.h", "cache.h"),
}
"""The headers that a `.cu` file needs."""

_KERNEL = re.compile(r"__kernel void (\w+)\(")


def _read(name: str) -> str:
    return (files("weft.backends.cuda") / "kernels" / name).read_text()


PREFIX = "weft_"
"""Before the names of kernels of all devices, as CUDA has functions called `norm` and the like."""

DEVICE = "device.h"
"""The header in front of everything on a GPU; on a processor the shim's is."""


@cache
def source_of(file: str, defines: tuple[str, ...]) -> str:
    """A kernel file with all that it needs but `device.h` or `shim.h`.

    Files of all devices (`.cl`) stand behind `opencl.h`, which makes C++ of them; their kernels get
    the start of the grid as first parameter, and `PREFIX` before their names."""
    if file.endswith(".cl"):
        shared = assembly.tables(defines) + assembly.source_of(file)
        kernels = _KERNEL.sub(rf"__kernel void {PREFIX}\1(start_t start_, ", shared)
        return f'#line 1 "opencl.h"\n{_read("opencl.h")}\n{kernels}'
    return "\n".join(f'#line 1 "{name}"\n{_read(name)}' for name in (*_HEADERS.get(file, ()), file))
