"""Spectrograms of sounds: windows of samples, and bands on a mel scale."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

RATE = 16_000
"""Samples per second."""
_BLOCK = 3000
_KNEE, _LINEAR = 1000.0, 200 / 3
_STEP = np.log(6.4) / 27


@cache
def mel_filters(
    n_mel: int, n_fft: int, scale: Literal["slaney", "htk"] = "slaney", *, area: bool = True
) -> NDArray[np.float64]:
    """Triangles over frequencies [n_fft / 2 + 1, n_mel], whose corners are equally far apart on a
    mel scale; with `area` they have equal areas, else equal heights."""
    corners = _hertz(n_mel, scale)
    at = np.linspace(0, RATE / 2, n_fft // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (at - left) / (middle - left), (right - at) / (right - middle)
    filters = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(filters * (2 / (right - left)) if area else filters)


def _hertz(n_mel: int, scale: str) -> NDArray[np.float64]:
    """The corners of the triangles."""
    if scale == "htk":
        mels = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), n_mel + 2)
        return np.asarray(700 * (10 ** (mels / 2595) - 1))
    knee = _KNEE / _LINEAR
    mels = np.linspace(0, knee + np.log(RATE / 2 / _KNEE) / _STEP, n_mel + 2)
    return np.where(mels < knee, mels * _LINEAR, _KNEE * np.exp((mels - knee) * _STEP))


def bands(
    samples: NDArray[np.floating],
    shape: NDArray[np.float64],
    hop: int,
    n: int,
    n_fft: int,
    filters: NDArray[np.float64],
    *,
    power: int = 2,
) -> NDArray[np.float64]:
    """The amplitudes, to the power of `power`, of `n` windows of samples in each band [n, n_mel];
    a window begins every `hop` samples, is multiplied by `shape`, and followed by zeros up to
    `n_fft` samples."""
    windows = sliding_window_view(samples, len(shape))[::hop]
    out = np.empty((n, filters.shape[1]))
    for at in range(0, n, _BLOCK):
        end = min(at + _BLOCK, n)
        heights = np.abs(np.fft.rfft(windows[at:end] * shape, n_fft, axis=1))
        out[at:end] = heights**power @ filters
    return out


def hann(n: int) -> NDArray[np.float64]:
    """The periodic window of Hann."""
    return np.asarray(np.hanning(n + 1)[:-1])
