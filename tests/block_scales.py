"""Scales of blocks of random bytes, in types that weft does not write."""

from __future__ import annotations

import numpy as np

WIDE_SCALES = ("iq2_bn", "iq4_ks", "iq5_ks", "iq1_kt", "iq2_kt", "iq3_kt", "iq4_kt", "q8_KV")
"""Types with a scale of 32 bits."""


def scale_bytes(name: str, scale: float) -> np.ndarray:
    """The scale of a block of a type that cannot be written, as bytes."""
    return np.array([scale], "<f4" if name in WIDE_SCALES else "<f2").view(np.uint8)
