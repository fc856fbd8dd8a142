"""Normalisation of rows and groups.

Sizes are ggml's `ne`, innermost first. Sources and results are f32 and of the same sizes; another
type and a negative `eps` raise GraphError.
"""

from __future__ import annotations

from weft.graph.node import f32, fail, like, require, require_type
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class EpsParams(Params):
    """Epsilon of NORM, RMS_NORM and L2_NORM."""

    eps: float


@dataclass(frozen=True, slots=True)
class GroupNormParams(Params):
    """The number of groups of ne[2], and epsilon."""

    n_groups: int
    eps: float


@declares("NORM", params=EpsParams, cost=6.0)
def norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """(x - mean) / sqrt(variance + eps) of each row, with the biased variance; f32, the sizes of
    `x`. Equals ggml_norm."""
    return _norm("NORM", x, eps, inplace)


@declares("RMS_NORM", inplace=True, params=EpsParams, cost=4.0)
def rms_norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) of each row; f32, the sizes of `x`.

    Raises GraphError where a row has gaps. Equals ggml_rms_norm."""
    require(x.is_contiguous_rows, "RMS_NORM", "rows of x must be contiguous; use cont()", x)
    return _norm("RMS_NORM", x, eps, inplace)


@declares("L2_NORM", params=EpsParams, cost=4.0)
def l2_norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """x / max(sqrt(sum(x^2)), eps) of each row; f32, the sizes of `x`. Equals ggml_l2_norm."""
    return _norm("L2_NORM", x, eps, inplace)


def _norm(op: str, x: Tensor, eps: float, inplace: bool) -> Tensor:
    require_type(x, ("f32",), op, "x")
    if not eps >= 0:
        raise fail(op, f"eps = {eps} must not be negative", x)
    return like(op, x, params=EpsParams(f32(eps)), inplace=inplace)


@declares("GROUP_NORM", params=GroupNormParams, cost=6.0)
def group_norm(x: Tensor, n_groups: int, eps: float, *, inplace: bool = False) -> Tensor:
    """`norm` over [w, h, channels of a group] of each image; f32 [w, h, channels, batch], as `x`.

    A group has ceil(channels / n_groups) channels, the last one the remaining channels. Raises
    GraphError where a row has gaps or `n_groups` is below 1. Equals ggml_group_norm."""
    require_type(x, ("f32",), "GROUP_NORM", "x")
    require(x.is_contiguous_rows, "GROUP_NORM", "rows of x must be contiguous; use cont()", x)
    if n_groups < 1 or not eps >= 0:
        raise fail("GROUP_NORM", f"needs n_groups >= 1, eps >= 0, got {n_groups}, {eps}", x)
    return like("GROUP_NORM", x, params=GroupNormParams(n_groups, f32(eps)), inplace=inplace)
