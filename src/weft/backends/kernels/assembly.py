"""Kernel files put together for a compiler: enumerations, headers and the file, with codebooks."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

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
