"""Normalisation over rows or groups of channels, in float64."""

from __future__ import annotations

import numpy as np

from weft.backends.reference.kernel import Call, f32, kernel
from weft.graph.ops import EpsParams, GroupNormParams, NormScaleParams


@kernel("NORM")
def norm(call: Call) -> None:
    """(x - mean) / sqrt(variance + eps) over each row; the variance is the biased one."""
    p: EpsParams = call.params
    x = call.f64(0)
    x = x - x.mean(-1, keepdims=True)
    call.dst.write(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + f32(p.eps)))


@kernel("RMS_NORM")
def rms_norm(call: Call) -> None:
    """x / sqrt(mean(x^2) + eps) over each row."""
    p: EpsParams = call.params
    x = call.f64(0)
    call.dst.write(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + f32(p.eps)))


@kernel("NORM_SCALE")
def norm_scale(call: Call) -> None:
    """NORM (`centred`) or RMS_NORM of src0 (+ src3), times the row src1, plus the row src2 if there
    is one.

    The result may be blocks with the rounding of QUANTIZE."""
    p: NormScaleParams = call.params
    addend = call.optional(3)
    x = call.f64(0) if addend is None else call.f64(0) + addend.f64()
    if p.centred:
        x = x - x.mean(-1, keepdims=True)
    out = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + f32(p.eps)) * call.f64(1)
    bias = call.optional(2)
    call.dst.write_activation(out if bias is None else out + bias.f64())


@kernel("L2_NORM")
def l2_norm(call: Call) -> None:
    """x / max(|x|, eps) over each row."""
    p: EpsParams = call.params
    x = call.f64(0)
    length = np.sqrt(np.square(x).sum(-1, keepdims=True))
    call.dst.write(x / np.maximum(length, f32(p.eps)))


@kernel("GROUP_NORM")
def group_norm(call: Call) -> None:
    """NORM over groups of ceil(ne2 / n_groups) channels, each with all its rows."""
    p: GroupNormParams = call.params
    x = call.f64(0)
    out = np.empty_like(x)
    size = -(-x.shape[1] // p.n_groups)
    for first in range(0, x.shape[1], size):
        group = x[:, first : first + size]
        group = group - group.mean((1, 2, 3), keepdims=True)
        variance = np.square(group).mean((1, 2, 3), keepdims=True)
        out[:, first : first + size] = group / np.sqrt(variance + f32(p.eps))
    call.dst.write(out)
