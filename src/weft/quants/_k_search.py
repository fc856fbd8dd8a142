"""The scale searches of the K-quants, over many sub-blocks at once.

Arguments are `[n, m]`: element first, one column a sub-block. The reference searches in float32
and keeps the first of equals, so the order of every operation here is part of the result.

Source: `make_qkx2_quants`, `make_qx_quants` (rmse type 1, no weights) and `make_q3_quants` (with
rmse) in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from weft.quants._blocks import F32, TINY_GROUP, nearest_int, ordered_sum, signed_peak


def _codes(x: F32, low: int, high: int) -> F32:
    """`x` rounded and clipped to `low..high`, as float32."""
    return np.clip(nearest_int(x), low, high).astype(np.float32)


def fit_scale_and_min(
    x: F32, weights: F32, top: int, first: float, step: float, n_steps: int, absolute: bool
) -> tuple[F32, F32, F32]:
    """Fit x = scale * q - offset with q in 0..`top` and offset >= 0.

    Tries `n_steps + 1` code widths (`top + first + step * i`) / range, each with its least-squares
    scale and offset, and keeps the least weighted error, absolute or squared. Returns (scale
    `[m]`, offset `[m]`, codes `[n, m]`)."""

    def error(scale: F32, low: F32, codes: F32) -> F32:
        diff = scale * codes
        diff += low
        diff -= x
        diff = np.abs(diff) if absolute else diff * diff
        diff *= weights
        return ordered_sum(diff)

    high = x.max(0)
    low = np.minimum(x.min(0), np.float32(0))
    flat = high == low
    flat_low = low
    sum_w = ordered_sum(weights)
    sum_x = ordered_sum(weights * x)

    inverse = np.float32(top) / (high - low)
    scale = np.float32(1) / inverse
    codes = _codes(inverse * (x - low), 0, top)
    best = error(scale, low, codes)
    for i in range(n_steps + 1):
        width = np.float32(first) + np.float32(step) * np.float32(i) + np.float32(top)
        # the offset of the best fit so far shifts the range of the next try
        trial = _codes(width / (high - low) * (x - low), 0, top)
        wl = weights * trial
        sum_l = ordered_sum(wl)
        sum_l2 = ordered_sum(wl * trial)
        sum_xl = ordered_sum(wl * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        trial_scale: F32 = np.divide(sum_w * sum_xl - sum_x * sum_l, determinant)
        trial_low: F32 = np.divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        positive = trial_low > 0
        trial_low = np.where(positive, np.float32(0), trial_low)
        trial_scale = np.where(positive, sum_xl / sum_l2, trial_scale)
        trial_error = error(trial_scale, trial_low, trial)
        better = (determinant > 0) & (trial_error < best)
        np.copyto(best, trial_error, where=better)
        np.copyto(codes, trial, where=better)
        scale = np.where(better, trial_scale, scale)
        low = np.where(better, trial_low, low)
    codes[:, flat] = 0
    return np.where(flat, np.float32(0), scale), -np.where(flat, flat_low, low), codes


def fit_scale(x: F32, half: int) -> tuple[F32, F32]:
    """Fit x = scale * q with q in -`half`..`half`-1 and weights x*x, over 19 code widths.

    Returns (scale `[m]`, codes + `half` `[n, m]`); both 0 for a sub-block of zeros."""
    amax, peak = signed_peak(x, axis=0)
    weights = x * x
    wx = weights * x

    def sums(inverse: F32) -> tuple[F32, F32]:
        codes = _codes(inverse * x, -half, half - 1)
        return ordered_sum(wx * codes), ordered_sum(weights * codes * codes)

    best_inverse = np.float32(-half) / peak
    sum_lx, sum_l2 = sums(best_inverse)
    scale = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
    best = scale * sum_lx
    for i in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + np.float32(0.1) * np.float32(i)) / peak
        sum_lx, sum_l2 = sums(inverse)
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        best_inverse = np.where(better, inverse, best_inverse)
        scale = np.where(better, sum_lx / sum_l2, scale)
        best = np.where(better, scale * sum_lx, best)
    codes = _codes(best_inverse * x, -half, half - 1) + np.float32(half)
    zero = amax < TINY_GROUP
    codes[:, zero] = 0
    return np.where(zero, np.float32(0), scale), codes


def fit_scale_by_element(x: F32, half: int) -> tuple[F32, F32]:
    """Fit x = scale * q like `fit_scale`, improving one element at a time, in up to five rounds.

    Returns (scale `[m]`, codes + `half` `[n, m]`); both 0 for a sub-block of zeros."""
    amax, peak = signed_peak(x, axis=0)
    weights = x * x
    wx = weights * x
    codes = _codes(np.float32(-half) / peak * x, -half, half - 1)
    sum_lx = ordered_sum(wx * codes)
    sum_l2 = ordered_sum(weights * codes * codes)
    for _ in range(5):
        any_change = False
        for xi, w, wxi, code in zip(x, weights, wx, codes, strict=True):
            rest_lx = sum_lx - wxi * code
            rest_l2 = sum_l2 - w * code * code
            trial = _codes(xi * rest_l2 / rest_lx, -half, half - 1)
            trial_lx = rest_lx + wxi * trial
            trial_l2 = rest_l2 + w * trial * trial
            better = (rest_lx > 0) & (trial != code) & (trial_l2 > 0)
            better &= trial_lx * trial_lx * sum_l2 > sum_lx * sum_lx * trial_l2
            np.copyto(code, trial, where=better)
            np.copyto(sum_lx, trial_lx, where=better)
            np.copyto(sum_l2, trial_l2, where=better)
            any_change |= bool(better.any())
        if not any_change:
            break
    zero = amax < TINY_GROUP
    codes += np.float32(half)
    codes[:, zero] = 0
    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, np.float32(0))
    return np.where(zero, np.float32(0), scale), codes
