"""Norms, softmax, rotary positions and Hadamard rotations."""

from __future__ import annotations

import math
import struct
from functools import lru_cache

from weft.backends.kernels.enums import Norm
from weft.backends.kernels.launch import Call, Launch, Local, Slot, Table, View, f32, i32
from weft.backends.kernels.ops.table import FLOATS, family, floats, source
from weft.graph.ops import HadamardParams, RopeMode, RopeParams
from weft.graph.tensor import Tensor

_MOST_ROTATED = 1024
"""Largest block of HADAMARD, which is in local memory."""


@family(*Norm.__members__, refuse=floats(0))
def _norm(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    args = (s, d, i32(Norm[call.op]), f32(call.params.eps), call.row_sums)
    defines = (*call.all_f32(s, d), *call.over_items)
    return [Launch("norm.cl", defines, "norm", args, *call.by_rows(s))]


@family("NORM_SCALE", refuse=floats(0, 1, 2, 3))
def _norm_scale(call: Call) -> list[Launch]:
    s, w, d, p = call.view(0), call.view(1), call.dst, call.params
    bias, addend = call.optional(2), call.optional(3)
    args = (
        s, w, bias or s, addend or s, d, i32(Norm.NORM if p.centred else Norm.RMS_NORM),
        i32(bias is not None), i32(addend is not None), f32(p.eps), call.row_sums,
    )  # fmt: skip
    defines = (*call.all_f32(s, w, bias, addend, d), *call.over_items)
    return [Launch("norm.cl", defines, "norm_scale", args, *call.by_rows(s))]


@family("GROUP_NORM", refuse=floats(0))
def _group_norm(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    size = -(-s.ne[2] // p.n_groups)
    grid = (1, -(-s.ne[2] // size), s.ne[3])
    args = (s, d, i32(size), f32(p.eps), call.row_sums)
    group = (call.limits.row_items, 1, 1)
    defines = (*call.all_f32(s, d), *call.over_items)
    return [Launch("norm.cl", defines, "group_norm", args, grid, group)]


@lru_cache(maxsize=64)
def slopes(n_head: int, max_bias: float) -> Table:
    """The factor that each head puts on its mask (ALiBi, arXiv 2108.12409).

    The first n heads take powers of m0, n being the power of two not above n_head; the others take
    odd powers of m1."""
    if max_bias == 0:
        return Table(f32(*[1.0] * n_head))
    n = 1 << (n_head.bit_length() - 1)
    m0, m1 = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    return Table(f32(*(m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1) for h in range(n_head))))


@family("SOFT_MAX", refuse=floats(0, 1, 2))
def _soft_max(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    mask, sinks = call.optional(1), call.optional(2)
    args = (
        s, mask or s, sinks or s, d, i32(mask is not None), i32(sinks is not None),
        f32(p.scale), slopes(s.ne[2], p.max_bias), call.row_sums,
    )  # fmt: skip
    defines = (*call.all_f32(s, mask, sinks, d), *call.over_items)
    return [Launch("softmax.cl", defines, "soft_max", args, *call.by_rows(s))]


def _rope_rule(node: Tensor) -> str | None:
    positions, factors = source(node, 1), source(node, 4 if node.op.name == "ROPE_SET_ROWS" else 2)
    if positions is not None and positions.dtype.name != "i32":
        return f"positions must be i32, not {positions.dtype.name}"
    if factors is not None and factors.dtype.name not in FLOATS:
        return f"factors must be f32, f16 or bf16, not {factors.dtype.name}"
    return floats(0)(node)


@family("ROPE", "ROPE_BACK", refuse=_rope_rule)
def _rope(call: Call) -> list[Launch]:
    s, pos, factors, d = call.view(0), call.view(1), call.optional(2), call.dst
    args = (s, pos, factors or s, d, *_rotation(call, s, factors))
    return [Launch("rope.cl", call.all_f32(s, factors, d), "rope", args, *_rope_items(call, s))]


def _rope_set_rows_rule(node: Tensor) -> str | None:
    ids = source(node, 2)
    if ids is not None and ids.dtype.name not in ("i32", "i64"):
        return f"ids must be i32 or i64, not {ids.dtype.name}"
    return _rope_rule(node)


@family("ROPE_SET_ROWS", refuse=_rope_set_rows_rule)
def _rope_set_rows(call: Call) -> list[Launch]:
    s, pos, ids, factors, d = (
        call.view(0), call.view(1), call.view(2), call.optional(4), call.dst
    )  # fmt: skip
    args = (
        s, pos, factors or s, ids, d, *_rotation(call, s, factors), Slot.FAULT, Slot.STEP,
    )  # fmt: skip
    defines = call.all_f32(s, factors, d)
    return [Launch("rope.cl", defines, "rope_set_rows", args, *_rope_items(call, s))]


def _hadamard_rule(node: Tensor) -> str | None:
    p = node.params
    assert isinstance(p, HadamardParams)
    if p.n > _MOST_ROTATED:
        return f"blocks must have at most {_MOST_ROTATED} numbers, not {p.n}"
    return floats(0)(node)


@family("HADAMARD", refuse=_hadamard_rule)
def _hadamard(call: Call) -> list[Launch]:
    s, d, n = call.view(0), call.dst, call.params.n
    args = (s, d, i32(n), Local(4 * n))
    grid = (s.ne[0] // n, s.ne[1], s.ne[2] * s.ne[3])
    group = (min(n, call.limits.row_items), 1, 1)
    return [Launch("rope.cl", call.all_f32(s, d), "hadamard", args, grid, group)]


def _pairs(p: RopeParams, s: View) -> int:
    return s.ne[0] // 2 if p.mode is RopeMode.VISION else p.n_dims // 2


def _rope_items(call: Call, s: View) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The grid and the group: an item for each pair and for each element beside."""
    return call.elements(s, s.ne[0] - _pairs(call.params, s))


def _rotation(call: Call, s: View, factors: View | None) -> tuple[Table, bytes]:
    """The table of pairs, and `rotation_t`."""
    p: RopeParams = call.params
    n_pairs = _pairs(p, s)
    step, distance = (2, 1) if p.mode is RopeMode.NORMAL else (1, n_pairs)
    table, magnitude = _rope_table(p, n_pairs)
    numbers = i32(n_pairs, p.n_offset, step, distance, factors is not None)
    direction = -1.0 if call.op == "ROPE_BACK" else 1.0
    return Table(table), numbers + f32(magnitude, direction)


@lru_cache(maxsize=64)
def _rope_table(p: RopeParams, n_pairs: int) -> tuple[bytes, float]:
    """The factor of the position and the plane of positions of each pair, and the magnitude.

    YaRN (arXiv 2309.00071) is linear in the position, so the factor contains it."""
    factor, magnitude = [], _f32(p.attn_factor)
    scale, mix, base = _f32(p.freq_scale), _f32(p.ext_factor), _f32(p.freq_base)
    low, high = _correction_range(p) if mix else (0, 0)
    if mix:
        magnitude *= 1 + 0.1 * math.log(1 / scale)
    for pair in range(n_pairs):
        plane, exponent = _section(p, pair)
        theta = base ** (-2.0 * exponent / p.n_dims)
        ramp = min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
        extrapolated = (1 - ramp) * mix
        factor += [theta * (scale * (1 - extrapolated) + extrapolated), float(plane)]
    return struct.pack(f"<{len(factor)}f", *factor), magnitude


def _section(p: RopeParams, pair: int) -> tuple[int, int]:
    """(plane, exponent): which of a token's four positions rotates a pair, and how fast."""
    if p.mode in (RopeMode.NORMAL, RopeMode.NEOX):
        return 0, pair
    sector = pair % max(sum(p.sections), 1)
    if p.mode is RopeMode.IMROPE:
        axis = sector % 3
        return (axis if sector < 3 * p.sections[axis] else 3), pair
    start = plane = 0
    while plane < 3 and sector >= start + p.sections[plane]:
        start += p.sections[plane]
        plane += 1
    return plane, sector - start if p.mode is RopeMode.VISION else pair


def _correction_range(p: RopeParams) -> tuple[float, float]:
    """The pairs between which YaRN blends from extrapolation to interpolation."""

    def pair_that_turns(n_rotations: float) -> float:
        wavelength = p.n_ctx_orig / (n_rotations * 2 * math.pi)
        return p.n_dims * math.log(wavelength) / (2 * math.log(_f32(p.freq_base)))

    low = math.floor(pair_that_turns(_f32(p.beta_fast)))
    high = math.ceil(pair_that_turns(_f32(p.beta_slow)))
    return max(0, low), min(p.n_dims - 1, high)


def _f32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
