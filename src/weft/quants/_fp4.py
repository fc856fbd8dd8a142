"""Four-bit floats (E2M1) with a shared scale: mxfp4 and nvfp4.

    mxfp4  u8 e,    u8 qs[16]  32 elements, scale 2**(e - 127) (E8M0)
    nvfp4  u8 d[4], u8 qs[32]  64 elements, one scale (unsigned E4M3, bias 7) for each 16

A code is a sign and one of 0 0.5 1 1.5 2 3 4 6. The reference keeps codes doubled and scales
halved, and so does this file. In `qs` the first half of a group lies in the low bits, the second
half in the high bits. For nvfp4 the scale bytes 0x00 and 0x7f both mean 0, and bit 7 is ignored.

Source: `quantize_row_mxfp4_ref`, `quantize_row_nvfp4_ref` and their inverses in ggml-quants.c; the
scale conversions in ggml-impl.h; the OCP Microscaling Formats specification.
"""

from __future__ import annotations

import numpy as np

from weft.quants._blocks import F32, U8, bit_planes, low_then_high

_MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)

E2M1_DOUBLED: F32 = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
"""The value of each code, doubled. Code 8 is zero without a sign."""
E2M1_DOUBLED[8] = 0


def _halved_ue4m3() -> F32:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, (code & 7).astype(np.float32)
    subnormal = np.ldexp(mantissa, -9)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    halved = np.where(exponent == 0, subnormal, normal) * 0.5
    halved[[0x00, 0x7F]] = 0
    return halved.astype(np.float32)


_E8M0: F32 = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)
"""2**(e - 128) for every byte e; the two smallest are float32 subnormals."""
_UE4M3 = _halved_ue4m3()


def _nearest_codes(x: F32, scale: F32) -> U8:
    """The code whose value is nearest to `x` `[n, m]` under `scale` `[n, 1]`; first of equals.

    Only codes of x's sign can win, so magnitudes are compared."""
    magnitude = np.abs(x)
    best = np.zeros(x.shape, np.uint8)
    best_error = np.abs(np.float32(0) * scale - magnitude)
    for code in range(1, 8):
        error = np.abs(E2M1_DOUBLED[code] * scale - magnitude)
        better = error < best_error
        np.copyto(best, code, where=better)
        np.copyto(best_error, error, where=better)
    negative = (x < 0) & (best > 0)
    return best | (negative.view(np.uint8) << np.uint8(3))


def decode_mxfp4(blocks: U8) -> F32:
    codes = bit_planes(blocks[:, 1:], (0, 4), 15).reshape(-1, 32)
    return E2M1_DOUBLED[codes] * _E8M0[blocks[:, :1]]


def encode_mxfp4(x: F32) -> U8:
    blocks = np.empty((len(x), 17), np.uint8)
    amax = np.abs(x).max(1)
    # log2 is rounded to float32 before its floor, so a value just below a power of two may count
    # as that power; the exponent is narrowed to a byte as a C cast does
    log2 = np.floor(np.log2(amax.astype(np.float64)).astype(np.float32))
    exponent = np.where((amax > 0) & np.isfinite(amax), log2 + 125, 0).astype(np.int32)
    blocks[:, 0] = exponent.astype(np.uint8)
    codes = _nearest_codes(x, _E8M0[blocks[:, :1]])
    blocks[:, 1:] = low_then_high(codes.reshape(-1, 2, 16))
    return blocks


def decode_nvfp4(blocks: U8) -> F32:
    codes = bit_planes(blocks[:, 4:].reshape(-1, 4, 8), (0, 4), 15)
    return (E2M1_DOUBLED[codes] * _UE4M3[blocks[:, :4, None, None]]).reshape(-1, 64)


def _ue4m3_bytes(x: F32) -> U8:
    """float32 to unsigned E4M3, halves up, saturated at 0x7e; zero, negatives and NaN give 0."""
    x = np.where(x > 0, np.minimum(x, np.float32(448)), np.float32(0))
    bits = x.view(np.int32)
    exponent = (bits >> 23) - 120
    # exponent and mantissa are adjacent, so a carry out of the mantissa raises the exponent
    normal = (exponent << 3 | (bits >> 20) & 7) + ((bits >> 19) & 1)
    subnormal = np.minimum((x * np.float32(512) + np.float32(0.5)).astype(np.int32), 7)
    byte = np.where(exponent <= 0, subnormal, np.where(normal >= 15 << 3, 0x7E, normal))
    return byte.astype(np.uint8)


def encode_nvfp4(x: F32) -> U8:
    blocks = np.empty((len(x), 36), np.uint8)
    groups = x.reshape(-1, 16)
    scales = _ue4m3_bytes(np.abs(groups).max(1) / np.float32(6))
    blocks[:, :4] = scales.reshape(-1, 4)
    codes = _nearest_codes(groups, _UE4M3[scales][:, None])
    blocks[:, 4:] = low_then_high(codes.reshape(-1, 2, 8)).reshape(-1, 32)
    return blocks
