"""The types of ik_llama.cpp: uneven levels (iq2_k ... iq6_k, _ks, iq2_kl), trellises (_kt), others.

    iq2_k   f16 d, u16 extra, u8 scales[8], u8 qs[64]                   steps of 16, 2 x 4 levels
    iq3_k   f16 d, u16 extra, u16 signs, u8 scales[8], u8 qs[64], u8 qh[32]         2 x 8 levels
    iq4_k   f16 d, u16 extra, u8 scales_h[4], u8 scales_l[8], u8 qs[128]           2 x 16 levels
    iq5_k   f16 d, u16 extra, u8 scales_h[4], u8 scales_l[8], u8 qs[128], u8 qh[32]  2 x 32 levels
    iq6_k   f16 d, u16 extra, i8 scales[16], u8 qs[128], u8 qh[64]                 2 x 64 levels
    iq2_ks  f16 d, u16 extra, u8 scales[4], u8 qs[64]                   steps of 32, 2 x 4 levels
    iq3_ks  f16 d, u16 extra, u8 scales[4], u8 qs[64], u8 qh[32]                    2 x 8 levels
    iq4_ks  f32 d, u8 scales[8], u8 qs[128]                                        2 x 16 levels
    iq5_ks  f32 d, u8 scales[8], u8 qs[128], u8 qh[32]                             2 x 32 levels
    iq2_kl  f16 d, u16 scales_h, u8 scales_l[4], u8 qs[64], u8 qh[16]        32 pairs of levels
    iq1_kt  f32 d, u8 sh[8], u8 ql[32], u8 qh[16]                  13-bit seeds of 8 elements
    iq2_kt  f32 d, u8 scales[4], u16 ql[32]                        16-bit seeds of 8 elements
    iq3_kt  f32 d, u8 scales[4], u16 ql[32], u8 signs[32]          16-bit seeds of 8 magnitudes
    iq4_kt  f32 d, u32 steps[8], u8 ql[64], u8 qh[32]              15-bit seeds of 4 elements
    iq2_bn  f32 d, u8 qs[16]                                       64 elements, d * (q - 1)
    q6_0    f16 d, u8 qh[8], u8 qs[16]                             32 elements, d * (q - 32)
    q8_KV   f32 d, i8 qs[32]                                       32 elements, d * q
    iq1_m_r4  f16 d, u8 scales[8], u8 qs[32], u8 qh[16]            codes of iq1_m, 4-bit steps

Blocks have 256 elements unless noted, and a value is d * step * level. A bit of `extra` (of a
scale in iq4_ks and iq5_ks) chooses the first or second table of levels for a group. In a file d of
the types from iq2_ks to iq2_bn and of q8_KV stands once in front of each row; here each block has
a copy of it (`weft.frontends.gguf.row_forms`).

A trellis makes elements of a seed: the seed plus 4096 is multiplied by a constant once for each
element, modulo 2**32, and the four fields of six bits of the product, less 126, are its level.

Source: `dequantize_row_*` and `QuantizerIQKT::set_values` in iqk_quantize.cpp, tables and block
structures in ggml-common.h. The levels of iq6_k are those that products use there; the rows that
`dequantize_row_iq6_k` gives come of a polynomial whose values these levels round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.quants._blocks import F32, U8, bit_planes, get_f16
from weft.quants._iq_tables import grid


def _levels(*rows: str) -> F32:
    return np.array([row.split() for row in rows], np.float32).reshape(-1)


LEVELS: dict[str, F32] = {
    "iq2": _levels("-31 -13 1 17 -26 -8 6 22"),
    "iq3": _levels("-63 -40 -23 -10 1 13 28 47 -59 -36 -19 -6 5 17 32 51"),
    "iq4": _levels(
        "-127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113",
        "-123 -100 -79 -61 -45 -31 -18 -6 5 17 29 42 57 73 93 117",
    ),
    "iq5": _levels(
        "-126 -114 -103 -92 -83 -74 -65 -57 -50 -43 -36 -30 -24 -18 -12 -6",
        "-1 5 11 17 23 29 36 43 51 59 68 77 87 97 109 121",
        "-124 -112 -101 -90 -81 -72 -63 -55 -48 -41 -34 -28 -22 -16 -10 -4",
        "1 7 13 19 25 31 38 45 53 61 70 79 89 99 111 123",
    ),
    "iq6": _levels(
        "-127 -121 -115 -109 -104 -98 -93 -88 -84 -79 -74 -70 -66 -62 -58 -54",
        "-51 -47 -44 -40 -37 -34 -31 -28 -25 -22 -19 -16 -13 -11 -8 -5",
        "-2 0 3 6 9 12 14 17 20 23 27 30 33 36 40 44",
        "47 51 55 59 63 68 72 77 82 87 92 98 103 109 115 121",
        "-126 -120 -114 -108 -103 -97 -92 -87 -83 -78 -73 -69 -65 -61 -57 -53",
        "-50 -46 -43 -39 -36 -33 -30 -27 -24 -21 -18 -15 -12 -10 -7 -4",
        "-1 1 4 7 10 13 15 18 21 24 28 31 34 37 41 45",
        "48 52 56 60 64 69 73 78 83 88 93 99 104 110 116 122",
    ),
}
"""The two tables of levels of the types of each width, one after the other."""

_PAIRS = (
    "c1e9 c10d d8c1 d8f6 d80d d82f e9d8 e9e9 e901 e90d e91c f6c1 f601 f60d f62f 01e9"
    "01f6 0101 010d 011c 0dd8 0de9 0df6 0d01 0d0d 1cc1 1ce9 1c01 1c1c 1c2f 2fe9 2f0d"
)
LEVEL_PAIRS: F32 = np.frombuffer(bytes.fromhex(_PAIRS), np.int8).reshape(32, 2).astype(np.float32)
"""The two levels of each code of iq2_kl."""

_MULTIPLIER = np.uint32(0xCBAC1FED)
_DELTA = np.float32(0.125)
_BITS = (0, 1, 2, 3, 4, 5, 6, 7)


def _f32(blocks: U8) -> F32:
    """The f32 in front of every block, `[n_blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, :4]).view("<f4")


def _words(blocks: U8, start: int, stop: int, dtype: str) -> NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _in_turn(packed: U8, shifts: tuple[int, ...] = (0, 4), mask: int = 15) -> NDArray[np.int16]:
    """The fields of each byte one after the other, `[m, k]` to `[m, len(shifts) * k]`."""
    fields = bit_planes(packed, shifts, mask).swapaxes(1, 2).reshape(len(packed), -1)
    return fields.astype(np.int16)


def _planes(packed: U8, shifts: tuple[int, ...] = (0, 4), mask: int = 15) -> NDArray[np.int16]:
    """The first field of all bytes, then the second one, `[m, k]` to `[m, len(shifts) * k]`."""
    return bit_planes(packed, shifts, mask).reshape(len(packed), -1).astype(np.int16)


def _bits(words: NDArray[Any], first: int, n: int) -> NDArray[np.int16]:
    """The bits first, first + 1, ... of one word of each block, `[m, 1]` to `[m, n]`."""
    return (words >> np.arange(first, first + n, dtype=words.dtype) & 1).astype(np.int16)


def _two_bits(qs: U8) -> NDArray[np.int16]:
    """256 codes of two bits; the elements of a byte lie 32 apart."""
    return bit_planes(qs.reshape(-1, 2, 32), (0, 2, 4, 6), 3).reshape(-1, 256).astype(np.int16)


def _halves(qs: U8, n: int) -> NDArray[np.int16]:
    """256 codes of four bits; the elements of a byte lie `n` apart."""
    return bit_planes(qs.reshape(-1, 128 // n, n), (0, 4), 15).reshape(-1, 256).astype(np.int16)


def _uneven(d: F32, steps: NDArray[Any], tables: NDArray[Any], codes: Any, levels: str) -> F32:
    """d * step * level, a step and one of two tables for each equal share of a block."""
    table = LEVELS[levels]
    groups = codes.reshape(len(codes), steps.shape[1], -1)
    chosen = table[groups + tables[:, :, None] * (len(table) // 2)]
    scales = d * steps.astype(np.float32)
    return np.asarray((scales[:, :, None] * chosen).reshape(-1, 256), np.float32)


def decode_iq2_k(blocks: U8) -> F32:
    extra, steps = _words(blocks, 2, 4, "<u2"), _in_turn(blocks[:, 4:12]) - 8
    codes = _two_bits(blocks[:, 12:])
    return _uneven(get_f16(blocks, 0), steps, _bits(extra, 0, 16), codes, "iq2")


def decode_iq3_k(blocks: U8) -> F32:
    extra, minus = _words(blocks, 2, 4, "<u2"), _words(blocks, 4, 6, "<u2")
    steps = (2 * _in_turn(blocks[:, 6:14]) + 1) * (1 - 2 * _bits(minus, 0, 16))
    codes = _two_bits(blocks[:, 14:78]) | _planes(blocks[:, 78:], _BITS, 1) << 2
    return _uneven(get_f16(blocks, 0), steps, _bits(extra, 0, 16), codes, "iq3")


def _six_bits(blocks: U8) -> NDArray[np.int16]:
    """The sixteen steps of iq4_k and iq5_k."""
    return (_in_turn(blocks[:, 8:16]) | _in_turn(blocks[:, 4:8], (0, 2, 4, 6), 3) << 4) - 32


def decode_iq4_k(blocks: U8) -> F32:
    tables = _bits(_words(blocks, 2, 4, "<u2"), 0, 16)
    return _uneven(
        get_f16(blocks, 0), _six_bits(blocks), tables, _halves(blocks[:, 16:], 16), "iq4"
    )


def decode_iq5_k(blocks: U8) -> F32:
    tables = _bits(_words(blocks, 2, 4, "<u2"), 0, 16)
    codes = _halves(blocks[:, 16:144], 32) | _planes(blocks[:, 144:], _BITS, 1) << 4
    return _uneven(get_f16(blocks, 0), _six_bits(blocks), tables, codes, "iq5")


def decode_iq6_k(blocks: U8) -> F32:
    tables = _bits(_words(blocks, 2, 4, "<u2"), 0, 16)
    codes = _halves(blocks[:, 20:148], 32) | _two_bits(blocks[:, 148:]) << 4
    return _uneven(get_f16(blocks, 0), _words(blocks, 4, 20, "i1"), tables, codes, "iq6")


def decode_iq2_ks(blocks: U8) -> F32:
    extra = _words(blocks, 2, 4, "<u2")
    steps = (_in_turn(blocks[:, 4:8]) | _bits(extra, 8, 8) << 4) - 16
    return _uneven(get_f16(blocks, 0), steps, _bits(extra, 0, 8), _two_bits(blocks[:, 8:]), "iq2")


def decode_iq3_ks(blocks: U8) -> F32:
    extra = _words(blocks, 2, 4, "<u2")
    steps = (_planes(blocks[:, 4:8]) | _bits(extra, 0, 8) << 4) - 16
    codes = _two_bits(blocks[:, 8:72]) | _planes(blocks[:, 72:], _BITS, 1) << 2
    return _uneven(get_f16(blocks, 0), steps, _bits(extra, 8, 8), codes, "iq3")


def decode_iq4_ks(blocks: U8) -> F32:
    scales = blocks[:, 4:12].astype(np.int16)
    codes = _halves(blocks[:, 12:], 16)
    return _uneven(_f32(blocks), (scales & 254) - 127, scales & 1, codes, "iq4")


def decode_iq5_ks(blocks: U8) -> F32:
    scales = blocks[:, 4:12].astype(np.int16)
    codes = _halves(blocks[:, 12:140], 32) | _planes(blocks[:, 140:], _BITS, 1) << 4
    return _uneven(_f32(blocks), (scales & 254) - 127, scales & 1, codes, "iq5")


def decode_iq2_kl(blocks: U8) -> F32:
    high = _words(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    steps = (_planes(blocks[:, 4:8]) | high.astype(np.int16) << 4) - 32
    codes = bit_planes(blocks[:, 8:72].reshape(-1, 4, 16), (0, 4), 15).reshape(-1, 128)
    pairs = LEVEL_PAIRS[codes | _planes(blocks[:, 72:], _BITS, 1) << 4]
    scales = get_f16(blocks, 0) * steps.astype(np.float32)
    return np.asarray((scales[:, :, None] * pairs.reshape(-1, 8, 32)).reshape(-1, 256), np.float32)


def _trellis(seeds: NDArray[np.uint32], n: int) -> F32:
    """The `n` levels of each seed, `[m, k]` to `[m, 8, n * k / 8]`."""
    state = seeds.astype(np.uint32)
    levels = np.empty((*state.shape, n), np.float32)
    for i in range(n):
        state = state * _MULTIPLIER
        fields = (state[..., None] >> np.array([0, 8, 16, 24], np.uint32)) & np.uint32(63)
        levels[..., i] = fields.sum(axis=-1).astype(np.float32) - np.float32(126)
    return levels.reshape(len(seeds), 8, -1)


def _scaled(scales: F32, levels: F32) -> F32:
    values: F32 = (scales[:, :, None] * levels).reshape(-1, 256)
    return values


def decode_iq1_kt(blocks: U8) -> F32:
    sh = blocks[:, 4:12]
    top = bit_planes(sh, (4, 5, 6, 7), 1).swapaxes(1, 2).reshape(-1, 32).astype(np.uint32)
    seeds = blocks[:, 12:44] | _planes(blocks[:, 44:]).astype(np.uint32) << 8 | top << 12
    scales = _f32(blocks) * LEVELS["iq4"][sh & 15]
    return _scaled(scales, _trellis(seeds.astype(np.uint32) + np.uint32(4096), 8))


def _seeds_of_16(blocks: U8) -> NDArray[np.uint32]:
    return np.asarray(_words(blocks, 8, 72, "<u2").astype(np.uint32) + np.uint32(4096), np.uint32)


def decode_iq2_kt(blocks: U8) -> F32:
    scales = _f32(blocks) * LEVELS["iq4"][_planes(blocks[:, 4:8])]
    return _scaled(scales, _trellis(_seeds_of_16(blocks), 8))


def decode_iq3_kt(blocks: U8) -> F32:
    scales = _f32(blocks) * _planes(blocks[:, 4:8]).astype(np.float32)
    signs = 1 - 2 * _planes(blocks[:, 72:], _BITS, 1).astype(np.float32).reshape(-1, 8, 32)
    levels = np.abs(_trellis(_seeds_of_16(blocks), 8)) * signs
    return _scaled(scales, levels + np.float32(0))  # zero has no sign


def decode_iq4_kt(blocks: U8) -> F32:
    words = _words(blocks, 4, 36, "<u4")
    top = words[:, :, None] >> np.arange(8, 32, 3, dtype=np.uint32) & np.uint32(7)
    seeds = blocks[:, 36:100] | _planes(blocks[:, 100:]).astype(np.uint32) << 8
    seeds = (seeds | top.reshape(-1, 64) << 12).reshape(-1, 8, 8)
    seeds = seeds + np.uint32(4096) + (words & 1)[:, :, None] * np.uint32(32768)
    steps = (words >> 1 & 127).astype(np.float32) - np.float32(64)
    return _scaled(_f32(blocks) * steps, _trellis(seeds.reshape(-1, 64).astype(np.uint32), 4))


def decode_iq2_bn(blocks: U8) -> F32:
    codes = _planes(blocks[:, 4:], (0, 2, 4, 6), 3).astype(np.float32)
    return _f32(blocks) * (codes - np.float32(1))


def decode_iq1_m_r4(blocks: U8) -> F32:
    high = _in_turn(blocks[:, 42:])
    levels = grid("iq1_s")[blocks[:, 10:42] | (high & 7) << 8]
    levels = levels + np.where(high & 8, -_DELTA, _DELTA)[:, :, None]
    scales = get_f16(blocks, 0) * _in_turn(blocks[:, 2:10]).astype(np.float32)
    values: F32 = (scales[:, :, None] * levels.reshape(-1, 16, 16)).reshape(-1, 256)
    return values


def decode_q6_0(blocks: U8) -> F32:
    high = _planes(blocks[:, 2:10], (0, 4, 2, 6), 3)
    codes = (_planes(blocks[:, 10:]) | high << 4) - 32
    return get_f16(blocks, 0) * codes.astype(np.float32)


def decode_q8_KV(blocks: U8) -> F32:
    return _f32(blocks) * _words(blocks, 4, 36, "i1").astype(np.float32)
