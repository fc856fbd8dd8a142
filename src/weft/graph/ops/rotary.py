"""Rotary positions, and the rotation of rows that a quantized cache stores. Sizes are ggml's `ne`,
innermost first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TypedDict, Unpack

from weft.graph.node import f32, fail, like, member, multiple, require, require_type
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import is_at_most
from weft.graph.tensor import Tensor
from weft.options import require_options
from weft.records import dataclass


class RopeMode(IntEnum):
    """The pairing of elements and the layout of positions in ROPE; the numbers are ggml's mode
    flags."""

    NORMAL = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40


@dataclass(frozen=True, slots=True)
class RopeParams(Params):
    """The numbers of ggml_rope_ext; `n_offset` is the first rotated dimension."""

    mode: RopeMode
    n_dims: int
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_offset: int = 0
    sections: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class HadamardParams(Params):
    """The length of the blocks of HADAMARD."""

    n: int


class RopeNumbers(TypedDict, total=False):
    """Numbers of `rope` by name; `RopeParams` has their defaults."""

    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    n_offset: int


@declares("ROPE", inplace=True, params=RopeParams, cost=8.0)
def rope(
    x: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None = None,
    *,
    mode: RopeMode | str | int,
    n_dims: int,
    sections: Sequence[int] = (),
    inplace: bool = False,
    **numbers: Unpack[RopeNumbers],
) -> Tensor:
    """Rotary position embedding of `n_dims` elements of each row, from `n_offset` on; type and
    sizes of `x`.

    x: f32 or f16 [d, n_head, n_tok, batch], pos: i32 [n_tok], or [4 n_tok] (four planes) for the
    modes with sections. freq_factors: f32 [n_dims / 2 or more], which divide the angles (radians).
    The `numbers` equal ggml_rope_ext; ext_factor != 0 is YaRN (arXiv 2309.00071). Raises
    GraphError where the sizes differ from these, where a row has gaps, for an odd `n_dims` and for
    modes without their sections. Equals ggml_rope_ext and ggml_rope_multi."""
    params = _params("ROPE", x, mode, n_dims, sections, numbers)
    return _rope("ROPE", x, pos, freq_factors, params, inplace)


@declares("ROPE_BACK", inplace=True, params=RopeParams, cost=8.0)
def rope_back(
    x: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None = None,
    *,
    mode: RopeMode | str | int,
    n_dims: int,
    sections: Sequence[int] = (),
    **numbers: Unpack[RopeNumbers],
) -> Tensor:
    """The inverse rotation of `rope`, its gradient; arguments, sizes and errors as `rope`. Equals
    ggml_rope_ext_back."""
    params = _params("ROPE_BACK", x, mode, n_dims, sections, numbers)
    return _rope("ROPE_BACK", x, pos, freq_factors, params)


def _params(
    op: str, x: Tensor, mode: RopeMode | str | int, n_dims: int, sections: Sequence[int],
    numbers: RopeNumbers,
) -> RopeParams:  # fmt: skip
    """The record of either op: four sections, zeros behind those given, and f32 as ggml has it."""
    require_options(op, numbers, tuple(RopeNumbers.__annotations__))
    if len(sections) > 4:
        raise fail(op, f"at most 4 sections, got {list(sections)}", x)
    s0, s1, s2, s3 = (*sections, *[0] * (4 - len(sections)))
    p = RopeParams(member(RopeMode, mode, op), n_dims, sections=(s0, s1, s2, s3), **numbers)
    return replace(
        p,
        freq_base=f32(p.freq_base),
        freq_scale=f32(p.freq_scale),
        ext_factor=f32(p.ext_factor),
        attn_factor=f32(p.attn_factor),
        beta_fast=f32(p.beta_fast),
        beta_slow=f32(p.beta_slow),
    )


def _rope(
    op: str, x: Tensor, pos: Tensor, freq_factors: Tensor | None, params: RopeParams,
    inplace: bool = False,
) -> Tensor:  # fmt: skip
    """A node of either op."""
    n_dims, n_offset = params.n_dims, params.n_offset
    require_type(x, ("f32", "f16"), op, "x")
    require(x.is_contiguous_rows, op, "rows of x must be contiguous; use cont()", x)
    require_type(pos, ("i32",), op, "pos")
    planes = 4 if params.mode in (RopeMode.MROPE, RopeMode.IMROPE, RopeMode.VISION) else 1
    fits = pos.n_rows == 1 and pos.ne[0] == planes * x.ne[2]
    require(fits, op, f"pos must have {planes} number(s) for each token (dimension 2 of x)", x, pos)
    if n_dims < 2 or n_dims % 2 or n_offset < 0 or not is_at_most(n_offset + n_dims, x.ne[0]):
        raise fail(op, f"n_dims = {n_dims} (even) from {n_offset} leaves the rows", x)
    if params.mode is RopeMode.VISION and 2 * n_dims != x.ne[0]:
        raise fail(op, f"vision mode rotates pairs n_dims apart: 2 * {n_dims} must be a row", x)
    if planes == 4 and (min(params.sections) < 0 or sum(params.sections) < 1):
        raise fail(op, f"mode {params.mode.name.lower()} needs sections, got {params.sections}", x)
    if freq_factors is not None:
        require_type(freq_factors, ("f32",), op, "freq_factors")
        fits = is_at_most(n_dims // 2, freq_factors.ne[0])
        require(fits, op, f"freq_factors must have {n_dims // 2} numbers", freq_factors)
    return like(op, x, pos, freq_factors, params=params, inplace=inplace)


@declares("HADAMARD", inplace=True, params=HadamardParams, cost=8.0)
def hadamard(x: Tensor, n: int, *, inplace: bool = False) -> Tensor:
    """Each block of `n` numbers of a row, times the orthonormal Hadamard matrix of these numbers,
    H[i, j] = (-1)^(number of ones in the bits of i & j) / sqrt(n); f32, the sizes of `x`.

    The matrix is its own inverse: a second time gives `x` again. Raises GraphError unless `n` is a
    power of two from 2 on that divides ne[0]. Equals ggml_mul_mat with that matrix, of rows that
    are cut into blocks."""
    require_type(x, ("f32",), "HADAMARD", "x")
    require(x.is_contiguous_rows, "HADAMARD", "rows of x must be contiguous; use cont()", x)
    if n < 2 or n & (n - 1) or not multiple(x.ne[0], n):
        raise fail("HADAMARD", f"n = {n} must be a power of two from 2 on that divides ne[0]", x)
    return like("HADAMARD", x, params=HadamardParams(n), inplace=inplace)
