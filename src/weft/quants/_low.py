"""One and two bits with one scale: q1_0 (128 elements) and q2_0 (64 elements).

    q1_0  f16 d, u8 qs[16]  bit i: 1 is +d, 0 is -d; d is the mean magnitude
    q2_0  f16 d, u8 qs[16]  four codes a byte from the low bits up: x = d * (q - 1);
                            d is the largest magnitude, so code 3 (2*d) is never written

Source: `quantize_row_q1_0_ref`, `quantize_row_q2_0_ref` and their inverses in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from weft.quants._blocks import (
    F32,
    U8,
    bit_planes,
    get_f16,
    ordered_sum,
    put_f16,
    reciprocal,
    round_half_away,
    truncate,
)

__all__ = ["decode_q1_0", "decode_q2_0", "encode_q1_0", "encode_q2_0"]


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
