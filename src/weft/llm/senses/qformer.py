"""The layers of a Q-Former (arXiv 2301.12597) without text, whose queries make a window of rows of
an encoder into a few rows: they attend to one another, and then to the rows of the window."""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft import graph as G
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.weights import Row, Weights, pair

EPS = 1e-12


def rows(at: str, n_embd: int, n_ff: int) -> Iterator[Row]:
    """The weights of the layer whose names begin with `at`."""
    for kind in ("self", "cross"):
        for name in ("q", "k", "v", "out"):
            yield from pair(f"{at}.{kind}_attn_{name}", n_embd, n_embd)
        yield from pair(f"{at}.{kind}_attn_norm", n_embd)
    yield from pair(f"{at}.ffn_up", n_embd, n_ff)
    yield from pair(f"{at}.ffn_down", n_ff, n_embd)
    yield from pair(f"{at}.ffn_norm", n_embd)


def layer(
    w: Weights, y: Tensor, x: Tensor, n_head: int, n_queries: int, window: int, n: Size
) -> Tensor:
    """The queries y [n_embd, n_queries n] of n windows behind a layer; x [n_embd, window n] has the
    encoder's rows."""
    z = _looked(w, "self", y, y, n_head, n_queries, n_queries, n)
    y = common.layer_norm(w, "self_attn_norm", G.add(z, y), EPS)
    z = _looked(w, "cross", y, x, n_head, n_queries, window, n)
    y = common.layer_norm(w, "cross_attn_norm", G.add(z, y), EPS)
    z = common.linear(w, "ffn_down", G.gelu_erf(common.linear(w, "ffn_up", y)))
    return common.layer_norm(w, "ffn_norm", G.add(z, y), EPS)


def _looked(
    w: Weights, kind: str, y: Tensor, x: Tensor, h: int, n_queries: int, n_keys: int, n: Size
) -> Tensor:
    """Attention of the queries y of each of n windows to its `n_keys` rows of x, with h heads."""
    q, k, v = (
        common.linear(w, f"{kind}_attn_{name}", t) for name, t in zip("qkv", (y, x, x), strict=True)
    )
    width = q.ne[0]
    assert isinstance(width, int)  # weights have no symbols
    d = width // h
    q = G.reshape(q, d, h, n_queries, n)
    k, v = (G.reshape(t, d, h, n_keys, n) for t in (k, v))
    scores = G.mul_mat(G.cont(G.permute(k, 0, 2, 1, 3)), G.cont(G.permute(q, 0, 2, 1, 3)))
    return common.linear(w, f"{kind}_attn_out", mixed(d, scores, v, None, y.ne[1]))


def mixed(d: int, scores: Tensor, v: Tensor, mask: Tensor | None, n: Size) -> Tensor:
    """Rows [d n_head, n] of values [d, n_head, n_keys, n_blocks] by scores."""
    chances = G.soft_max(scores, mask, scale=1 / math.sqrt(d))
    y = G.mul_mat(G.cont(G.permute(v, 1, 2, 0, 3)), chances)
    return G.reshape(G.cont(G.permute(y, 0, 2, 1, 3)), d * v.ne[1], n)
