"""f16 and bf16: conversion between float32 and the 16-bit words.

f16 is IEEE binary16. bf16 is the upper half of a float32. Both round to nearest, half to even.
f16 overflows to infinity, bf16 keeps subnormals; NaNs become quiet and keep their sign.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.quants._blocks import F32

__all__ = ["bf16_from_f32", "bf16_to_f32", "f16_from_f32", "f16_from_f32_runtime"]

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
