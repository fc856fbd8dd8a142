"""DeepSeek-V3.2 (arXiv 2512.02556) and GLM-5 (glm-dsa): DeepSeek-V3, where a token attends only to
the positions that an indexer chooses, those of the largest scores

    score = sum over heads of  weight[h] relu(q[h] . k)

with a key per position, which is cached behind the latent, and queries and weights per token. Some
layers of GLM-5 take the choice of the layer before. While all positions fit, all are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import IndexerConfig, ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import layer_norm, linear
from weft.llm.models.deepseek2 import (
    EXPERTS,
    absorbed,
    configure_latent,
    latent,
    latent_rows,
    project,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys, *, halves: bool) -> ModelConfig:
    """Sets the indexer, whose keys lengthen the cached values."""
    c = configure_latent(c, keys)
    if not latent(c).absorbed or not latent(c).q_rank:
        raise keys.bad("attention.q_lora_rank", latent(c).q_rank, "above 0, with key_length_mla")
    names = keys.file.tensors
    own = [f"blk.{il}.indexer.proj.weight" in names for il in range(c.n_layer)]
    indexer = IndexerConfig(
        keys.count("attention.indexer.head_count"),
        keys.count("attention.indexer.key_length"),
        keys.count("attention.indexer.top_k"),
        halves,
        tuple(own) if any(own) else (True,) * c.n_layer,
    )
    if not indexer.layers[0] or not c.rope.n_dims <= indexer.head_dim <= latent(c).kv_rank:
        raise keys.bad("attention.indexer.key_length", indexer.head_dim, "at most kv_lora_rank")
    head_dim_v = c.head_dim_v + indexer.head_dim
    return replace(c, indexer=indexer, head_dim_v=head_dim_v, norm_eps=1e-6)


def indexer_of(c: ModelConfig) -> IndexerConfig:
    """The indexer, which `configure` has set."""
    assert c.indexer is not None
    return c.indexer


class SparseAttention:
    """Latent attention to the positions that an indexer chooses."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections of attention and of the indexer."""
        yield from latent_rows(c, il)
        indexer, blk = indexer_of(c), f"blk.{il}.indexer"
        if indexer.layers[il]:
            n, d = indexer.n_head, indexer.head_dim
            yield need(f"{blk}.attn_q_b.weight", latent(c).q_rank, n * d)
            yield need(f"{blk}.attn_k.weight", c.n_embd, d)
            yield need(f"{blk}.k_norm.weight", d)
            yield need(f"{blk}.k_norm.bias", d)
            yield need(f"{blk}.proj.weight", c.n_embd, n)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """Attention, from x [n_embd, n_tokens] to the same sizes."""
        layer, parts = w.layer(il), project(step, w, il, x)

        def attend(step: Step, il: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys = common.cached(step, il, step.cache.k[il], k)
            v = G.concat(v, self.index_keys(step, w, il, x, v), 0)
            both = common.cached(step, il, step.cache.v[il], v)  # [kv_rank + d, n_kv, 1]
            rank = latent(step.config).kv_rank
            step.kv[il] = keys, G.view_3d(both, rank, both.ne[1], 1, both.nb[1], both.nb[2])
            mask = self.chosen(step, w, il, x, parts.query, both)
            return common.attention(step, il, q, None, None, mask=mask)

        return linear(layer, "attn_output", absorbed(step, layer, il, parts, attend))

    def index_keys(self, step: Step, w: Weights, il: int, x: Tensor, v: Tensor) -> Tensor:
        """The keys of the indexer, [d, 1, n_tokens]; zeros in layers without one, in place of
        which a part of v is given."""
        indexer, layer, n_tokens = indexer_of(step.config), w.layer(il), x.ne[1]
        d = indexer.head_dim
        if not indexer.layers[il]:
            return G.fill(G.cont(G.view_3d(v, d, 1, n_tokens, v.nb[1], v.nb[2])), 0.0)
        k = linear(layer, "indexer.attn_k", x)
        k = layer_norm(layer, "indexer.k_norm", k, step.config.norm_eps)
        return self.rotated(step, w, il, G.reshape(k, d, 1, n_tokens))

    def rotated(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """Queries or keys of the indexer, x [d, heads, n_tokens], at their positions."""
        mode = RopeMode.NEOX if indexer_of(step.config).halves else RopeMode.NORMAL
        return common.rope(step, w, x, il, mode)

    def chosen(
        self, step: Step, w: Weights, il: int, x: Tensor, query: Tensor, cached: Tensor
    ) -> Tensor | None:
        """The mask of the chosen positions, f16 [n_kv, n_tokens], from the input x of attention,
        what queries are computed from, and the cache; None: that of all positions."""
        indexer = indexer_of(step.config)
        if step.cache.size <= indexer.top_k:
            return None
        if not indexer.layers[il]:
            return step.chosen[-1]
        layer, n, d, top_k = w.layer(il), indexer.n_head, indexer.head_dim, indexer.top_k
        n_tokens, n_kv = x.ne[1], cached.ne[1]
        q = G.reshape(linear(layer, "indexer.attn_q_b", query), d, n, n_tokens)
        weights = G.scale(linear(layer, "indexer.proj", x), 1 / math.sqrt(n * d))
        start = cached.dtype.row_bytes(latent(step.config).kv_rank)
        row = cached.nb[1]
        keys = G.view_3d(cached, d, 1, n_kv, cached.dtype.row_bytes(d), row, start)
        q = self.rotated(step, w, il, q)
        scores = G.lightning_indexer(q, keys, weights, step.mask)
        # as many more as are chosen, so that there are always enough
        more = G.repeat(G.constant([-math.inf]), (top_k, n_tokens, 1, 1))
        columns = G.concat(G.reshape(scores, n_kv, n_tokens), more, 0)
        best = G.top_k(columns, top_k)
        columns = G.reshape(columns, 1, n_kv + top_k, n_tokens)
        kept = G.fill(G.get_rows(columns, best), 0.0)  # [1, top_k, n_tokens]
        flags = G.set_rows(G.fill(columns, -math.inf), kept, best)
        flags = G.cont(G.view_2d(flags, n_kv, n_tokens, flags.nb[2]))
        mask = G.cast(G.add(flags, G.cast(step.mask, "f32")), "f16")
        step.chosen.append(mask)
        return mask


ARCHITECTURES = {
    name: Architecture(
        RopeMode.NORMAL,
        partial(configure, halves=halves),
        attention=SparseAttention(),
        feed_forward=EXPERTS,
    )
    for name, halves in (("deepseek32", True), ("glm-dsa", False))
}
