"""Kernel files put together for a compiler: enumerations, headers and the file, with codebooks."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.enums import enums_of
from weft.quants import grid

_HEADERS = {
    "binary.cl": ("place.h",),
    "unary.cl": ("place.h", "functions.h"),
    "glu.cl": ("place.h", "functions.h", "glu.h", "activations.h"),
    "norm.cl": ("activations.h",),
    "quantize.cl": ("activations.h",),
    "matmul.cl": ("formats.h", "codebooks.h", "planes.h"),
    "gemv.cl": ("formats.h", "planes.h", "bytes.h"),
    "gemm.cl": ("formats.h", "planes.h", "bytes.h"),
    "outer.cl": ("formats.h", "codebooks.h"),
    "planes.cl": ("formats.h",),
    "attention.cl": ("formats.h", "codebooks.h"),
    "flash.cl": ("formats.h", "codebooks.h"),
    "copy.cl": ("formats.h", "codebooks.h", "planes.h", "blocks.h", "moves.h"),
    "tensor.cl": ("place.h", "moves.h", "whole.h"),
    "map.cl": ("place.h", "functions.h", "whole.h"),
    "tensor_reduce.cl": ("place.h", "whole.h"),
    "sort.cl": ("whole.h",),
    "gather.cl": ("place.h", "moves.h", "whole.h"),
    "recurrent.cl": ("place.h",),
    "hyper.cl": ("place.h", "formats.h", "codebooks.h"),
    "back.cl": ("place.h",),
    "conv.cl": ("place.h",),
    "window.cl": ("place.h", "moves.h", "whole.h"),
}
"""The headers that a kernel file needs besides `common.h`."""


def headers(file: str) -> tuple[str, ...]:
    """The headers that a kernel file needs besides `common.h`."""
    return _HEADERS.get(file, ())


@cache
def source_of(file: str) -> str:
    """A kernel file behind its enumerations and headers, as the compiler gets it. Errors name
    files and lines."""
    return enums_of(file) + _joined("common.h", *headers(file), file)


@cache
def functions(file: str, *headers: str) -> str:
    """Headers without a kernel, behind the enumerations of a file."""
    return enums_of(file) + _joined("common.h", *headers)


def _joined(*names: str) -> str:
    folder = files("weft.backends.kernels") / "sources"
    return "\n".join(f'#line 1 "{name}"\n{(folder / name).read_text()}' for name in names)


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
def codebooks(defines: tuple[str, ...]) -> dict[str, NDArray[np.uint16]]:
    """The codebooks of the formats that are used, by the names of their arrays in `codebooks.h`."""
    names = dict.fromkeys(d.removeprefix("USE_") for d in defines)
    return {_array(name): _codes(name) for name in names if name in _CODEBOOKS}


def _array(name: str) -> str:
    return "GRID_iq1_s" if name == "iq1_m" else f"GRID_{name}"


@cache
def _codes(name: str) -> NDArray[np.uint16]:
    """The codebook of a format, a code for each vector."""
    bits, levels = _CODEBOOKS[name]
    vectors = grid(name)
    places = np.searchsorted(np.array(levels, np.float32), vectors)
    codes: NDArray[np.uint16] = (places << (bits * np.arange(vectors.shape[1]))).sum(1, np.uint16)
    return codes


def tables(defines: tuple[str, ...]) -> str:
    """The codebooks of the formats that are used, as constant arrays."""
    return "".join(
        f"__constant ushort {name}[{len(codes)}] = {{{','.join(map(str, codes))}}};\n"
        for name, codes in codebooks(defines).items()
    )
