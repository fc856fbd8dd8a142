"""Kernel files put together for compilers of CUDA C++."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from weft.backends.kernels import assembly

_HEADERS: dict[str, tuple[str, ...]] = {
    "quantize.cu": ("tensor.h", "floats.h", "bytes.h"),
    "norm.cu": ("tensor.h", "floats.h", "bytes.h"),
    "glu.cu": ("bytes.h",),
    "gemv.cu": ("tensor.h", "codes.h"),
    "gemv_float.cu": ("tensor.h", "floats.h"),
    "gemm.cu": ("tensor.h", "codes.h", "tile.h"),
    "gemm_half.cu": ("tensor.h", "floats.h", "tile.h"),
    "experts.cu": ("tensor.h",),
    "flash.cu": ("tensor.h", "cache.h"),
}
"""The headers that a `.cu` file needs."""

_SHARED: dict[str, tuple[str, ...]] = {"glu.cu": ("glu.cl", "functions.h", "glu.h")}
_DECODERS = ("", "formats.h", "codebooks.h")
"""The sources of all devices that decode blocks: the enumerations of a file, then headers."""

_KERNEL = re.compile(r"__kernel void (\w+)\(")


PREFIX = "weft_"
"""Before the names of kernels of all devices, as CUDA has functions called `norm` and the like."""

DEVICE = "device.h"
"""The header in front of everything on a GPU."""


@cache
def source_of(file: str, defines: tuple[str, ...]) -> str:
    """A kernel file with all that it needs but `device.h`.

    Files of all devices (`.cl`) stand behind `opencl.h`, which makes C++ of them; their kernels get
    the start of the grid as first parameter, and `PREFIX` before their names. With DECODED among
    `defines`, a `.cu` file has the functions that decode blocks."""
    if file.endswith(".cl"):
        text = assembly.tables(defines) + assembly.source_of(file)
        kernels = _KERNEL.sub(rf"__kernel void {PREFIX}\1(start_t start_, ", text)
        return f"{_joined('opencl.h')}\n{kernels}"
    headers = _HEADERS.get(file, ())
    shared = _DECODERS if "DECODED" in defines else _SHARED.get(file)
    if shared is None:
        return _joined(*headers, file)
    # these have tensors of their own; what stands before `opencl.h` needs CUDA's vectors
    before = [name for name in headers if name not in ("tensor.h", "tile.h")]
    behind = [name for name in headers if name == "tile.h"]
    functions = assembly.tables(defines) + assembly.functions(*shared)
    return "\n".join((_joined(*before, "opencl.h"), functions, _joined(*behind, file)))


def _joined(*names: str) -> str:
    folder = files("weft.backends.cuda") / "kernels"
    return "\n".join(f'#line 1 "{name}"\n{(folder / name).read_text()}' for name in names)
