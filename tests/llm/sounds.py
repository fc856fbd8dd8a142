"""Sounds, and files of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sound", "wav"]


def sound(seed: int = 0, n: int = 5000) -> NDArray[np.float32]:
    """Noise that becomes louder, and a tone."""
    at = np.arange(n) / 16000
    noise = np.random.default_rng(seed).standard_normal(n) * at
    return (0.5 * np.sin(2 * np.pi * 300 * at) + noise).astype(np.float32)


def wav(samples: NDArray[Any], rate: int = 16000, bits: int = 16, kind: int = 1) -> bytes:
    """The bytes of a WAV file of samples [n, channels]."""
    values = samples[:, None] if samples.ndim == 1 else samples
    if kind == 3:
        body = values.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        body = (values * 127 + 128).round().astype(np.uint8).tobytes()
    else:
        whole = (values * (2 ** (bits - 1) - 1)).round().astype("<i4")
        body = whole.reshape(-1, 1).view(np.uint8)[:, : bits // 8].tobytes()
    width = values.shape[1] * bits // 8
    form = struct.pack("<HHIIHH", kind, values.shape[1], rate, rate * width, width, bits)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
