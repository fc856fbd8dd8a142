"""Products of weights with activations: a few columns by lanes, many by tensor cores.

Weights in planes meet activations that are bytes with a scale for each 32 (`bytes.py`); f16 and
bf16 weights meet activations as they are, or on tensor cores in their own type. Blocks that have no
planes become bf16 there. A result has one order of its sums for up to `Limits.few` columns, and
another one for more; in neither does it depend on how many columns there are.

Tokens that choose experts go the same ways: few by lanes, each column with its expert; the columns
of many are sorted by expert on the device (`experts.cu`), and tensor cores multiply those of one
expert together.
"""

from __future__ import annotations

from math import prod

from weft.backends.cuda.ops.bytes import aligned, quantized
from weft.backends.kernels.launch import Call, Launch, Local, Scratch, ScratchSlot, Slot, View, i32
from weft.backends.kernels.ops.bytes import CODES, same
from weft.backends.kernels.ops.matmul import used

__all__ = ["CODES", "FEW", "mul_mat", "mul_mat_add", "mul_mat_id"]

FEW = 8
"""The maximum number of columns per warp of lanes; up to `Limits.few` columns lanes multiply."""

_HALVES = ("f16", "bf16")
_FLOATS = ("f32", *_HALVES)
_WARPS = 4
_MOST_EXPERTS = 12_000
"""The maximum number of experts whose counters fit shared memory."""
_TILE_ROWS = 128


def _fits(view: View) -> bool:
    """Whether the grid has a place for each matrix."""
    return view.ne[2] * view.ne[3] <= 65_535


def _by_lanes(file: str, defines: tuple[str, ...], args: tuple[object, ...], d: View) -> Launch:
    """A launch of groups of warps, each of which has rows of its own."""
    columns = min(FEW, 1 << (d.ne[1] - 1).bit_length())  # of a warp: 1, 2, 4 or 8
    rows = 2 if columns <= 2 else 1
    defines = (*defines, f"COLS={columns}", f"ROWS={rows}")
    grid = (-(-d.ne[0] // (_WARPS * rows)), -(-d.ne[1] // columns), d.ne[2] * d.ne[3])
    return Launch(f"{file}.cu", defines, file, args, grid, (32, _WARPS, 1))


def _by_tiles(file: str, defines: tuple[str, ...], args: tuple[object, ...], d: View) -> Launch:
    """A launch of groups on tensor cores, each of which has a tile of the result."""
    tile = next((n for n in (32, 64) if d.ne[1] <= n), 128)
    grid = (-(-d.ne[0] // _TILE_ROWS), -(-d.ne[1] // tile), d.ne[2] * d.ne[3])
    return Launch(f"{file}.cu", (*defines, f"TILE={tile}"), file, args, grid, (256, 1, 1))


def _floats_lie(w: View, x: View) -> bool:
    """Whether kernels of float weights read these."""
    return w.dtype.name in _FLOATS and w.ne[0] % 8 == 0 and aligned(w) and aligned(x)


def _narrows(w: View, x: View) -> bool:
    """Whether tensor cores multiply these in 16 bits: floats of 16 bits, and blocks of any format,
    which are decoded on their way."""
    return w.dtype.is_quantized or (w.dtype.name in _HALVES and _floats_lie(w, x))


def _narrow(w: View, x: View) -> tuple[tuple[str, ...], Scratch]:
    """The defines of `gemm_half.cu` for these weights, and the scratch memory of activations of
    16 bits with a factor for each column."""
    bf16 = ("TO_BF16",) if w.dtype.name == "bf16" else ()
    decoded = ("DECODED", *used(W=w)) if w.dtype.is_quantized else ()
    defines = (f"X={x.dtype.name}", *bf16, *decoded)
    return defines, Scratch(ScratchSlot.NODE, prod(x.ne[1:]) * (2 * x.ne[0] + 4))


def _narrowed(x: View, to: Scratch, reader: Launch) -> Launch:
    """The launch that makes them, of the program that has the reader."""
    return Launch(reader.file, reader.defines, "narrow", (x, to), (prod(x.ne[1:]),), (128,))


def mul_mat(call: Call) -> list[Launch] | None:
    """The launches of MUL_MAT, or None."""
    w, x, d, bias = call.view(0), call.view(1), call.dst, call.optional(2)
    if call.params is not None or not _fits(d) or x.dtype.name not in _FLOATS:
        return None
    if bias is not None and bias.dtype.name != "f32":
        return None
    rest, few = (bias or x, d, i32(bias is not None)), call.limits.few
    if w.layout == "planes":
        if w.dtype.name not in CODES:
            return None
        quantize, columns = quantized(x)
        defines: tuple[str, ...] = (f"W={w.dtype.name}",)
        args = (w, columns, x, *rest)
        if d.ne[1] <= few:
            return [quantize, _by_lanes("gemv", defines, args, d)]
        return [quantize, _by_tiles("gemm", defines, args, d)]
    # f32 meets no tensor cores: lanes do it all where there is to be one order
    if (d.ne[1] <= few or (few == 0 and w.dtype.name == "f32")) and _floats_lie(w, x):
        defines = (f"W={w.dtype.name}", f"X={x.dtype.name}")
        return [_by_lanes("gemv_float", defines, (w, x, *rest), d)]
    if d.ne[1] <= few or not _narrows(w, x):
        return None
    defines, columns = _narrow(w, x)
    multiply = _by_tiles("gemm_half", defines, (w, columns, x, *rest), d)
    return [_narrowed(x, columns, multiply), multiply]


def _sorted(w: View, ids: View, tile: int) -> tuple[Launch, Scratch, int]:
    """The launch that sorts columns by expert, where its tables are, and how many tiles there may
    be."""
    chosen, experts = ids.ne[0] * ids.ne[1], w.ne[2]
    n_tiles = chosen // tile + min(chosen, experts)
    to = Scratch(ScratchSlot.EXPERTS, 16 * n_tiles + 4 * chosen)
    args = (
        ids, to, i32(experts), i32(n_tiles), i32(tile), Slot.FAULT, Slot.STEP, Local(4 * experts),
    )  # fmt: skip
    return Launch("experts.cu", (), "by_expert", args, (1,), (512,)), to, n_tiles


def _experts_by_tiles(
    file: str, defines: tuple[str, ...], w: View, columns: Scratch, x: View, ids: View, d: View
) -> list[Launch]:
    """A launch that sorts columns by expert, and one on tensor cores, each group of which has a
    tile of the columns of an expert."""
    chosen = ids.ne[0] * ids.ne[1]
    tile = next((n for n in (32, 64) if chosen <= n * w.ne[2]), 128)
    sort, order, n_tiles = _sorted(w, ids, tile)
    args = (w, columns, order, i32(n_tiles), x, ids, d)
    grid = (-(-d.ne[0] // _TILE_ROWS), n_tiles)
    defines = (*defines, f"TILE={tile}")
    return [sort, Launch(f"{file}.cu", defines, f"{file}_experts", args, grid, (256, 1, 1))]


def mul_mat_add(call: Call, add: Call) -> list[Launch] | None:
    """The launches of MUL_MAT for few columns and of ADD, which adds a tensor of the same size, as
    a residual stream; or None."""
    w, d, total = call.view(0), call.dst, add.dst
    this = 0 if same(add.view(0), d) else 1
    other = add.view(1 - this)
    if (
        not same(add.view(this), d)
        or d.ne != other.ne
        or d.ne != total.ne
        or d.ne[1] > call.limits.few
    ):
        return None
    if w.layout != "planes" or any(v.dtype.name != "f32" for v in (other, total)):
        return None  # other kernels read activations where the sum may be written
    launches = mul_mat(call)
    if launches is None:
        return None
    *before, last = launches
    # the product is stored, too, as others may read it
    return [*before, last._replace(
        defines=(*last.defines, "ADDED"), args=(*last.args, other, total)
    )]  # fmt: skip


def mul_mat_id(call: Call) -> list[Launch] | None:
    """The launches of MUL_MAT_ID, or None."""
    w, x, ids, d = call.view(0), call.view(1), call.view(2), call.dst
    if x.dtype.name not in _FLOATS or max(d.ne[1:3]) > 65_535 or w.ne[2] > _MOST_EXPERTS:
        return None
    few = d.ne[2] <= call.limits.few
    grid = (-(-d.ne[0] // (2 * _WARPS)), d.ne[1], d.ne[2])
    if w.layout == "planes":
        if w.dtype.name not in CODES:
            return None
        quantize, columns = quantized(x)
        defines: tuple[str, ...] = (f"W={w.dtype.name}",)
        if not few:
            return [quantize, *_experts_by_tiles("gemm", defines, w, columns, x, ids, d)]
        args: tuple[object, ...] = (w, columns, x, ids, d, Slot.FAULT, Slot.STEP)
        defines = (*defines, "COLS=1", "ROWS=2")
        return [quantize, Launch("gemv.cu", defines, "gemv_experts", args, grid, (32, _WARPS, 1))]
    if few and _floats_lie(w, x):
        defines = (f"W={w.dtype.name}", f"X={x.dtype.name}", "COLS=1", "ROWS=2")
        file, args = "gemv_float", (w, x, ids, d, Slot.FAULT, Slot.STEP)
        return [Launch(f"{file}.cu", defines, f"{file}_experts", args, grid, (32, _WARPS, 1))]
    if few or not _narrows(w, x):
        return None
    defines, columns = _narrow(w, x)
    sort, multiply = _experts_by_tiles("gemm_half", defines, w, columns, x, ids, d)
    return [_narrowed(x, columns, multiply), sort, multiply]
