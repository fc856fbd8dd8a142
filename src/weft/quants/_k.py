"""The K-quants: blocks of 256 elements with scaled scales. q2_K q3_K q4_K q5_K q6_K q8_K.

    q2_K  u8 scales[16], u8 qs[64], f16 d, f16 dmin         16 x 16: x = d*s * q - dmin*m
    q3_K  u8 hmask[32], u8 qs[64], u8 scales[12], f16 d     16 x 16: x = d*(s-32) * (q - 4)
    q4_K  f16 d, f16 dmin, u8 scales[12], u8 qs[128]         8 x 32: x = d*s * q - dmin*m
    q5_K  ... as q4_K, with u8 qh[32] before qs              8 x 32: x = d*s * q - dmin*m
    q6_K  u8 ql[128], u8 qh[64], i8 scales[16], f16 d       16 x 16: x = d*s * (q - 32)
    q8_K  f32 d, i8 qs[256], i16 bsums[16]                  activations only: x = d * q

q2_K packs s and m in the low and high bits of a byte. q4_K and q5_K pack eight 6-bit s and m in 12
bytes (`_six_bit_pairs`), q3_K sixteen 6-bit s (`_six_bit_scales`). Two-bit `qs` of 128 elements
fill 32 bytes, 32 elements apart; four-bit `qs` of 64 elements likewise. High bits are planes of 32
elements: bit i (of `hmask`, `qh` of q5_K) or bits 2i (of `qh` of q6_K) belong to plane i.
`bsums` are the sums of 16 codes each.

Source: `quantize_row_q*_K_ref` and `dequantize_row_q*_K` in ggml-quants.c, block structures in
ggml-common.h.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.quants._blocks import (
    F32,
    I32,
    TINY_GROUP,
    U8,
    bit_planes,
    element_first,
    get_f16,
    low_then_high,
    nearest_int,
    ordered_sum,
    put_f16,
    signed_peak,
)
from weft.quants._k_search import fit_scale, fit_scale_and_min, fit_scale_by_element

_TWO_BITS = (0, 2, 4, 6)
_EIGHT_BITS = (0, 1, 2, 3, 4, 5, 6, 7)


# ---- packing


def _unpack_two_bits(packed: U8) -> U8:
    """Bytes `[m, 64]` to codes `[m, 256]`."""
    return bit_planes(packed.reshape(-1, 2, 32), _TWO_BITS, 3).reshape(-1, 256)


def _pack_two_bits(codes: U8) -> U8:
    """Codes 0..3 `[m, 256]` to bytes `[m, 64]`."""
    planes = codes.reshape(-1, 2, 4, 32) << np.array(_TWO_BITS, np.uint8)[:, None]
    packed: U8 = np.bitwise_or.reduce(planes, axis=2).reshape(-1, 64)
    return packed


def _unpack_four_bits(packed: U8) -> U8:
    """Bytes `[m, 128]` to codes `[m, 256]`."""
    return bit_planes(packed.reshape(-1, 4, 32), (0, 4), 15).reshape(-1, 256)


def _pack_four_bits(codes: U8) -> U8:
    """Codes 0..15 `[m, 256]` to bytes `[m, 128]`."""
    return low_then_high(codes.reshape(-1, 4, 2, 32)).reshape(-1, 128)


def _unpack_planes(packed: U8) -> U8:
    """Eight bit planes of 32: bytes `[m, 32]` to bits `[m, 256]`."""
    return bit_planes(packed, _EIGHT_BITS, 1).reshape(-1, 256)


def _pack_planes(bits: U8) -> U8:
    """Bits `[m, 256]` to eight planes in `[m, 32]`."""
    planes = bits.reshape(-1, 8, 32) << np.array(_EIGHT_BITS, np.uint8)[:, None]
    packed: U8 = np.bitwise_or.reduce(planes, axis=1)
    return packed


def _six_bit_pairs(packed: U8) -> tuple[U8, U8]:
    """The eight scales and eight minima of q4_K and q5_K, from 12 bytes.

    Pairs 0-3 are the low six bits of bytes 0-3 and 4-7; pairs 4-7 have four bits each in bytes
    8-11 and their upper two in the top of bytes 0-3 and 4-7."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, mins


def _pack_six_bit_pairs(scales: U8, mins: U8) -> U8:
    """The inverse of `_six_bit_pairs`, for values 0..63 `[m, 8]`."""
    first = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    second = mins[:, :4] | (mins[:, 4:] >> 4 << 6)
    third = (scales[:, 4:] & 15) | (mins[:, 4:] << 4)
    return np.concatenate([first, second, third], axis=1)


def _six_bit_scales(packed: U8) -> U8:
    """The sixteen scales of q3_K, from 12 bytes.

    Low four bits of scales 0-7 and 8-15 in the low and high halves of bytes 0-7; the upper two of
    scale j in byte 8 + j%4 at bit 2*(j/4)."""
    low = bit_planes(packed[:, :8], (0, 4), 15).reshape(-1, 16)
    high = bit_planes(packed[:, 8:], _TWO_BITS, 3).reshape(-1, 16)
    return low | (high << np.uint8(4))


def _pack_six_bit_scales(scales: U8) -> U8:
    """The inverse of `_six_bit_scales`, for values 0..63 `[m, 16]`."""
    high = (scales >> 4).reshape(-1, 4, 4) << np.array(_TWO_BITS, np.uint8)[:, None]
    low = low_then_high((scales & np.uint8(15)).reshape(-1, 2, 8))
    return np.concatenate([low, np.bitwise_or.reduce(high, axis=1)], axis=1)


# ---- decoding


def _scaled(codes: NDArray[np.uint8] | NDArray[np.int8], scales: F32) -> F32:
    """Codes `[m, 256]` times one scale a sub-block, `[m, n_sub]`; gives `[m, n_sub, length]`."""
    return codes.reshape(*scales.shape, -1) * scales[:, :, None]


def decode_q2_K(blocks: U8) -> F32:
    scales = get_f16(blocks, 80) * (blocks[:, :16] & 15)
    mins = get_f16(blocks, 82) * (blocks[:, :16] >> 4)
    values = _scaled(_unpack_two_bits(blocks[:, 16:80]), scales)
    return (values - mins[:, :, None]).reshape(-1, 256)


def decode_q3_K(blocks: U8) -> F32:
    scales = get_f16(blocks, 108) * (_six_bit_scales(blocks[:, 96:108]).view(np.int8) - np.int8(32))
    codes = _unpack_two_bits(blocks[:, 32:96]) | (_unpack_planes(blocks[:, :32]) << 2)
    return _scaled(codes.view(np.int8) - np.int8(4), scales).reshape(-1, 256)


def _decode_pairs(blocks: U8, codes: U8) -> F32:
    scales, mins = _six_bit_pairs(blocks[:, 4:16])
    values = _scaled(codes, get_f16(blocks, 0) * scales)
    return (values - (get_f16(blocks, 2) * mins)[:, :, None]).reshape(-1, 256)


def decode_q4_K(blocks: U8) -> F32:
    return _decode_pairs(blocks, _unpack_four_bits(blocks[:, 16:]))


def decode_q5_K(blocks: U8) -> F32:
    codes = _unpack_four_bits(blocks[:, 48:]) | (_unpack_planes(blocks[:, 16:48]) << np.uint8(4))
    return _decode_pairs(blocks, codes)


def decode_q6_K(blocks: U8) -> F32:
    low = bit_planes(blocks[:, :128].reshape(-1, 2, 64), (0, 4), 15).reshape(-1, 256)
    codes = low | (_unpack_two_bits(blocks[:, 128:192]) << 4)
    scales = get_f16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return _scaled(codes.view(np.int8) - np.int8(32), scales).reshape(-1, 256)


def decode_q8_K(blocks: U8) -> F32:
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return d * blocks[:, 4:260].view(np.int8)


# ---- encoding


def _requantize(x: F32, offset: F32 | None, scale: F32, codes: F32, low: int, high: int) -> U8:
    """Codes of `x` `[n, m]` under the scales as stored, less `low`, as `[m * n / 256, 256]`.

    Where a stored scale is zero the codes of the search stay."""
    numerator = x if offset is None else x + offset
    fresh = np.clip(nearest_int(numerator / scale), low, high) - low
    kept = np.where(scale == 0, codes.astype(np.int32), fresh)
    return np.ascontiguousarray(kept.astype(np.uint8).T).reshape(-1, 256)


def encode_q2_K(x: F32) -> U8:
    blocks = np.empty((len(x), 84), np.uint8)
    columns = element_first(x, 16)
    fit = fit_scale_and_min(columns, np.abs(columns), 3, -0.5, 0.1, 15, absolute=True)
    scales, mins = fit[0].reshape(-1, 16), fit[1].reshape(-1, 16)

    def four_bits(values: F32, offset: int) -> tuple[F32, I32]:
        """(scale as stored, codes 0..15) of sixteen scales or minima."""
        top = np.maximum(values.max(1), np.float32(0))[:, None]
        codes = nearest_int(np.float32(15) / top * values)
        return put_f16(blocks, offset, top[:, 0] / np.float32(15)), np.where(top > 0, codes, 0)

    d, s = four_bits(scales, 80)
    dmin, m = four_bits(mins, 82)
    packed = (s & 255 | m << 4 & 255).astype(np.uint8)
    blocks[:, :16] = packed
    scale = (d[:, None] * (packed & 15)).reshape(-1)
    offset = (dmin[:, None] * (packed >> 4)).reshape(-1)
    blocks[:, 16:80] = _pack_two_bits(_requantize(columns, offset, scale, fit[2], 0, 3))
    return blocks


def encode_q3_K(x: F32) -> U8:
    blocks = np.empty((len(x), 110), np.uint8)
    columns = element_first(x, 16)
    fit, searched = fit_scale_by_element(columns, 4)
    scales = fit.reshape(-1, 16)
    peak = signed_peak(scales, axis=1)[1]
    inverse = np.float32(-32) / peak
    # C narrows the rounded value to int8 before it clips
    steps = np.clip(nearest_int(inverse[:, None] * scales).astype(np.int8), -32, 31)
    stored = np.where((peak != 0)[:, None], steps.view(np.uint8) + np.uint8(32), np.uint8(0))
    blocks[:, 96:108] = _pack_six_bit_scales(stored)
    d = put_f16(blocks, 108, np.where(peak != 0, np.float32(1) / inverse, np.float32(0)))
    scale = (d[:, None] * (stored.view(np.int8) - np.int8(32))).reshape(-1)
    codes = _requantize(columns, None, scale, searched, -4, 3)
    blocks[:, :32] = _pack_planes(codes >> np.uint8(2))
    blocks[:, 32:96] = _pack_two_bits(codes & np.uint8(3))
    return blocks


def _encode_pairs(x: F32, blocks: U8, top: int, first: float, n_steps: int) -> U8:
    """Fill d, dmin and scales of q4_K or q5_K; returns the codes `[m, 256]`."""
    columns = element_first(x, 32)
    rms = np.sqrt(ordered_sum(columns * columns) / np.float32(32))
    weights = rms + np.abs(columns)
    fit = fit_scale_and_min(columns, weights, top, first, 0.1, n_steps, absolute=False)

    def six_bits(values: F32) -> tuple[F32, U8]:
        """(largest, codes 0..63) of eight scales or minima."""
        largest = np.maximum(values.max(1), np.float32(0))
        inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
        codes = nearest_int(inverse[:, None] * values).astype(np.uint8)
        return largest, np.minimum(codes, np.uint8(63))

    largest_scale, s = six_bits(fit[0].reshape(-1, 8))
    largest_min, m = six_bits(fit[1].reshape(-1, 8))
    blocks[:, 4:16] = _pack_six_bit_pairs(s, m)
    d = put_f16(blocks, 0, largest_scale / np.float32(63))
    dmin = put_f16(blocks, 2, largest_min / np.float32(63))
    scale = (d[:, None] * s).reshape(-1)
    offset = (dmin[:, None] * m).reshape(-1)
    return _requantize(columns, offset, scale, fit[2], 0, top)


def encode_q4_K(x: F32) -> U8:
    blocks = np.empty((len(x), 144), np.uint8)
    blocks[:, 16:] = _pack_four_bits(_encode_pairs(x, blocks, 15, -1.0, 20))
    return blocks


def encode_q5_K(x: F32) -> U8:
    blocks = np.empty((len(x), 176), np.uint8)
    codes = _encode_pairs(x, blocks, 31, -0.5, 15)
    blocks[:, 16:48] = _pack_planes(codes >> np.uint8(4))
    blocks[:, 48:] = _pack_four_bits(codes & np.uint8(15))
    return blocks


def encode_q6_K(x: F32) -> U8:
    blocks = np.empty((len(x), 210), np.uint8)
    columns = element_first(x, 16)
    fit, searched = fit_scale(columns, 32)
    scales = fit.reshape(-1, 16)
    amax, peak = signed_peak(scales, axis=1)
    inverse = np.float32(-128) / peak
    d = put_f16(blocks, 208, np.float32(1) / inverse)
    stored = np.minimum(nearest_int(inverse[:, None] * scales), 127).astype(np.int8)
    blocks[:, 192:208] = stored.view(np.uint8)
    scale = (d[:, None] * stored).reshape(-1)
    codes = _requantize(columns, None, scale, searched, -32, 31)
    halves = (codes & np.uint8(15)).reshape(-1, 2, 2, 64)
    blocks[:, :128] = low_then_high(halves).reshape(-1, 128)
    blocks[:, 128:192] = _pack_two_bits(codes >> np.uint8(4))
    blocks[amax < TINY_GROUP] = 0
    return blocks


def activation_q8_K(x: F32) -> U8:
    """q8_K: the value of largest magnitude becomes -127. A block of zeros is all zero bytes."""
    blocks = np.zeros((len(x), 292), np.uint8)
    amax, peak = signed_peak(x, axis=1)
    inverse = np.float32(-127) / peak
    codes = np.minimum(nearest_int(inverse[:, None] * x), 127).astype(np.int8)
    d = (np.float32(1) / inverse).astype("<f4")
    sums = codes.reshape(-1, 16, 16).sum(2, dtype=np.int16).astype("<i2")
    blocks[:, :4] = d[:, None].view(np.uint8)
    blocks[:, 4:260] = codes.view(np.uint8)
    blocks[:, 260:] = sums.view(np.uint8)
    blocks[amax == 0] = 0
    return blocks
