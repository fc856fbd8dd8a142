"""The log-mel spectrogram that Whisper hears (arXiv 2212.04356)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["HOP", "RATE", "WINDOW", "log_mel", "mel_filters"]

RATE = 16_000
"""Samples per second."""
WINDOW, HOP = 400, 160
"""Samples of a window, and from one to the next."""
_BLOCK = 3000
_KNEE, _LINEAR = 1000.0, 200 / 3
_STEP = np.log(6.4) / 27


def log_mel(samples: NDArray[np.float32], n_mel: int) -> NDArray[np.float32]:
    """The spectrogram of samples [n] as f32 [n_mel, n / HOP]: the logarithm of the power in each
    band, at most 8 powers of ten below the largest, about from -1 to 1."""
    n_frames = len(samples) // HOP
    padded = np.pad(samples.astype(np.float64), WINDOW // 2, mode="reflect")
    windows = sliding_window_view(padded, WINDOW)[::HOP]
    shape = np.hanning(WINDOW + 1)[:-1]
    filters = mel_filters(n_mel)
    out = np.empty((n_mel, n_frames))
    for at in range(0, n_frames, _BLOCK):
        end = min(at + _BLOCK, n_frames)
        power = np.abs(np.fft.rfft(windows[at:end] * shape, axis=1)) ** 2
        out[:, at:end] = (power @ filters).T
    out = np.log10(np.maximum(out, 1e-10))
    return np.asarray((np.maximum(out, out.max() - 8) + 4) / 4, np.float32)


@cache
def mel_filters(n_mel: int) -> NDArray[np.float64]:
    """Triangles over frequencies [WINDOW / 2 + 1, n_mel], of equal area, whose corners are equally
    far apart on Slaney's mel scale."""
    knee = _KNEE / _LINEAR
    top = knee + np.log(RATE / 2 / _KNEE) / _STEP
    mels = np.linspace(0, top, n_mel + 2)
    corners = np.where(mels < knee, mels * _LINEAR, _KNEE * np.exp((mels - knee) * _STEP))
    at = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (at - left) / (middle - left), (right - at) / (right - middle)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (right - left))
    return np.asarray(filters)
