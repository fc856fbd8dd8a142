"""Attention to the blocks of positions that an indexer chooses by keys of whole blocks.

The indexer has a key for each whole block of positions, made of the keys of its tokens, and chooses
the blocks with the largest scores, as DeepSeek-V3.2's chooses positions. A token sees the positions
of these blocks, and the positions of its own block while this is not whole. While all blocks fit,
all are chosen. What a block's key is made of is kept for each token, beside its key and value.

GLM-5.3 (glm5-next, Z.ai, 2026): Kimi Linear's delta nets, with a lower bound of decays, and latent
attention without any rotation, where the latent is key and value. The key of a block is a sum of
its tokens' keys, weighted element by element:

    key[b] = sum over positions p of  softmax over p (gate[p] + place[p]) * k[p]

Residual streams are as in `hyper.py`; behind the last layer they are averaged. Some layers take the
choice of the layer before, and all gated products are limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from weft import graph as G
from weft.errors import ContextError, FormatError
from weft.graph import RopeMode
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import CompressionConfig, HyperConfig, IndexerConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import layer_norm, linear
from weft.llm.models.deepseek import absorbed, indexer_of, latent, latent_rows, of_largest, project
from weft.llm.models.deepseek4 import Hyper
from weft.llm.models.delta import DeltaOrAttention, DeltaOrLatent, configure, delta_or_latent
from weft.llm.models.experts import Experts, halves_limits, require_experts
from weft.llm.models.hyper import (
    averaged,
    gated,
    gated_mean,
    gated_rows,
    read_hyper,
    streams,
)
from weft.llm.models.ngrams import conv_size, ngram_rows, read_ngrams, table_row, with_ngrams
from weft.llm.models.parts import EACH_HEAD, RMS, Gated
from weft.llm.models.step import Blocks, Step, recurs, require_recurrent
from weft.llm.weights import Row, Weights, maybe, need

_SIZE = 4  # bytes of a float32


def with_blocks(
    c: ModelConfig, keys: Keys, ratio: int, width: int, chooses: tuple[bool, ...] | None
) -> ModelConfig:
    """The config with an indexer that chooses blocks of `ratio` positions in the layers that
    `chooses` marks (None: in all that attend), for which `width` numbers are kept of each token.
    With a `ratio` of 0 none chooses."""
    chooses = chooses or (True,) * c.n_layer
    top_k = keys.count("attention.indexer.top_k")
    if ratio and top_k % ratio:
        raise keys.bad("attention.indexer.top_k", top_k, f"a multiple of {ratio}, a block's size")
    attends = [il for il, kv in enumerate(c.heads_kv) if kv]
    if not attends or not chooses[attends[0]]:
        raise keys.bad("attention.indexer.types", list(chooses), "true in the first that attends")
    here = tuple(own and kv > 0 < ratio for own, kv in zip(chooses, c.heads_kv, strict=True))
    ratios, widths = (tuple(n * own for own in here) for n in (ratio, width))
    compression = CompressionConfig(ratios, ratios, widths, here, attended=False)
    return replace(
        c,
        indexer=IndexerConfig(
            keys.count("attention.indexer.head_count"),
            keys.count("attention.indexer.key_length"),
            top_k,
            False,
            here,
        ),
        compression=compression if ratio else None,
    )


def pending(step: Step, il: int, row: Tensor) -> Tensor:
    """Keeps `row` [width, n_tokens] of each token, and returns the rows [width, ratio * n_blocks]
    of the tokens whose blocks end here."""
    kept = G.set_rows(step.cache.pending[il], row, step.cells_of(il))
    return G.get_rows(kept, _blocks(step, il)[1].sources)


def across(rows: Tensor, ratio: int, d: int, start: int) -> Tensor:
    """The `d` elements from `start` on of rows [width, ratio * n_blocks], with the tokens of a
    block side by side: [ratio, d, n_blocks]."""
    width, n = rows.ne[0], rows.ne[1]
    assert isinstance(width, int)
    n_blocks = exact_div(n, ratio)
    assert n_blocks is not None
    row = width * _SIZE
    part = G.view_3d(rows, d, ratio, n_blocks, row, ratio * row, start * _SIZE)
    return G.cont(G.permute(part, 1, 0, 2, 3))


def chosen(step: Step, il: int, key: Tensor, q: Tensor, weights: Tensor) -> Tensor | None:
    """The mask f16 [n_kv, n_tokens] of the positions of chosen blocks and of blocks that are not
    whole; None: all positions are seen.

    Takes the keys [d, n_blocks] of the blocks that end here, and the indexer's queries [d, n_head,
    n_tokens] with their weights [n_head, n_tokens]."""
    indexer, (ratio, blocks) = indexer_of(step.config), _blocks(step, il)
    index = G.set_rows(step.cache.index[il], key, blocks.cells)
    if step.cache.size <= indexer.top_k:
        # all blocks are seen; their keys are there for a saved state
        step.writes.append(index)
        return None
    n, n_tokens = blocks.mask.ne[:2]
    index = G.view_3d(index, indexer.head_dim, 1, n, index.nb[1], index.nb[1])
    scores = G.lightning_indexer(q, index, weights, blocks.mask).named(f"indexer_score-{il}")
    best = of_largest(scores, blocks.mask, indexer.top_k // ratio)
    # -inf in blocks that are whole and not chosen, 0 elsewhere
    whole, kept = (G.exp(G.cast(mask, "f32")) for mask in (blocks.mask, best))
    hidden = G.log(G.scale(G.sub(whole, kept), -1.0, 1.0))
    nowhere = G.repeat(G.constant([0.0]), (1, n_tokens, 1, 1))  # for cells in no block
    hidden = G.concat(hidden, nowhere, 0)
    n_each, n_seqs = step.n_seq_tokens, step.n_seqs
    of_block = G.reshape(hidden, hidden.ne[0], n_each, n_seqs)
    of_block = G.cont(G.permute(of_block, 1, 0, 2, 3))  # [n_each, n_compressed + 1, n_seqs]
    of_cell = G.get_rows(of_block, blocks.rows)  # [n_each, n_kv, n_seqs]
    of_cell = G.cont(G.permute(of_cell, 1, 0, 2, 3))
    of_cell = G.reshape(of_cell, step.mask.ne[0], n_tokens)
    mask = G.cast(G.add(of_cell, G.cast(step.mask, "f32")), "f16")
    return mask.named(f"indexer_sel-{il}")


def _blocks(step: Step, il: int) -> tuple[int, Blocks]:
    compression = step.config.compression
    assert compression is not None
    ratio = compression.ratios[il]
    return ratio, step.blocks[ratio]


def configure_glm5(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers, the indexer, the streams and the limits."""
    if not keys.flag("attention.indexer.kpool_select_tail", True):
        raise keys.bad("attention.indexer.kpool_select_tail", False, "true; weft knows no other")
    bound = keys.number("kda.gate_lower_bound", 0.0)
    if bound > 0.0:
        raise keys.bad("kda.gate_lower_bound", bound, "below 0")
    full = f"{c.arch}.attention.indexer.types"
    own: tuple[bool, ...] = (True,) * c.n_layer
    if full in keys.file.metadata:
        flags = np.asarray(keys.file.get_array(full))
        if len(flags) < c.n_layer:
            raise keys.bad("attention.indexer.types", f"an array of {len(flags)}", "one per layer")
        own = tuple(bool(flag) for flag in flags[: c.n_layer])
    c = delta_or_latent(c, keys, rotates=False)
    if not latent(c).q_rank:
        raise keys.bad("attention.q_lora_rank", 0, "above 0")
    ratio = keys.count("attention.indexer.kpool", most=1 << 12)
    c = with_blocks(c, keys, ratio, 2 * keys.count("attention.indexer.key_length"), own)
    moe, limits = require_experts(c), halves_limits(c, keys)
    if not keys.count("expert_gating_func", 0, least=0):  # files do not say it
        moe = replace(moe, sigmoid=True)
    if f"{c.arch}.swiglu_clamp_shexp" not in keys.file.metadata:
        limits = tuple((limit, limit) for limit, _ in limits)
    return replace(
        c,
        head_dim_v=0,  # values are the cached keys
        moe=moe,
        hyper=read_hyper(keys),
        recurrent=replace(require_recurrent(c), least_decay=bound),
        activation=limits,
        norm_eps=keys.number("attention.layer_norm_epsilon", 1e-6, above=0.0),
    )


class DeltaOrPooled(DeltaOrLatent):
    """A delta net, or latent attention to chosen blocks if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of either, and of the indexer in layers that choose."""
        if recurs(c, il):
            for row in super().rows(c, il):
                decays = row.name == f"blk.{il}.ssm_a"
                yield need(row.name, require_recurrent(c).n_head) if decays else row
            return
        yield from latent_rows(c, il)
        indexer, blk = indexer_of(c), f"blk.{il}"
        if indexer.layers[il]:
            n, d = indexer.n_head, indexer.head_dim
            yield need(f"{blk}.indexer.attn_q_b.weight", latent(c).q_rank, n * d)
            yield need(f"{blk}.indexer.attn_k.weight", c.n_embd, d)
            yield need(f"{blk}.indexer.k_norm.weight", d)
            yield need(f"{blk}.indexer.k_norm.bias", d)
            yield need(f"{blk}.indexer.proj.weight", c.n_embd, n)
            yield need(f"{blk}.indexer_compressor_gate.weight", c.n_embd, d)
            yield need(f"{blk}.indexer_compressor_ape.weight", d, _ratio(c))

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if recurs(step.config, il):
            return super().__call__(step, w, il, x)
        layer, parts = w.layer(il), project(step, w, il, x)

        def attend(step: Step, il: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys = common.cached(step, il, step.cache.k[il], k)
            if indexer_of(step.config).layers[il]:
                mask = self.choice(step, layer, il, x, parts.query)
                step.chosen.append(step.mask if mask is None else mask)
            y = common.attend(step, q, keys, keys, step.chosen[-1])
            return y.named(f"kqv_out-{il}")

        return linear(layer, "attn_output", absorbed(step, layer, il, parts, attend))

    def choice(self, step: Step, w: Weights, il: int, x: Tensor, query: Tensor) -> Tensor | None:
        """The mask of what tokens see in a layer that chooses, from the input x of attention and
        from what queries are computed from; see `chosen`."""
        indexer, (ratio, blocks), n_tokens = indexer_of(step.config), _blocks(step, il), x.ne[1]
        n, d = indexer.n_head, indexer.head_dim
        k = layer_norm(w, "indexer.k_norm", linear(w, "indexer.attn_k", x), step.config.norm_eps)
        places = G.get_rows(w["indexer_compressor_ape.weight"], blocks.places)
        gate = G.add(linear(w, "indexer_compressor_gate", x), places)
        rows = pending(step, il, G.concat(k, gate, 0))
        shares = G.soft_max(across(rows, ratio, d, d))
        key = G.sum_rows(G.mul(across(rows, ratio, d, 0), shares))  # [1, d, n_blocks]
        key = G.reshape(key, d, key.ne[2]).named(f"indexer_pool_k_new-{il}")
        q = G.reshape(linear(w, "indexer.attn_q_b", query), d, n, n_tokens)
        weights = G.scale(linear(w, "indexer.proj", x), 1 / math.sqrt(n * d))
        return chosen(step, il, key, q, weights)

    def decays(self, step: Step, w: Weights, rate: Tensor) -> Tensor:
        bound = require_recurrent(step.config).least_decay
        a = G.reshape(w["ssm_a"], 1, require_recurrent(step.config).n_head)
        if not bound:
            return G.mul(G.softplus(rate), a)
        return G.scale(G.sigmoid(G.neg(G.mul(rate, a))), bound)


def _ratio(c: ModelConfig) -> int:
    assert c.compression is not None
    return max(c.compression.ratios)


class Limited(Experts):
    """Experts and dense layers with the limits of their layer."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        routed, always = (
            partial(G.swiglu_clamp, limit=limit) if limit > 0 else G.swiglu
            for limit in step.config.activation[il]
        )
        same = Experts(Gated(always), self.shared, self.softmax_first, self.renormalise,
                       self.balanced, act=routed, shared_act=always)  # fmt: skip
        return same(step, w, il, x)


class AveragedHyper(Hyper):
    """Blocks with hyper-connections whose streams are averaged behind the last layer."""

    def of_next_layer(self) -> Architecture:
        """Raises FormatError: a layer that drafts has no streams."""
        raise FormatError(
            "weft does not draft with the layer of a model with several streams yet; look tokens "
            "up (ngram), or give a second model that drafts"
        )

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        return Architecture.outer_rows(self, c)

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        return Architecture.logits(self, step, w, averaged(x))


# Qwen4-Exp (2026): Qwen3.5's gated delta nets, whose output has a sigmoid as its gate, and gated
# attention. The key of a block is the mean of its tokens' keys, normed and rotated by the block's
# first position. Hyper-connections are gated (`hyper.py`), and one layer reads embeddings of
# n-grams (`ngrams.py`).
# Converters may write 0 positions for a block; what does not depend on blocks is computed then.


def configure_qwen4(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers, the indexer, the streams and n-grams."""
    c = configure(c, keys)
    key = "attention.compress_ratios"
    ratios = keys.per_layer(key, c.n_layer)
    own = {ratio for ratio, kv in zip(ratios, c.heads_kv, strict=True) if kv}
    if len(own) != 1 or max(own) > 1 << 12:
        raise keys.bad(key, list(ratios)[:8], f"one number of 0..{1 << 12} where layers attend")
    c = with_blocks(c, keys, max(own), keys.count("attention.indexer.key_length"), None)
    if c.rope.n_dims > indexer_of(c).head_dim:
        raise keys.bad("rope.dimension_count", c.rope.n_dims, f"at most {indexer_of(c).head_dim}")
    count = keys.count("hyper_connection.count", least=2, most=1 << 8)
    rank = keys.count("hyper_connection.low_rank", most=1 << 16)
    c = replace(c, hyper=HyperConfig(count, 0, 1e-6, rank=rank), ngrams=read_ngrams(c, keys))
    if c.ngrams is None:
        return c
    if not recurs(c, c.ngrams.layer):
        raise keys.bad("ple.layers", c.ngrams.layer, "a layer that is a delta net")
    sizes = tuple(conv_size(c, c.ngrams) * (il == c.ngrams.layer) for il in range(c.n_layer))
    return replace(c, recurrent=replace(require_recurrent(c), dilated=sizes))


class DeltaOrBlocks(DeltaOrAttention):
    """A gated delta net, or gated attention to chosen blocks if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of either, and of the indexer."""
        yield from super().rows(c, il)
        if recurs(c, il):
            return
        blk, d = f"blk.{il}.indexer", indexer_of(c).head_dim
        row = need if indexer_of(c).layers[il] else maybe
        for name, n in (("q", indexer_of(c).n_head), ("k", 1)):
            yield row(f"{blk}.{name}_proj.weight", c.n_embd, n * d)
            yield row(f"{blk}.{name}_norm.weight", d)

    def mask(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor | None:
        c, layer, indexer, n_tokens = step.config, w.layer(il), indexer_of(step.config), x.ne[1]
        if not indexer.layers[il]:
            if "indexer.k_proj.weight" in layer and step.cache.size > indexer.top_k:
                raise ContextError(
                    f"{c.arch}.attention.compress_ratios is 0 in this file, which has an indexer "
                    "of blocks, so that it is not known how many positions a block has; make "
                    f"n_ctx at most {indexer.top_k}, where all are seen, or convert the folder of "
                    "the model with weft convert"
                )
            return None
        (ratio, blocks), n, d = _blocks(step, il), indexer.n_head, indexer.head_dim
        raw = linear(layer, "indexer.k_proj", x).named(f"indexer_k_raw-{il}")
        rows = pending(step, il, raw)
        key = G.scale(G.sum_rows(across(rows, ratio, d, 0)), 1 / ratio)  # [1, d, n_blocks]
        key, n_blocks = key.named(f"indexer_k_pooled-{il}"), key.ne[2]
        key = RMS(c, layer, "indexer.k_norm", G.reshape(key, d, 1, n_blocks))
        key = common.rope(step, w, key, il, RopeMode.NEOX, blocks.positions)
        key = key.named(f"indexer_k-{il}")
        q = G.reshape(linear(layer, "indexer.q_proj", x), d, n, n_tokens)
        q = common.rope(step, w, RMS(c, layer, "indexer.q_norm", q), il).named(f"indexer_q-{il}")
        weights = G.repeat(G.constant([1 / math.sqrt(d)]), (n, n_tokens, 1, 1))
        return chosen(step, il, G.reshape(key, d, n_blocks), q, weights)


class GatedHyper(Architecture):
    """Blocks with gated hyper-connections, of which one reads embeddings of n-grams; x is [n_embd,
    n_streams, n_tokens]."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        yield from gated_rows(c, "output_hc", injects=False)
        if c.ngrams is not None:
            yield table_row(c)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        for part in ("attn", "ffn"):
            yield from gated_rows(c, f"blk.{il}.hc_{part}")
        if c.ngrams is not None and c.ngrams.layer == il:
            yield from ngram_rows(c, il)

    def embed(self, step: Step, w: Weights) -> Tensor:
        if step.embd is not None:
            raise ContextError(
                "weft does not run images with this model yet: its blocks of positions have no "
                "height and width; leave the images out"
            )
        return streams(step, super().embed(step, w))

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, ngrams = w.layer(il), step.config.ngrams
        if ngrams is not None and ngrams.layer == il:
            x = with_ngrams(step, w, il, x).named(f"ple_out-{il}")
        half = gated(step, layer, "hc_attn", il, x)
        x = half.expanded(self.attention(step, w, il, half.x)).named(f"hc_combine-{il}")
        n_embd, n, n_tokens, _ = x.ne
        (flat,) = last(step, il, G.reshape(x, n_embd * n, n_tokens))
        x = G.reshape(flat, n_embd, n, flat.ne[1]).named(f"ffn_inp-{il}")
        half = gated(step, layer, "hc_ffn", il, x)
        return half.expanded(self.feed_forward(step, w, il, half.x))

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        return super().logits(step, w, gated_mean(step, w, "output_hc", -1, x)[0])


ARCHITECTURES = {
    "glm5-next": AveragedHyper(
        RopeMode.NORMAL,
        configure_glm5,
        attention=DeltaOrPooled(),
        feed_forward=Limited(shared="added", renormalise=False, balanced=True),
    ),
    "qwen4exp": GatedHyper(
        RopeMode.NEOX,
        configure_qwen4,
        attention=DeltaOrBlocks(EACH_HEAD, act=G.sigmoid),
        feed_forward=Experts(shared="gated"),
        before=("", ""),
        last_norm="",
        image_rope=RopeMode.IMROPE,
    ),
}
