"""One and two bits with one scale: ternary weights (tq1_0, tq2_0, bitnet.cpp's i2_s), q1_0, q2_0.

    tq1_0  u8 qs[48], u8 qh[4], f16 d  256 elements, five (in qh four) trits a byte
    tq2_0  u8 qs[64], f16 d            256 elements, four 2-bit codes a byte
    i2_s   u8 qs[n/4], f32 d, 28 bytes whole tensor, four 2-bit codes a byte
    q1_0   f16 d, u8 qs[16]            128 elements; bit i: 1 is +d, 0 is -d
    q2_0   f16 d, u8 qs[16]            64 elements, four codes a byte from the low bits up

A trit byte is the five-digit base-3 number of its codes, first element most significant, scaled by
256/243 and rounded up; digit k is read as the integer part of 3 * ((byte * 3**k) mod 256) / 256.
The elements of one byte of tq1_0 lie 32 apart (bytes 0-31), 16 apart (bytes 32-47) and 4 apart
(qh); those of tq2_0 lie 32 apart, the first in the low bits. In q1_0 d is the mean magnitude; q2_0
is d * (q - 1) with the largest magnitude as d, so that code 3 is never written.

Source: `quantize_row_tq1_0_ref`, `quantize_row_tq2_0_ref`, `quantize_row_q1_0_ref`,
`quantize_row_q2_0_ref` and their inverses in ggml-quants.c.

i2_s: microsoft/BitNet, src/ggml-bitnet-mad.cpp `quantize_i2_s` (x86 branch) and, in its llama.cpp,
`dequantize_row_i2_s`. A group of 128 weights is 32 bytes; the four 2-bit fields of byte j, *most*
significant first, are elements j, 32+j, 64+j and 96+j; codes 0 1 2 are -1 0 +1, and 3 reads as 0.
The scale of the whole tensor, its largest magnitude, follows the n/4 code bytes, in 32 bytes of
which only the first four are written. The ARM branch of that quantizer writes groups of 64 in 16
bytes and its 1x4 variant interleaves four rows; published files, and the reader, use the layout
above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DTYPES
from weft.errors import FormatError
from weft.quants._blocks import (
    F32,
    I32,
    U8,
    bit_planes,
    get_f16,
    ordered_sum,
    put_f16,
    reciprocal,
    round_half_away,
    truncate,
)

# (first byte, bytes, codes a byte) of the three runs of a tq1_0 block
_RUNS = ((0, 32, 5), (32, 16, 5), (48, 4, 4))


def _trit_table() -> NDArray[np.int8]:
    """The five values -1 0 +1 of every byte, `[256, 5]`."""
    powers = np.array([1, 3, 9, 27, 81])
    digits = ((np.arange(256)[:, None] * powers % 256) * 3) >> 8
    values: NDArray[np.int8] = (digits - 1).astype(np.int8)
    return values


_TRITS = _trit_table()


def _ternary_codes(x: F32) -> tuple[F32, I32]:
    """(scale, codes): the scale is the largest magnitude, a code is round(x/d) + 1."""
    d = np.abs(x).max(1)
    scaled = round_half_away(x * reciprocal(d)[:, None])
    # C's lround gives a value whose low 32 bits are 0 for infinities and NaN
    return d, truncate(np.where(np.isfinite(scaled), scaled, np.float32(0))) + 1


def decode_tq1_0(blocks: U8) -> F32:
    values = np.empty((len(blocks), 256), np.float32)
    at = 0
    for first, size, digits in _RUNS:
        trits = _TRITS[blocks[:, first : first + size], :digits]
        values[:, at : at + size * digits] = trits.swapaxes(1, 2).reshape(len(blocks), -1)
        at += size * digits
    return values * get_f16(blocks, 52)


def encode_tq1_0(x: F32) -> U8:
    blocks = np.empty((len(x), 54), np.uint8)
    d, codes = _ternary_codes(x)
    at = 0
    for first, size, digits in _RUNS:
        run = codes[:, at : at + size * digits].reshape(len(x), digits, size)
        number = np.zeros((len(x), size), np.int32)
        for k in range(5):
            number = number * 3 + (run[:, k] if k < digits else 0)
        blocks[:, first : first + size] = ((number & 255) * 256 + 242) // 243
        at += size * digits
    put_f16(blocks, 52, d)
    return blocks


def decode_tq2_0(blocks: U8) -> F32:
    codes = bit_planes(blocks[:, :64].reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 256)
    return (codes.view(np.int8) - np.int8(1)) * get_f16(blocks, 64)


def encode_tq2_0(x: F32) -> U8:
    blocks = np.empty((len(x), 66), np.uint8)
    d, codes = _ternary_codes(x)
    q = (codes & 3).astype(np.uint8).reshape(-1, 2, 4, 32)
    q <<= np.array([0, 2, 4, 6], np.uint8)[:, None]
    blocks[:, :64] = np.bitwise_or.reduce(q, axis=2).reshape(-1, 64)
    put_f16(blocks, 64, d)
    return blocks


_I2_S_SHIFTS = (6, 4, 2, 0)
_I2_S_VALUES = np.array([-1, 0, 1, 0], np.float32)
_I2_S_TRAILER = 32


def i2_s_bytes(n_elements: int) -> int:
    """Bytes of an i2_s tensor of `n_elements`: n/4 for the codes and 32 for the scale.

    Raises GraphError unless `n_elements` is a multiple of 128."""
    return DTYPES["i2_s"].row_bytes(n_elements) + _I2_S_TRAILER


def decode_i2_s(data: U8 | bytes, n_elements: int) -> F32:
    """The `n_elements` values of a whole i2_s tensor, flat (layout: see this module).

    Raises GraphError unless `n_elements` is a multiple of 128, FormatError if `data` is short."""
    raw = np.frombuffer(data, np.uint8)
    size = i2_s_bytes(n_elements)
    if raw.size < size:
        raise FormatError(
            f"an i2_s tensor of {n_elements} elements takes {size} bytes, its scale included, "
            f"but there are {raw.size}; the file is cut short, or another type"
        )
    codes_end = size - _I2_S_TRAILER
    scale = raw[codes_end : codes_end + 4].copy().view("<f4")[0]
    codes = bit_planes(raw[:codes_end].reshape(-1, 32), _I2_S_SHIFTS, 3).reshape(-1)
    values: F32 = (_I2_S_VALUES * scale)[codes]
    return values


def encode_i2_s(x: F32) -> U8:
    """A whole tensor as i2_s bytes, flat: the sign of each value, 0 below 1e-6 in magnitude.

    The scale is the largest magnitude: the input is expected to be ternary already. Raises
    GraphError unless the number of elements is a multiple of 128."""
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    out = np.zeros(i2_s_bytes(flat.size), np.uint8)
    scale = np.abs(flat).max(initial=0)
    small = np.abs(flat.astype(np.float64)) < 1e-6
    codes = np.where(small, 1, np.where(flat > 0, 2, 0)).astype(np.uint8).reshape(-1, 4, 32)
    codes <<= np.array(_I2_S_SHIFTS, np.uint8)[:, None]
    codes_end = out.size - _I2_S_TRAILER
    out[:codes_end] = np.bitwise_or.reduce(codes, axis=1).reshape(-1)
    out[codes_end : codes_end + 4] = np.array([scale], "<f4").view(np.uint8)
    return out


def decode_q1_0(blocks: U8) -> F32:
    d = get_f16(blocks, 0)
    return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little"), d, -d)


def encode_q1_0(x: F32) -> U8:
    blocks = np.empty((len(x), 18), np.uint8)
    put_f16(blocks, 0, ordered_sum(np.abs(x).T) / np.float32(128))
    blocks[:, 2:] = np.packbits(x >= 0, axis=1, bitorder="little")
    return blocks


def decode_q2_0(blocks: U8) -> F32:
    codes = bit_planes(blocks[:, 2:], (0, 2, 4, 6), 3).swapaxes(1, 2).reshape(-1, 64)
    return (codes.view(np.int8) - np.int8(1)) * get_f16(blocks, 0)


def encode_q2_0(x: F32) -> U8:
    blocks = np.empty((len(x), 18), np.uint8)
    d = np.abs(x).max(1)
    put_f16(blocks, 0, d)
    rounded = truncate(round_half_away(x * reciprocal(d)[:, None]))
    codes = np.clip(rounded, -1, 2).astype(np.int8).view(np.uint8) + np.uint8(1)
    q = codes.reshape(-1, 16, 4) << np.array([0, 2, 4, 6], np.uint8)
    blocks[:, 2:] = np.bitwise_or.reduce(q, axis=2)
    return blocks
