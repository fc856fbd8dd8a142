"""The 32-element blocks with one scale: q4_0 q4_1 q5_0 q5_1 q8_0 q8_1.

    q4_0  f16 d               u8 qs[16]   x = d * (q - 8)
    q4_1  f16 d, f16 m        u8 qs[16]   x = d * q + m
    q5_0  f16 d,        u32 qh, u8 qs[16] x = d * (q - 16)
    q5_1  f16 d, f16 m, u32 qh, u8 qs[16] x = d * q + m
    q8_0  f16 d               i8 qs[32]   x = d * q
    q8_1  f16 d, f16 s        i8 qs[32]   x = d * q, s = d * sum(q)

Byte j of a 4-bit `qs` holds element j in its low and element 16+j in its high bits; bit i of `qh`
is the fifth bit of element i. q8_1 exists only as a quantized activation.

Source: the quantizers and dequantizers of these names in ggml's ggml-quants.c; for activations its
x86 `quantize_row_q8_0` and `quantize_row_q8_1`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.quants._blocks import (
    F32,
    I32,
    U8,
    bit_planes,
    get_f16,
    low_then_high,
    put_f16,
    reciprocal,
    round_half_away,
    signed_peak,
    truncate,
)


def _nibbles(blocks: U8, offset: int) -> U8:
    """The 32 4-bit codes of `qs` at `offset`, in element order."""
    return bit_planes(blocks[:, offset : offset + 16], (0, 4), 0x0F).reshape(-1, 32)


def _five_bits(blocks: U8, qh: int) -> U8:
    """The 32 5-bit codes of `qh` at byte `qh` and of `qs` behind it."""
    fifth = np.unpackbits(blocks[:, qh : qh + 4], axis=1, bitorder="little")
    return _nibbles(blocks, qh + 4) | (fifth << np.uint8(4))


def decode_q4_0(blocks: U8) -> F32:
    return (_nibbles(blocks, 2).view(np.int8) - np.int8(8)) * get_f16(blocks, 0)


def decode_q4_1(blocks: U8) -> F32:
    return _nibbles(blocks, 4) * get_f16(blocks, 0) + get_f16(blocks, 2)


def decode_q5_0(blocks: U8) -> F32:
    return (_five_bits(blocks, 2).view(np.int8) - np.int8(16)) * get_f16(blocks, 0)


def decode_q5_1(blocks: U8) -> F32:
    return _five_bits(blocks, 4) * get_f16(blocks, 0) + get_f16(blocks, 2)


def decode_q8_0(blocks: U8) -> F32:
    return blocks[:, 2:].view(np.int8) * get_f16(blocks, 0)


def decode_q8_1(blocks: U8) -> F32:
    return blocks[:, 4:].view(np.int8) * get_f16(blocks, 0)


def _around_zero(x: F32, bits: int) -> tuple[F32, U8]:
    """(scale, codes) of the symmetric types: the value of largest magnitude becomes code 0."""
    half = 1 << (bits - 1)
    d = signed_peak(x, axis=1)[1] / np.float32(-half)
    shifted = x * reciprocal(d)[:, None] + np.float32(half + 0.5)
    # C narrows to int8 before it takes the minimum
    return d, np.minimum(truncate(shifted).astype(np.int8), 2 * half - 1).view(np.uint8)


def _from_min(x: F32, bits: int) -> tuple[F32, F32, I32]:
    """(scale, minimum, codes) of the types with an offset. Of equal minima (-0, +0) the first."""
    low = np.take_along_axis(x, x.argmin(1)[:, None], 1)[:, 0]
    high = np.take_along_axis(x, x.argmax(1)[:, None], 1)[:, 0]
    d = (high - low) / np.float32((1 << bits) - 1)
    return d, low, truncate((x - low[:, None]) * reciprocal(d)[:, None] + np.float32(0.5))


def _pack_four_bits(blocks: U8, offset: int, codes: U8) -> None:
    blocks[:, offset : offset + 16] = low_then_high((codes & np.uint8(15)).reshape(-1, 2, 16))


def _pack_five_bits(blocks: U8, qh: int, codes: U8) -> None:
    blocks[:, qh : qh + 4] = np.packbits((codes >> np.uint8(4)) & 1, axis=1, bitorder="little")
    _pack_four_bits(blocks, qh + 4, codes)


def encode_q4_0(x: F32) -> U8:
    blocks = np.empty((len(x), 18), np.uint8)
    d, codes = _around_zero(x, 4)
    put_f16(blocks, 0, d)
    _pack_four_bits(blocks, 2, codes)
    return blocks


def encode_q4_1(x: F32) -> U8:
    blocks = np.empty((len(x), 20), np.uint8)
    d, low, codes = _from_min(x, 4)
    put_f16(blocks, 0, d)
    put_f16(blocks, 2, low)
    _pack_four_bits(blocks, 4, np.minimum(codes.astype(np.int8), 15).view(np.uint8))
    return blocks


def encode_q5_0(x: F32) -> U8:
    blocks = np.empty((len(x), 22), np.uint8)
    d, codes = _around_zero(x, 5)
    put_f16(blocks, 0, d)
    _pack_five_bits(blocks, 2, codes)
    return blocks


def encode_q5_1(x: F32) -> U8:
    blocks = np.empty((len(x), 24), np.uint8)
    d, low, codes = _from_min(x, 5)
    put_f16(blocks, 0, d)
    put_f16(blocks, 2, low)
    _pack_five_bits(blocks, 4, codes.astype(np.uint8))
    return blocks


def encode_q8_0(x: F32) -> U8:
    blocks = np.empty((len(x), 34), np.uint8)
    d = np.abs(x).max(1) / np.float32(127)
    put_f16(blocks, 0, d)
    codes = truncate(round_half_away(x * reciprocal(d)[:, None]))
    blocks[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return blocks


def _activation_codes(x: F32) -> tuple[F32, NDArray[np.int8]]:
    """(scale, codes) as the x86 kernels make them: 127/max, half to even, saturated."""
    amax = np.abs(x).max(1)
    inverse = np.where(amax != 0, np.float32(127) / amax, np.float32(0))
    codes = truncate(np.rint(x * inverse[:, None]))
    return amax / np.float32(127), np.clip(codes, -128, 127).astype(np.int8)


def activation_q8_0(x: F32) -> U8:
    blocks = np.empty((len(x), 34), np.uint8)
    d, codes = _activation_codes(x)
    put_f16(blocks, 0, d)
    blocks[:, 2:] = codes.view(np.uint8)
    return blocks


def activation_q8_1(x: F32) -> U8:
    blocks = np.empty((len(x), 36), np.uint8)
    d, codes = _activation_codes(x)
    put_f16(blocks, 0, d)
    put_f16(blocks, 2, d * codes.sum(1, dtype=np.int32).astype(np.float32))
    blocks[:, 4:] = codes.view(np.uint8)
    return blocks


def with_codes(codes: NDArray[np.int8], scales: F32, minima: F32 | None, bits: int) -> U8:
    """Blocks whose values are `codes` [n_blocks, 32] times `scales` [n_blocks], plus `minima`
    [n_blocks]. Codes around zero have `bits` 4 (q4_0), 5 (q5_0) or 8 (q8_0), codes from 0 on with
    minima 4 (q4_1) or 5 (q5_1)."""
    n, half = len(codes), 1 << (bits - 1)
    if bits == 8:
        blocks = np.empty((n, 34), np.uint8)
        blocks[:, 2:] = codes.view(np.uint8)
        put_f16(blocks, 0, scales)
        return blocks
    head = 2 if minima is None else 4
    raised = codes.view(np.uint8) + np.uint8(half if minima is None else 0)
    blocks = np.empty((n, head + (4 if bits == 5 else 0) + 16), np.uint8)
    put_f16(blocks, 0, scales)
    if minima is not None:
        put_f16(blocks, 2, minima)
    if bits == 5:
        _pack_five_bits(blocks, head, raised)
    else:
        _pack_four_bits(blocks, head, raised)
    return blocks


def with_nibbles(nibbles: U8, scales: F32, minima: F32 | None) -> U8:
    """Blocks of q4_0, or of q4_1 with `minima`, from their codes two to a byte [n_blocks, 16],
    neighbours in one byte, the first in the low bits. Codes of q4_0 are raised by 8."""
    head = 2 if minima is None else 4
    blocks = np.empty((len(nibbles), head + 16), np.uint8)
    put_f16(blocks, 0, scales)
    if minima is not None:
        put_f16(blocks, 2, minima)
    first, second = nibbles[:, :8], nibbles[:, 8:]
    blocks[:, head::2] = first & 15 | second << 4
    blocks[:, head + 1 :: 2] = first >> 4 | second & 0xF0
    return blocks
