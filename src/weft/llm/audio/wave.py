"""WAV files of 16 bits and one channel, whole or piece by piece."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

_UNKNOWN = 0xFFFFFFFF
"""The size in a head whose samples are not counted yet."""


def head(rate: int, n: int | None = None) -> bytes:
    """The 44 bytes in front of `n` samples; None: nobody knows yet how many there will be."""
    size = _UNKNOWN if n is None or 2 * n + 36 > _UNKNOWN else 2 * n
    whole = _UNKNOWN if size == _UNKNOWN else size + 36
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16,
        b"data", size,
    )  # fmt: skip


def pcm(samples: NDArray[np.float32]) -> bytes:
    """Samples from -1 to 1 as integers of 16 bits, lowest byte first; larger ones are cut."""
    return np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def streamed(parts: Iterable[NDArray[np.float32]], rate: int) -> Iterator[bytes]:
    """The bytes of a file whose length nobody knows yet."""
    yield head(rate)
    yield from map(pcm, parts)
