"""Products of weights with activations: a few columns by lanes, many by tensor cores.

Weights in planes meet activations that are bytes with a scale for each 32 (`quantize.cu`), as on
other devices; f16 and bf16 weights meet activations as they are, or on tensor cores in their own
type. A result has one order of its sums for up to `FEW` columns, and another one for more; in
neither does it depend on how many columns there are. Tokens that choose experts go the same ways:
few by lanes, each column with its expert; the columns of many are sorted by expert on the device
(`experts.cu`), and tensor cores multiply those of one expert together.
"""

from __future__ import annotations

from math import prod

from weft.backends.kernels.launch import Call, Launch, Local, Scratch, Slot, View, i32

__all__ = ["CODES", "FEW", "mul_mat", "mul_mat_id"]

CODES = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4",
)  # fmt: skip
"""Formats that `codes.h` reads from planes."""

FEW = 8
"""The most columns that lanes multiply with; more go to tensor cores."""

_HALVES = ("f16", "bf16")
_FLOATS = ("f32", *_HALVES)
_WARPS = 4
_MOST_EXPERTS = 12_000
"""Their numbers fit shared memory."""
_TILE_ROWS = 128


def _aligned(view: View) -> bool:
    """Whether every row begins at a multiple of 16 bytes."""
    return not any(n % 16 for n in (view.at, *view.nb[1:]))


def _fits(view: View) -> bool:
    """Whether the grid has a place for each matrix."""
    return view.ne[2] * view.ne[3] <= 65_535


def _quantized(x: View) -> tuple[Launch, Scratch]:
    """The launch that makes bytes of activations, and where they are."""
    units = prod(x.ne) // 32
    to = Scratch(0, 40 * units)
    defines = (f"X={x.dtype.name}", *(("ALIGNED",) if _aligned(x) else ()))
    return Launch("quantize.cu", defines, "quantize", (x, to), (-(-units // 16),), (128,)), to


def _width(columns: int) -> int:
    """The columns of a warp: 1, 2, 4 or 8."""
    return min(FEW, 1 << (columns - 1).bit_length())


def _by_lanes(file: str, defines: tuple[str, ...], args: tuple[object, ...], d: View) -> Launch:
    """A launch of groups of warps, each of which has rows of its own."""
    columns = _width(d.ne[1])
    rows = 2 if columns <= 2 else 1
    defines = (*defines, f"COLS={columns}", f"ROWS={rows}")
    grid = (-(-d.ne[0] // (_WARPS * rows)), -(-d.ne[1] // columns), d.ne[2] * d.ne[3])
    return Launch(f"{file}.cu", defines, file, args, grid, (32, _WARPS, 1))


def _by_tiles(file: str, defines: tuple[str, ...], args: tuple[object, ...], d: View) -> Launch:
    """A launch of groups on tensor cores, each of which has a tile of the result."""
    tile = next((n for n in (32, 64) if d.ne[1] <= n), 128)
    grid = (-(-d.ne[0] // _TILE_ROWS), -(-d.ne[1] // tile), d.ne[2] * d.ne[3])
    return Launch(f"{file}.cu", (*defines, f"TILE={tile}"), file, args, grid, (256, 1, 1))


def _halves_lie(w: View, x: View) -> bool:
    """Whether kernels of float weights read these."""
    return w.dtype.name in _FLOATS and w.ne[0] % 8 == 0 and _aligned(w) and _aligned(x)


def _narrow(w: View, x: View) -> tuple[tuple[str, ...], Scratch]:
    """How `gemm_half.cu` is built for weights of 16 bits, and where activations in their type are,
    each column with a factor."""
    defines = (f"X={x.dtype.name}", *(("TO_BF16",) if w.dtype.name == "bf16" else ()))
    return defines, Scratch(0, prod(x.ne[1:]) * (2 * x.ne[0] + 4))


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
    rest = (bias or x, d, i32(bias is not None))
    if w.layout == "planes":
        if w.dtype.name not in CODES:
            return None
        quantize, columns = _quantized(x)
        defines: tuple[str, ...] = (f"W={w.dtype.name}",)
        args = (w, columns, x, *rest)
        if d.ne[1] <= FEW:
            return [quantize, _by_lanes("gemv", defines, args, d)]
        return [quantize, _by_tiles("gemm", defines, args, d)]
    if not _halves_lie(w, x):
        return None
    if d.ne[1] <= FEW:
        defines = (f"W={w.dtype.name}", f"X={x.dtype.name}")
        return [_by_lanes("gemv_float", defines, (w, x, *rest), d)]
    if w.dtype.name not in _HALVES:
        return None
    defines, columns = _narrow(w, x)
    multiply = _by_tiles("gemm_half", defines, (w, columns, x, *rest), d)
    return [_narrowed(x, columns, multiply), multiply]


def _sorted(w: View, ids: View, tile: int) -> tuple[Launch, Scratch, int]:
    """The launch that sorts columns by expert, where its tables are, and how many tiles there may
    be."""
    chosen, experts = ids.ne[0] * ids.ne[1], w.ne[2]
    n_tiles = chosen // tile + min(chosen, experts)
    to = Scratch(2, 16 * n_tiles + 4 * chosen)
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


def mul_mat_id(call: Call) -> list[Launch] | None:
    """The launches of MUL_MAT_ID, or None."""
    w, x, ids, d = call.view(0), call.view(1), call.view(2), call.dst
    if x.dtype.name not in _FLOATS or max(d.ne[1:3]) > 65_535 or w.ne[2] > _MOST_EXPERTS:
        return None
    few = d.ne[2] <= FEW
    grid = (-(-d.ne[0] // (2 * _WARPS)), d.ne[1], d.ne[2])
    if w.layout == "planes":
        if w.dtype.name not in CODES:
            return None
        quantize, columns = _quantized(x)
        defines: tuple[str, ...] = (f"W={w.dtype.name}",)
        if not few:
            return [quantize, *_experts_by_tiles("gemm", defines, w, columns, x, ids, d)]
        args = (w, columns, x, ids, d, Slot.FAULT, Slot.STEP)
        defines = (*defines, "COLS=1", "ROWS=2")
        return [quantize, Launch("gemv.cu", defines, "gemv_experts", args, grid, (32, _WARPS, 1))]
    if not _halves_lie(w, x):
        return None
    if few:
        defines = (f"W={w.dtype.name}", f"X={x.dtype.name}", "COLS=1", "ROWS=2")
        args = (w, x, ids, d, Slot.FAULT, Slot.STEP)
        file = "gemv_float"
        return [Launch(f"{file}.cu", defines, f"{file}_experts", args, grid, (32, _WARPS, 1))]
    if w.dtype.name not in _HALVES:
        return None
    defines, columns = _narrow(w, x)
    sort, multiply = _experts_by_tiles("gemm_half", defines, w, columns, x, ids, d)
    return [_narrowed(x, columns, multiply), sort, multiply]
