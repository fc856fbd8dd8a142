"""8-bit floats of safetensors files, by table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode_f8"]

Floats = NDArray[np.float32]


def decode_f8(data: NDArray[np.uint8], kind: str) -> Floats:
    """8-bit floats as float32: E4M3 (without infinities), E5M2, or E8M0 (powers of two)."""
    return np.asarray(_F8[kind][data], np.float32)


def _table(n_mantissa: int, bias: int, *, infinities: bool) -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code & 127) >> n_mantissa, code & ((1 << n_mantissa) - 1)
    scale = np.ldexp(1.0, np.maximum(exponent, 1) - bias - n_mantissa)
    value = (mantissa + (exponent > 0) * (1 << n_mantissa)) * scale
    if infinities:
        top = exponent == 31
        value[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        value[code & 127 == 127] = np.nan
    return np.asarray(np.where(code < 128, value, -value), np.float32)


_F8: dict[str, Floats] = {
    "F8_E4M3": _table(3, 7, infinities=False),
    "F8_E5M2": _table(2, 15, infinities=True),
    "F8_E8M0": np.array([*np.ldexp(1.0, np.arange(255) - 127), np.nan], np.float32),
}
