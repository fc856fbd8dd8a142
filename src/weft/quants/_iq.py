"""The codebook types iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s (decoding only).

Blocks of 256 elements; a code names a vector of 8 (iq3: 4) levels in a codebook.

    iq2_xxs  f16 d, 8 x {u8 code[4], u32 signs and scale}             codes of 8 bits
    iq2_xs   f16 d, u16 qs[32], u8 scales[8]                          9-bit codes, 7-bit signs
    iq2_s    f16 d, u8 qs[32], u8 signs[32], u8 qh[8], u8 scales[8]   10-bit codes
    iq3_xxs  f16 d, u8 qs[64], u32 signs and scale[8]                 codes of 8 bits
    iq3_s    f16 d, u8 qs[64], u8 qh[8], u8 signs[32], u8 scales[4]   9-bit codes
    iq1_s    f16 d, u8 qs[32], u16 qh[8]                              11-bit codes
    iq1_m    u8 qs[32], u8 qh[16], u16 scales[4]                      11-bit codes, d in scales

A "signs and scale" word is four 7-bit sign indices and a 4-bit scale on top; the eighth sign makes
the number of minuses even. iq1 levels are shifted by +-1/8.

Source: `dequantize_row_iq*` in ggml-quants.c, block structures in ggml-common.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.quants._blocks import F32, U8, bit_planes, get_f16
from weft.quants._iq_tables import PARITY_SIGNS, grid

_HALF = np.float32(0.5)
_DELTA = np.float32(0.125)


def _words(blocks: U8, start: int, stop: int, dtype: str) -> NDArray[Any]:
    """Bytes `start:stop` of every block as little-endian integers."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _nibbles(packed: U8) -> U8:
    """Low then high half of every byte: `[m, k]` to `[m, 2 * k]`."""
    return bit_planes(packed, (0, 4), 15).swapaxes(1, 2).reshape(len(packed), -1)


def _plain_signs(packed: U8) -> F32:
    """One sign bit an element, set is minus: bytes `[m, 32]` to `[m, 32, 8]`."""
    bits = np.unpackbits(packed, axis=1, bitorder="little").reshape(-1, 32, 8)
    return np.float32(1) - np.float32(2) * bits


def _combine(scales: F32, vectors: F32, signs: F32) -> F32:
    """scale * level * sign, a scale for each equal share of the block."""
    m = len(scales)
    values = scales[:, :, None] * vectors.reshape(m, scales.shape[1], -1)
    return values.reshape(m, 256) * signs.reshape(m, 256)


def _signs_and_scales(words: NDArray[np.uint32]) -> tuple[F32, F32]:
    """(signs `[m, 8, 4, 8]`, 0.5 + scale `[m, 8]`) of eight 32-bit words a block."""
    indices = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    return PARITY_SIGNS[indices], _HALF + (words >> 28).astype(np.float32)


def decode_iq2_xxs(blocks: U8) -> F32:
    words = _words(blocks, 2, 66, "<u4").reshape(-1, 8, 2)
    codes = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    signs, scales = _signs_and_scales(words[:, :, 1])
    scales = get_f16(blocks, 0) * scales * np.float32(0.25)
    return _combine(scales, grid("iq2_xxs")[codes], signs)


def _scales_iq2(blocks: U8) -> F32:
    """The sixteen scales of iq2_xs and iq2_s."""
    return get_f16(blocks, 0) * (_HALF + _nibbles(blocks[:, -8:])) * np.float32(0.25)


def decode_iq2_xs(blocks: U8) -> F32:
    codes = _words(blocks, 2, 66, "<u2")
    return _combine(_scales_iq2(blocks), grid("iq2_xs")[codes & 511], PARITY_SIGNS[codes >> 9])


def decode_iq2_s(blocks: U8) -> F32:
    high = bit_planes(blocks[:, 66:74], (0, 2, 4, 6), 3).swapaxes(1, 2).reshape(-1, 32)
    codes = blocks[:, 2:34] | high.astype(np.uint16) << 8
    return _combine(_scales_iq2(blocks), grid("iq2_s")[codes], _plain_signs(blocks[:, 34:66]))


def decode_iq3_xxs(blocks: U8) -> F32:
    signs, scales = _signs_and_scales(_words(blocks, 66, 98, "<u4"))
    scales = get_f16(blocks, 0) * scales * _HALF
    return _combine(scales, grid("iq3_xxs")[blocks[:, 2:66]], signs)


def decode_iq3_s(blocks: U8) -> F32:
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")
    codes = blocks[:, 2:66] | ninth.astype(np.uint16) << 8
    scales = get_f16(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:110]))
    return _combine(scales, grid("iq3_s")[codes], _plain_signs(blocks[:, 74:106]))


def decode_iq1_s(blocks: U8) -> F32:
    qh = _words(blocks, 34, 50, "<u2")
    high = (qh[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    codes = blocks[:, 2:34] | high.reshape(-1, 32) << 8
    scales = get_f16(blocks, 0) * (2 * (qh >> 12 & 7) + 1).astype(np.float32)
    delta = np.where(qh & 0x8000, -_DELTA, _DELTA)
    levels = grid("iq1_s")[codes].reshape(-1, 8, 32) + delta[:, :, None]
    values: F32 = (scales[:, :, None] * levels).reshape(-1, 256)
    return values


def decode_iq1_m(blocks: U8) -> F32:
    words = _words(blocks, 48, 56, "<u2")
    # the four top bits of each scale word make up the f16 d, first word lowest
    nibbles = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=1).view("<f2").astype(np.float32)[:, None]
    steps = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    scales = d * (2 * steps.reshape(-1, 16) + 1).astype(np.float32)
    qh = _nibbles(blocks[:, 32:48])
    codes = blocks[:, :32] | (qh & 7).astype(np.uint16) << 8
    levels = grid("iq1_s")[codes] + np.where(qh & 8, -_DELTA, _DELTA)[:, :, None]
    values: F32 = (scales[:, :, None] * levels.reshape(-1, 16, 16)).reshape(-1, 256)
    return values
