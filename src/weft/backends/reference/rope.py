"""Rotary position embedding in all of ggml's modes, with YaRN (arXiv 2309.00071), and products with
Hadamard matrices.

ggml computes its angles by repeated float32 multiplication; here each is one float64 power, so that
late positions stay exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, check_index, f32, kernel
from weft.backends.reference.view import ArrayView
from weft.graph.ops import HadamardParams, RopeMode, RopeParams

F64 = NDArray[np.float64]


def _correction_range(p: RopeParams) -> tuple[float, float]:
    """The pairs between which YaRN blends from extrapolation to interpolation."""

    def pair_that_turns(n_rotations: float) -> float:
        wavelength = p.n_ctx_orig / (n_rotations * 2 * math.pi)
        return p.n_dims * math.log(wavelength) / (2 * math.log(f32(p.freq_base)))

    low = math.floor(pair_that_turns(f32(p.beta_fast)))
    high = math.ceil(pair_that_turns(f32(p.beta_slow)))
    return max(0, low), min(p.n_dims - 1, high)


def _sections(p: RopeParams, n_pairs: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(plane, exponent) per pair: which of a token's four positions rotates the pair, and how
    fast."""
    pair = np.arange(n_pairs)
    if p.mode in (RopeMode.NORMAL, RopeMode.NEOX):
        return np.zeros(n_pairs, np.intp), pair
    s0, s1, s2, _ = p.sections
    sector = pair % max(sum(p.sections), 1)
    if p.mode is RopeMode.IMROPE:
        # time, height and width interleaved while they last, then the fourth
        plane = np.full(n_pairs, 3)
        for axis, size in enumerate((s0, s1, s2)):
            plane[(sector % 3 == axis) & (sector < 3 * size)] = axis
        return plane, pair
    starts = np.cumsum([0, s0, s1, s2])
    plane = np.searchsorted(starts[1:], sector, side="right")
    # vision counts the exponent from the start of each section
    return plane, sector - starts[plane] if p.mode is RopeMode.VISION else pair


def angles(p: RopeParams, n_pairs: int, positions: F64, factors: F64 | None) -> tuple[F64, float]:
    """Angles `[token, pair]` and the magnitude; `positions` are `[plane, token]`."""
    plane, exponent = _sections(p, n_pairs)
    theta = positions[plane].T * f32(p.freq_base) ** (-2.0 * exponent / p.n_dims)
    if factors is not None:
        theta = theta / factors[:n_pairs]
    scale, mix = f32(p.freq_scale), f32(p.ext_factor)
    magnitude = f32(p.attn_factor)
    if mix == 0:
        return theta * scale, magnitude
    low, high = _correction_range(p)
    ramp = np.clip((np.arange(n_pairs) - low) / max(0.001, high - low), 0, 1)
    extrapolated = (1 - ramp) * mix
    theta = theta * scale * (1 - extrapolated) + theta * extrapolated
    return theta, magnitude * (1 + 0.1 * math.log(1 / scale))


def _rotate(call: Call, direction: int, factors: ArrayView | None) -> F64:
    p: RopeParams = call.params
    x = call.f64(0)
    n_tokens = x.shape[1]
    vision = p.mode is RopeMode.VISION
    n_pairs = x.shape[-1] // 2 if vision else p.n_dims // 2
    positions = call.f64(1).reshape(-1)[: 4 * n_tokens].reshape(-1, n_tokens)
    theta, magnitude = angles(
        p, n_pairs, positions, None if factors is None else factors.f64().reshape(-1)
    )
    # both are `[token, 1, pair]`, because every head of a token rotates alike
    cos = (np.cos(theta) * magnitude)[:, None]
    sin = (np.sin(theta) * magnitude * direction)[:, None]
    if p.mode is RopeMode.NORMAL:
        first = p.n_offset + 2 * np.arange(n_pairs)
        second = first + 1
    else:
        first = p.n_offset + np.arange(n_pairs)
        second = first + n_pairs
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


@kernel("ROPE")
def rope(call: Call) -> None:
    """Rotates pairs of each row of src0 `[batch, token, head, dim]` by its token's positions.

    src1: positions, i32 (four planes of them in the multimodal modes); src2: optional divisors of
    the angles, one per pair. Dimensions outside the rotated ones are copied."""
    call.dst.write(_rotate(call, 1, call.optional(2)))


@kernel("ROPE_BACK")
def rope_back(call: Call) -> None:
    """The inverse rotation; the gradient of ROPE."""
    call.dst.write(_rotate(call, -1, call.optional(2)))


@kernel("ROPE_SET_ROWS")
def rope_set_rows(call: Call) -> None:
    """ROPE of src0 `[1, token, head, dim]`, then the heads of token i side by side in row ids[i] of
    the destination. Sources: x, positions, ids, cache (the destination), optional divisors."""
    out = _rotate(call, 1, call.optional(4))[0]
    ids = call.read(2).reshape(-1)
    check_index(ids, call.dst.ne[1], "row")
    rows = np.ascontiguousarray(out.reshape(1, 1, len(ids), -1), np.float32)
    call.dst.units[:, :, ids] = call.dst.encode(rows)


@kernel("HADAMARD")
def hadamard(call: Call) -> None:
    """Each block of n numbers times the orthonormal Hadamard matrix, which is built by doubling."""
    p: HadamardParams = call.params
    matrix = np.ones((1, 1))
    while len(matrix) < p.n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = call.f64(0)
    blocks = x.reshape(*x.shape[:-1], -1, p.n)
    call.dst.write((blocks @ matrix / math.sqrt(p.n)).reshape(x.shape))
