"""Tools that the block formats share: array types, f16 fields, C rounding, ordered sums.

Every codec of this package works on two-dimensional arrays: bytes `[n_blocks, block_bytes]` and
values `[n_blocks, block_length]`. Searches over sub-blocks put the element axis first, `[n, m]`, so
that one step of a C loop over `n` elements is one NumPy operation over `m` sub-blocks.

The reference quantizers are plain float32 C, and their bytes depend on the order of operations.
These helpers give C's results exactly, and the results of x86 where C leaves them open.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

TINY_GROUP = np.float32(1e-15)
"""A sub-block whose largest magnitude is below this counts as zero (ggml's GROUP_MAX_EPS)."""

_INT32_MIN = -(2**31)
_MAGIC = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves the rounded integer in the mantissa


def get_f16(blocks: U8, offset: int) -> F32:
    """The f16 at byte `offset` of every block, as float32 `[n_blocks, 1]`."""
    field = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return field.view("<f2").astype(np.float32)


def put_f16(blocks: U8, offset: int, values: F32) -> F32:
    """Stores `values` `[n_blocks]` as f16 at byte `offset`; returns the stored values, as
    float32."""
    half = values.astype("<f2")
    blocks[:, offset : offset + 2] = half.view(np.uint8).reshape(-1, 2)
    return half.astype(np.float32)


def bit_planes(packed: U8, shifts: tuple[int, ...], mask: int) -> U8:
    """Fields of packed bytes: `[..., k]` to `[..., len(shifts), k]`, the field at shift `s` first
    for the first shift."""
    amounts = np.array(shifts, np.uint8)[:, None]
    fields: U8 = (packed[..., None, :] >> amounts) & np.uint8(mask)
    return fields


def low_then_high(codes: U8) -> U8:
    """Two 4-bit codes a byte: `[..., 2, k]` to `[..., k]`, the first in the low bits."""
    return codes[..., 0, :] | (codes[..., 1, :] << np.uint8(4))


def element_first(x: F32, n: int) -> F32:
    """Values as sub-blocks of `n`: `[n, m]`, contiguous, element axis first."""
    return np.ascontiguousarray(x.reshape(x.size // n, n).T)


def ordered_sum(terms: NDArray[Any]) -> F32:
    """Sum over the first axis in index order, in float32 (NumPy's own sum may pair terms)."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total += term
    return total


def nearest_int(x: F32) -> I32:
    """Round to the nearest integer, half to even, as ggml's `nearest_int` does with float bits.

    Correct below 2**22 in magnitude. Beyond that, and for inf and NaN, it gives what the
    reference gives: NaN becomes 0, infinities -2**22."""
    bits: I32 = (x + _MAGIC).view(np.int32)
    bits &= 0x007FFFFF
    bits -= 0x00400000
    return bits


def truncate(x: F32) -> I32:
    """C's `(int) x`; NaN and values out of range give -2**31, as on x86."""
    inside = np.abs(x) < np.float32(2**31)
    return np.where(inside, x, np.float32(_INT32_MIN)).astype(np.int32)


def round_half_away(x: F32) -> F32:
    """C's `roundf`: halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= np.float32(0.5), whole + np.sign(x), whole)


def reciprocal(d: F32) -> F32:
    """1/d, and 0 for d = 0."""
    return np.where(d != 0, np.float32(1) / d, np.float32(0))


def signed_peak(x: F32, axis: int) -> tuple[F32, F32]:
    """(largest magnitude, its value), the first one of equals; (0, +0) for zeros.

    As in C, a NaN is never larger."""
    magnitude = np.fmax(np.abs(x), np.float32(0))
    at = np.expand_dims(magnitude.argmax(axis), axis)
    amax = np.take_along_axis(magnitude, at, axis).squeeze(axis)
    peak = np.take_along_axis(x, at, axis).squeeze(axis)
    return amax, np.where(amax > 0, peak, np.float32(0))


# **** f16 and bf16 ****
#
# f16 is IEEE binary16. bf16 is the upper half of a float32. Both round to nearest, half to even.
# f16 overflows to infinity, bf16 keeps subnormals; NaNs become quiet and keep their sign.


U16 = NDArray[np.uint16]


def bf16_to_f32(words: U16) -> F32:
    """bf16 bit patterns to float32, exactly."""
    wide = words.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def bf16_from_f32(x: F32) -> U16:
    """float32 to bf16 bit patterns: nearest, half to even; NaN made quiet."""
    bits = x.view(np.uint32)
    odd = (bits >> 16) & 1
    # NaN is settled below, so that its wrapping in this sum does not matter
    words = ((bits + (odd + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    is_nan = np.isnan(x)
    if is_nan.any():
        words[is_nan] = (bits[is_nan] >> 16).astype(np.uint16) | np.uint16(0x40)
    return words


def f16_from_f32(x: F32) -> NDArray[np.float16]:
    """float32 to f16 as in a file: every NaN becomes the sign and 0x7e00."""
    half = x.astype("<f2")
    is_nan = np.isnan(x)
    if is_nan.any():
        sign = (x.view(np.uint32)[is_nan] >> 16).astype(np.uint16) & np.uint16(0x8000)
        half.view("<u2")[is_nan] = sign | np.uint16(0x7E00)
    return half


def f16_from_f32_runtime(x: F32) -> NDArray[np.float16]:
    """float32 to f16 as the processor converts: a NaN keeps the top of its payload, made quiet."""
    half = x.astype("<f2")
    is_nan = np.isnan(x)
    if is_nan.any():
        bits = x.view(np.uint32)[is_nan]
        sign = (bits >> 16).astype(np.uint16) & np.uint16(0x8000)
        payload = ((bits >> 13) & 0x3FF).astype(np.uint16)
        half.view("<u2")[is_nan] = sign | np.uint16(0x7E00) | payload
    return half
