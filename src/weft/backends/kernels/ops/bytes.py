"""Activations as bytes with a scale for each 32, which products with weights in planes read.

They lie in scratch memory: the codes of all units, 32 bytes each, then 8 bytes for each unit: its
scale, and the sums of the codes of both halves in 16 bits. On OpenCL and WebGPU these are the
numbers of the cpu's blocks (`form_of`): in q8_0 and q8_1 the scale has f16's precision, in q8_1
the scaled sum of all codes, as f32, takes the place of both sums, and in q8_K eight units have one
scale.
"""

from __future__ import annotations

from math import prod

from weft.backends.kernels.launch import Scratch, ScratchSlot, View
from weft.dtype import DType
from weft.program import Layout

CODES = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl",
    "iq4_xs", "mxfp4",
)  # fmt: skip
"""Formats that kernels read from planes as bytes."""


def form_of(weights: DType) -> str:
    """The form of activations that meet such weights: the blocks that products on the cpu read."""
    if weights.block == 256:
        return "q8_K"
    return "q8_1" if weights.name in ("q4_1", "q5_1") else "q8_0"


def span_of(form: str) -> int:
    """The number of elements with one scale."""
    return 256 if form == "q8_K" else 32


def read_bytes(dtype: DType, layout: Layout) -> bool:
    """Whether products with such weights read bytes."""
    return layout == "planes" and dtype.name in CODES


def place_of(x: View, form: str = "q8_0") -> Scratch:
    """Where the bytes of these activations are in a form."""
    return Scratch(ScratchSlot[form.upper()], 40 * (prod(x.ne) // 32))


def same(a: View, b: View) -> bool:
    """Whether two views are the same tensor."""
    return a.buffer is b.buffer and a.packed == b.packed
