"""Attention over a cache on tensor cores, its cells in parts where there are few rows."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Scratch, ScratchSlot, View, f32, i32
from weft.backends.kernels.ops.norm import slopes

BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
"""Formats of blocks that `cache.h` reads; f16 and bf16 are copied as they lie."""

_WIDEST = 256
"""The largest head: more do not fit registers."""
_PART = 256
"""Cells of a part. A multiple of those that a kernel reads at once."""
_FEW = 64
"""The most rows of heads that share keys whose cells are in parts, which sums in another order;
more fill the device anyway."""


def _readable(view: View) -> bool:
    """True if head size and row strides meet the kernels' alignment."""
    step = 16 if view.dtype.name in ("f16", "bf16") else 2
    fits = view.ne[0] % 16 == 0 and view.ne[0] <= _WIDEST
    return fits and not any(n % step for n in (view.at, *view.nb[1:]))


def attention(call: Call) -> list[Launch] | None:
    """The launches of FLASH_ATTN_EXT, or None."""
    q, k, v, d, p = call.view(0), call.view(1), call.view(2), call.dst, call.params
    mask, sinks = call.optional(3), call.optional(4)
    types = {k.dtype.name, v.dtype.name}
    known = types == {"bf16"} or types <= {"f16", *BLOCKS}
    if not known or not (_readable(k) and _readable(v)) or k.ne[1] == 0:
        return None
    if q.dtype.name != "f32" or any(n % 4 for n in (q.at, *q.nb[1:])):
        return None
    if (mask and mask.dtype.name != "f16") or (sinks and sinks.dtype.name != "f32"):
        return None
    heads, rows = k.ne[2] * q.ne[3], q.ne[1] * (q.ne[2] // k.ne[2])
    if heads > 65_535:
        return None
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    parts = -(-k.ne[1] // _PART) if rows <= _FEW and call.limits.few else 1
    cells = _PART if parts > 1 else k.ne[1]
    defines = (
        f"K={k.dtype.name}", f"V={v.dtype.name}", f"DK={k.ne[0]}", f"DV={v.ne[0]}",
        f"WARPS={warps}", *(("TO_BF16",) if "bf16" in types else ()),
        *(("CAP",) if p.logit_softcap else ()),
    )  # fmt: skip
    to = Scratch(ScratchSlot.NODE, heads * rows * parts * 4 * (v.ne[0] + 2) if parts > 1 else 16)
    args = (
        q, k, v, mask or q, sinks or q, d, to, i32(mask is not None), i32(sinks is not None),
        f32(p.scale), f32(p.logit_softcap), slopes(q.ne[2], p.max_bias), i32(cells),
    )  # fmt: skip
    grid = (-(-rows // (16 * warps)), heads, parts)
    launches = [Launch("flash.cu", defines, "flash", args, grid, (32 * warps, 1, 1))]
    if parts > 1:
        ends = (to, q, k, sinks or q, d, i32(sinks is not None), i32(parts))
        launches.append(Launch("flash.cu", defines, "join", ends, (rows, heads, 1), (128, 1, 1)))
    return launches
