"""MiniMax-M3 (MiniMax, 2026): attention of MiniMax-M2, with a norm of each head, and DeepSeek-V3's
experts with gpt-oss' activation, everywhere. Behind the dense layers a token attends only to the
blocks of positions that an indexer chooses: for each key head, the blocks with the largest of

    score = q[h] . k

over the positions of the block, and the last blocks. The indexer's keys are cached behind the
values. While all blocks fit, all are chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import BlockConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import EACH_HEAD, RMS, Gated, linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

_OAI = partial(G.swiglu_oai, alpha=1.702, limit=7.0)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the blocks that are chosen, whose keys lengthen the cached values."""
    moe, n_kv = require_experts(c), c.heads_kv[0]
    names = keys.file.tensors
    own = [f"blk.{il}.indexer.q_proj.weight" in names for il in range(c.n_layer)]
    usual = (not moe.is_dense(il) for il in range(c.n_layer))
    blocks = BlockConfig(
        keys.count("attention.indexer.key_length"),
        keys.count("attention.indexer.top_k", most=1 << 16),
        keys.count("attention.indexer.block_size", most=1 << 16),
        keys.count("attention.indexer.local_blocks", least=0, most=1 << 16),
        tuple(own) if any(own) else tuple(usual),
    )
    n_head = keys.count("attention.indexer.head_count")
    if n_head != n_kv or set(c.heads_kv) != {n_kv} or blocks.head_dim % n_kv:
        raise keys.bad("attention.indexer.head_count", n_head, f"the {n_kv} key heads of a layer")
    if c.rope.n_dims > blocks.head_dim:
        raise keys.bad("attention.indexer.key_length", blocks.head_dim, "at least what rotates")
    return replace(c, chosen_blocks=blocks, head_dim_v=c.head_dim_v + blocks.head_dim // n_kv)


def blocks_of(c: ModelConfig) -> BlockConfig:
    """The blocks, which `configure` has set."""
    assert c.chosen_blocks is not None
    return c.chosen_blocks


class BlockAttention:
    """Attention to the blocks of positions that an indexer chooses."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        b, blocks, n_head, n_kv = f"blk.{il}", blocks_of(c), c.n_head(il), c.n_head_kv(il)
        d, dv = c.head_dim_k, value_size(c, il)
        for name, n in (("q", n_head * d), ("k", n_kv * d), ("v", n_kv * dv)):
            yield from linear_rows(f"{b}.attn_{name}", c.n_embd, n)
        yield from linear_rows(f"{b}.attn_output", n_head * dv, c.n_embd)
        yield from EACH_HEAD.rows(c, il)
        if blocks.layers[il]:
            for name, n in (("q", n_kv), ("k", 1)):
                yield need(f"{b}.indexer.{name}_proj.weight", c.n_embd, n * blocks.head_dim)
                yield need(f"{b}.indexer.{name}_norm.weight", blocks.head_dim)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c, layer, n_tokens = step.config, w.layer(il), x.ne[1]
        blocks, n_head, n_kv, dv = blocks_of(c), c.n_head(il), c.n_head_kv(il), value_size(c, il)
        q, k = (
            EACH_HEAD(c, layer, f"attn_{name}_norm",
                      G.reshape(linear(layer, f"attn_{name}", x), c.head_dim_k, n, n_tokens))
            for name, n in (("q", n_head), ("k", n_kv))
        )  # fmt: skip
        q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
        values = G.reshape(linear(layer, "attn_v", x), dv * n_kv, 1, n_tokens)
        if blocks.layers[il]:
            index = self.indexed(step, w, il, "k", x)
        else:
            index = G.repeat(G.constant([0.0]), (blocks.head_dim, 1, n_tokens, 1))
        keys = common.cached(step, il, step.cache.k[il], k)
        table, cache = step.cache.v[il], step.cache
        # each part is rotated by itself, as it is read by itself
        index = common.spread(cache, table, index, blocks.head_dim, values=True)
        values = G.concat(common.spread(cache, table, values, dv, values=True), index, 0)
        width = dv * n_kv + blocks.head_dim
        both = common.stored(step, il, table, G.reshape(values, width, n_tokens), width)
        row, n_cells = both.nb[1], both.ne[1]
        seen = G.view_3d(both, dv, n_cells, n_kv, row, both.dtype.row_bytes(dv))
        step.kv[il] = keys, seen
        if step.block_places is None or not blocks.layers[il]:
            return linear(layer, "attn_output", common.attention(step, il, q, None, None))
        start = both.dtype.row_bytes(dv * n_kv)
        index = G.view_2d(both, blocks.head_dim, n_cells, row, start)
        of_blocks = self.indexed(step, w, il, "q", x)
        of_blocks = common.spread(cache, both, of_blocks, blocks.head_dim, values=True)
        flags = self.chosen(step, of_blocks, index)
        outputs, group = [], n_head // n_kv
        for h in range(n_kv):  # each key head has a mask of its own
            of_head = G.view_2d(flags, n_cells, n_tokens, flags.nb[2], h * flags.nb[1])
            mask = G.cast(G.add(G.cont(of_head), G.cast(step.mask, "f32")), "f16")
            part = G.view_3d(q, c.head_dim_k, group, n_tokens, q.nb[1], q.nb[2],
                             h * group * q.nb[1])  # fmt: skip
            of_keys = G.view_3d(keys, c.head_dim_k, n_cells, 1, keys.nb[1], keys.nb[2],
                                h * keys.nb[2])  # fmt: skip
            of_values = G.view_3d(seen, dv, n_cells, 1, row, seen.nb[2], h * seen.nb[2])
            outputs.append(common.attend(step, part, of_keys, of_values, mask))
        y = outputs[0]
        for other in outputs[1:]:
            y = G.concat(y, other, 0)
        return linear(layer, "attn_output", y.named(f"kqv_out-{il}"))

    def indexed(self, step: Step, w: Weights, il: int, name: str, x: Tensor) -> Tensor:
        """The queries or keys of the indexer, [d, heads, n_tokens]."""
        layer, d = w.layer(il), blocks_of(step.config).head_dim
        n = step.config.n_head_kv(il) if name == "q" else 1
        y = G.reshape(linear(layer, f"indexer.{name}_proj", x), d, n, x.ne[1])
        return common.rope(step, w, RMS(step.config, layer, f"indexer.{name}_norm", y), il)

    def chosen(self, step: Step, q: Tensor, keys: Tensor) -> Tensor:
        """For each cell, head and token 0 if the cell is in a chosen block, f32 [n_kv, heads,
        n_tokens]; -inf elsewhere. q: [d, heads, n_tokens], keys: [d, n_kv]."""
        assert step.block_places is not None
        places, forced = step.block_places  # [n_blocks * size, n_tokens] and [n_blocks, n_tokens]
        blocks, (d, n_head, n_tokens) = blocks_of(step.config), q.ne[:3]
        n_kv, n_blocks = keys.ne[1], forced.ne[0]
        scores = G.mul_mat(keys, G.reshape(q, d, n_head * n_tokens))
        mask = G.reshape(G.cast(step.mask, "f32"), n_kv, 1, n_tokens)
        scores = G.add(G.reshape(scores, n_kv, n_head, n_tokens), mask)
        # a row behind the cells, for positions that no cell has
        rows = G.cont(G.permute(scores, 1, 0, 2, 3))  # [heads, n_kv, n_tokens]
        nowhere = G.repeat(G.constant([-math.inf]), (n_head, 1, n_tokens, 1))
        rows = G.concat(rows, nowhere, 1)
        by_place = G.get_rows(rows, places)  # [heads, positions, n_tokens]
        by_place = G.cont(G.permute(by_place, 1, 0, 2, 3))
        best = G.pool_1d(by_place, "max", blocks.size, blocks.size)  # [n_blocks, heads, n_tokens]
        best = G.top_k(G.add(best, G.reshape(forced, n_blocks, 1, n_tokens)), blocks.top_k)
        cells = G.get_rows(
            G.reshape(places, blocks.size, n_blocks, n_tokens),
            G.reshape(best, blocks.top_k * n_head, n_tokens),
        )
        cells = G.reshape(cells, blocks.size * blocks.top_k, n_head, n_tokens)
        # made of what was computed, so that it is on the device that writes into it
        none = G.reshape(G.fill(rows, -math.inf), 1, n_kv + 1, n_head, n_tokens)
        zeros = G.repeat(G.constant([0.0]), (1, blocks.size * blocks.top_k, n_head, n_tokens))
        flags = G.set_rows(none, zeros, cells)
        return G.reshape(flags, n_kv + 1, n_head, n_tokens)


def value_size(c: ModelConfig, il: int) -> int:
    """The number of elements of a value head, without the indexer's keys."""
    return c.head_dim_v - blocks_of(c).head_dim // c.n_head_kv(il)


ARCHITECTURES = {
    "minimax-m3": Architecture(
        RopeMode.NEOX, configure, attention=BlockAttention(),
        feed_forward=Experts(Gated(_OAI), shared="added", balanced=True, oai=True,
                             shared_act=_OAI),
    ),
}  # fmt: skip
