"""Softmax of scores that are scaled and masked first, for graphs that spell it out."""

from __future__ import annotations

import numpy as np

from weft.dtype import DTYPES
from weft.graph.op import OPS
from weft.graph.ops import ScaleParams, SoftMaxParams
from weft.graph.rewrite.match import Fused, Matcher
from weft.graph.size import is_at_most
from weft.graph.tensor import Tensor

__all__ = ["with_mask_and_scale"]


def with_mask_and_scale(m: Matcher, last: Tensor) -> Fused | None:
    """A softmax takes the scale and the mask before it as arguments."""
    if last.op is not OPS["SOFT_MAX"] or not isinstance(last.params, SoftMaxParams):
        return None
    if len(last.src) != 1 or last.params.max_bias or last.view_src is not None:
        return None
    x, mask, removed = last.src[0], None, []
    added = m.inner(x, "ADD", last) if last.params.scale == 1.0 else None
    if added is not None and _is_mask(added.src[1], added):
        removed.append(added)
        x, mask = added.src[0], added.src[1]
    scaled = m.inner(x, "SCALE", removed[-1] if removed else last)
    scale = last.params.scale
    if scaled is not None and isinstance(scaled.params, ScaleParams) and not scaled.params.b:
        removed.append(scaled)
        x = scaled.src[0]
        scale = float(np.float32(scale * scaled.params.s))
    if not removed or x is None or x.ne != last.ne or not x.is_contiguous:
        return None
    if x.dtype is not DTYPES["f32"]:
        return None
    params = SoftMaxParams(scale, 0.0)
    return Fused(last, "SOFT_MAX", (x,) if mask is None else (x, mask), params, tuple(removed))


def _is_mask(mask: Tensor | None, scores: Tensor) -> bool:
    """A mask that SOFT_MAX takes: whole rows, repeated over heads and batches only."""
    if mask is None or mask.dtype.name not in ("f32", "f16") or not mask.is_contiguous:
        return False
    x = scores.src[0]
    if x is None or x.ne != scores.ne or mask.ne[:2] != scores.ne[:2]:
        return False
    return all(is_at_most(1, mask.ne[d]) and scores.ne[d] % mask.ne[d] == 0 for d in (2, 3))
