"""Another rate for samples: interpolation by a windowed sinc, whose filters differ by the place
between two samples (a polyphase filter)."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["resampled"]

ZEROS = 32
"""Zeros of the sinc on each side."""
ROLL_OFF = 0.945
"""Where the filter ends, as a part of the lower of the two band widths."""
BETA = 9.0
"""Of the window of Kaiser: what is beyond the band is less than -90 dB."""
_BLOCK = 1 << 13


def resampled(samples: NDArray[np.float32], rate: int, new: int) -> NDArray[np.float32]:
    """Samples f32 [n] of `rate` per second as f32 [ceil(n new / rate)] of `new` per second."""
    if rate == new or not len(samples):
        return samples
    step = gcd(rate, new)
    up, down = new // step, rate // step
    cut = min(1.0, new / rate) * ROLL_OFF  # in samples of the old rate
    reach = int(np.ceil(ZEROS / cut))
    n = -(-len(samples) * up // down)
    padded = np.pad(samples, (reach, reach + down))
    out = np.empty(n, np.float32)
    offsets = np.arange(1 - reach, reach + 1)
    for phase in range(min(up, n)):  # results phase, phase + up, ... lie alike between samples
        first, part = divmod(phase * down, up)
        filter_ = _kernel(offsets - part / up, cut, reach)
        windows = sliding_window_view(padded[first + 1 :], 2 * reach)[::down]
        count = len(out[phase::up])
        for at in range(0, count, _BLOCK):
            end = min(at + _BLOCK, count)
            out[phase + at * up : phase + (end - 1) * up + 1 : up] = windows[at:end] @ filter_
    return out


def _kernel(at: NDArray[np.floating[Any]], cut: float, reach: int) -> NDArray[np.float32]:
    window = np.i0(BETA * np.sqrt(np.maximum(1 - (at / reach) ** 2, 0))) / np.i0(BETA)
    return np.asarray(cut * np.sinc(cut * at) * window, np.float32)
