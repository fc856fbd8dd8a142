"""Keys that are rotated on their way into the cache."""

from __future__ import annotations

from weft.graph.op import OPS
from weft.graph.rewrite.match import Fused, Matcher
from weft.graph.tensor import Tensor

__all__ = ["rope_into_cache"]


def rope_into_cache(m: Matcher, last: Tensor) -> Fused | None:
    """ROPE of [d, heads, tokens], its heads side by side, written to a row for each token."""
    if last.op is not OPS["SET_ROWS"]:
        return None
    rows, cells, cache = last.src[0], last.src[1], last.src[2]
    side_by_side = m.inner(rows, "RESHAPE", last)
    if side_by_side is None or cells is None or cache is None:
        return None
    rotated = m.inner(side_by_side.src[0], "ROPE", side_by_side)
    if rotated is None:
        return None
    d, heads, tokens, batch = rotated.ne
    if batch != 1 or side_by_side.ne != (d * heads, tokens, 1, 1):
        return None
    if cells.ne != (tokens, 1, 1, 1) or d % last.dtype.block != 0:
        return None
    x, positions, *factors = rotated.src
    src = (x, positions, cells, cache, *factors)
    return Fused(last, "ROPE_SET_ROWS", src, rotated.params, (rotated, side_by_side))
