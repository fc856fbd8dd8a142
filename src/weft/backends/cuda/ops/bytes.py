"""The launches that make activations bytes (`weft.backends.kernels.ops.bytes`).

`quantized` does nothing else. The kernels of NORM_SCALE and GLU make bytes of their result, too."""

from __future__ import annotations

from math import prod

from weft.backends.kernels.launch import Call, Launch, Scratch, View, f32, i32
from weft.backends.kernels.ops.bytes import place_of


def aligned(view: View) -> bool:
    """Whether every row begins at a multiple of 16 bytes."""
    return not any(n % 16 for n in (view.at, *view.nb[1:]))


def quantized(x: View) -> tuple[Launch, Scratch]:
    """The launch that makes bytes of activations, and where they are."""
    to = place_of(x)
    defines = (f"X={x.dtype.name}", *(("ALIGNED",) if aligned(x) else ()))
    grid = (-(-prod(x.ne) // 512),)
    return Launch("quantize.cu", defines, "quantize", (x, to), grid, (128,), x, True), to


def _units(*views: View | None) -> bool:
    """Whether rows are f32, aligned, without gaps and of whole units."""
    return all(
        v is None or (v.dtype.name == "f32" and v.nb[0] == 4 and v.ne[0] % 32 == 0 and aligned(v))
        for v in views
    )


def norm_scale(call: Call) -> list[Launch] | None:
    """The launch of NORM_SCALE whose result products read, or None."""
    s, w, d, p = call.view(0), call.view(1), call.dst, call.params
    bias, addend = call.optional(2), call.optional(3)
    if call.feeds is None or not _units(s, w, bias, addend, d):
        return None
    args = (
        s, w, bias or s, addend or s, d, place_of(d), i32(p.centred), i32(bias is not None),
        i32(addend is not None), f32(p.eps),
    )  # fmt: skip
    return [Launch("norm.cu", ("X=f32",), "norm_bytes", args, (prod(d.ne[1:]),), (256,), d)]


def glu(call: Call) -> list[Launch] | None:
    """The launch of GLU whose result products read, or None."""
    x, gate, d, p = call.view(0), call.optional(1), call.dst, call.params
    from_x = from_gate = 0
    if gate is None:
        gate, half = x, x.ne[0] // 2
        from_x, from_gate = (half, 0) if p.swapped else (0, half)
    lie = all(v.dtype.name == "f32" and v.nb[0] == 4 for v in (x, gate))
    if call.feeds is None or not lie or not _units(d):
        return None
    args = (x, gate, d, place_of(d), i32(p.op), i32(from_x), i32(from_gate), f32(p.alpha),
            f32(p.limit))  # fmt: skip
    grid = (-(-prod(d.ne) // 512),)
    return [Launch("glu.cu", (), "glu_bytes", args, grid, (128,), d)]
