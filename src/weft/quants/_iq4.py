"""Four bits with uneven levels: iq4_nl (32 elements) and iq4_xs (256 elements).

    iq4_nl  f16 d, u8 qs[16]                                   x = d * LEVELS[q]
    iq4_xs  f16 d, u16 scales_h, u8 scales_l[4], u8 qs[128]    x = d * (s - 32) * LEVELS[q]

Each 16 bytes of `qs` are a group of 32: element j in the low and 16+j in the high bits of byte j.
iq4_xs has a 6-bit scale s for each group: four low bits in `scales_l`, two high in `scales_h`.

Source: `quantize_row_iq4_nl_impl` and the dequantizers in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from weft.quants._blocks import (
    F32,
    TINY_GROUP,
    U8,
    bit_planes,
    element_first,
    get_f16,
    low_then_high,
    nearest_int,
    ordered_sum,
    put_f16,
    reciprocal,
    signed_peak,
)

LEVELS: F32 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""The value of each code, for a scale of one."""

_DOUBLED_MIDPOINTS = LEVELS[1:] + LEVELS[:-1]
_TRIES = 7


def decode_iq4_nl(blocks: U8) -> F32:
    codes = bit_planes(blocks[:, 2:], (0, 4), 15).reshape(-1, 32)
    return get_f16(blocks, 0) * LEVELS[codes]


def decode_iq4_xs(blocks: U8) -> F32:
    low = bit_planes(blocks[:, 4:8], (0, 4), 15).swapaxes(1, 2).reshape(-1, 8)
    high = bit_planes(blocks[:, 2:4], (0, 2, 4, 6), 3).swapaxes(1, 2).reshape(-1, 8)
    scales = get_f16(blocks, 0) * ((low | high << np.uint8(4)).view(np.int8) - np.int8(32))
    codes = bit_planes(blocks[:, 8:].reshape(-1, 8, 16), (0, 4), 15).reshape(-1, 8, 32)
    return (scales[:, :, None] * LEVELS[codes]).reshape(-1, 256)


def _nearest_levels(x: F32) -> U8:
    """Codes of the nearest levels; the upper one at a midpoint, the last for NaN.

    Doubling x keeps both sides of the comparison exact."""
    doubled = x + x
    codes = np.full(x.shape, len(_DOUBLED_MIDPOINTS), np.uint8)
    for midpoint in _DOUBLED_MIDPOINTS:
        codes -= (doubled < midpoint).view(np.uint8)
    return codes


def _sums(x: F32, weights: F32, codes: U8) -> tuple[F32, F32]:
    """(sum of w*q*x, sum of w*q*q) of each sub-block."""
    q = LEVELS[codes]
    wq = weights * q
    return ordered_sum(wq * x), ordered_sum(wq * q)


def _first_fit(x: F32, sign: int) -> tuple[F32, F32, U8]:
    """(scale, sum of w*q*x, codes) with the peak at the level of largest magnitude."""
    peak = signed_peak(x, axis=0)[1]
    d = np.float32(sign) * peak / LEVELS[0]
    codes = _nearest_levels(np.float32(1) / d * x)
    sum_qx, sum_q2 = _sums(x, x * x, codes)
    return np.where(sum_q2 > 0, sum_qx / sum_q2, np.float32(0)), sum_qx, codes


def _search_scales(x: F32) -> F32:
    """The scale `[m]` of each column of `x` `[32, m]`: the best of a first fit and 15 tries."""
    amax, peak = signed_peak(x, axis=0)
    weights = x * x
    d, sum_qx, _ = _first_fit(x, sign=-1)
    best = d * sum_qx
    for step in range(-_TRIES, _TRIES + 1):
        inverse = (np.float32(step) + LEVELS[0]) / peak
        sum_qx, sum_q2 = _sums(x, weights, _nearest_levels(inverse * x))
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        d = np.where(better, sum_qx / sum_q2, d)
        best = np.where(better, d * sum_qx, best)
    return np.where(amax < TINY_GROUP, np.float32(0), d)


def _pack(codes: U8) -> U8:
    """Codes `[32, m]`, element first, to bytes `[m, 16]`."""
    return low_then_high(codes.T.reshape(-1, 2, 16))


def encode_iq4_nl(x: F32) -> U8:
    blocks = np.empty((len(x), 18), np.uint8)
    columns = element_first(x, 32)
    scales = _search_scales(columns)
    put_f16(blocks, 0, scales)
    blocks[:, 2:] = _pack(_nearest_levels(reciprocal(scales) * columns))
    return blocks


def runtime_iq4_nl(x: F32) -> U8:
    """iq4_nl without the search, as the reference writes it into a KV cache.

    In a block of zeros the reference leaves the codes unset (its scale is 0); here they are 0."""
    blocks = np.empty((len(x), 18), np.uint8)
    columns = element_first(x, 32)
    zero = np.abs(columns).max(0) < TINY_GROUP
    d, _, codes = _first_fit(columns, sign=1)
    put_f16(blocks, 0, np.where(zero, np.float32(0), d))
    blocks[:, 2:] = _pack(np.where(zero, np.uint8(0), codes))
    return blocks


def encode_iq4_xs(x: F32) -> U8:
    blocks = np.empty((len(x), 136), np.uint8)
    columns = element_first(x, 32)
    scales = _search_scales(columns).reshape(-1, 8)
    d = -signed_peak(scales, axis=1)[1] / np.float32(32)
    put_f16(blocks, 0, d)
    steps = np.clip(nearest_int(reciprocal(d)[:, None] * scales), -32, 31)
    group_scale = (d[:, None] * steps.astype(np.float32)).reshape(-1)
    codes = _nearest_levels(reciprocal(group_scale) * columns)
    blocks[:, 8:] = _pack(codes).reshape(-1, 128)
    stored = (steps + 32).astype(np.uint8)
    blocks[:, 4:8] = low_then_high((stored & np.uint8(15)).reshape(-1, 4, 2).swapaxes(1, 2))
    high = (stored >> 4).reshape(-1, 2, 4) << np.array([0, 2, 4, 6], np.uint8)
    blocks[:, 2:4] = np.bitwise_or.reduce(high, axis=2)
    return blocks
