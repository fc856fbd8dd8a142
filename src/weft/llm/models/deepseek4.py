"""DeepSeek-V4 (2026): attention to a window and to compressed keys, and hyper-connections.

A layer has one key per token, which is the value as well, for all heads. Attention sees the keys of
a sliding window, and beside them, in most layers, compressed keys that stand for blocks of
positions:

    key[b] = norm(sum over positions p of  softmax over p (gate[p] + place[p]) * kv[p])

element by element, where gate and kv are projections of the layer's input and `place` is learned
for each place in a block. With many positions in a block (128), attention sees all earlier blocks.
With few (4), a key is computed from the block before as well, by projections of their own, and an
indexer, which has such keys too, chooses the blocks that a token sees, as in DeepSeek-V3.2.

Values are turned back from the token's position, as they have been rotated as keys. Residual
streams are as in `hyper.py`. In the first layers a table gives the experts of each token.
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
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import CompressionConfig, IndexerConfig, MoeConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear, norm
from weft.llm.models.deepseek import (
    SparseAttention,
    configure_sparse,
    indexer_of,
    latent,
    of_largest,
)
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.hyper import collapsed, head_rows, hyper_rows, read_hyper, streams, summed
from weft.llm.models.parts import linear_rows
from weft.llm.models.step import Blocks, Step
from weft.llm.weights import Row, Weights, need

_SIZE = 4  # bytes of a float32


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets compression, rotations, streams and experts. Layers without compressed keys have a
    rotation that is never scaled; YaRN changes no magnitude."""
    if c.sliding_window < 1:
        raise keys.bad("attention.sliding_window", c.sliding_window, "1 or more")
    if set(c.heads_kv) != {1} or c.head_dim_v != c.head_dim_k:
        raise keys.bad("attention.head_count_kv", c.heads_kv[0], "1: a key is the value as well")
    groups = keys.count("attention.output_group_count")
    if any(n % groups for n in c.heads):
        raise keys.bad("attention.output_group_count", groups, f"a divisor of {c.heads[0]} heads")
    moe = require_experts(c)
    if not moe.root or moe.dense:
        raise keys.bad("expert_gating_func", 1 + moe.sigmoid, "4, with experts in every layer")
    indexer = IndexerConfig(
        keys.count("attention.indexer.head_count"),
        keys.count("attention.indexer.key_length"),
        keys.count("attention.indexer.top_k"),
        False,
        (True,) * c.n_layer,
    )
    if not 0 < c.rope.n_dims <= min(c.head_dim_k, indexer.head_dim):
        raise keys.bad("rope.dimension_count", c.rope.n_dims, f"in 1..{indexer.head_dim}")
    compression = _compression(c, keys, indexer.head_dim)
    n_hashed = keys.count("hash_layer_count", 0, least=0)
    _check_tables(keys, moe, min(n_hashed, c.n_layer))
    plain = replace(
        c.rope, scaling="none", factor=1.0, ext_factor=0.0, attn_factor=1.0, log_multiplier=0.0
    )
    base = keys.number("attention.compress_rope_freq_base", c.rope.freq_base, above=0.0)
    scaled = replace(c.rope, freq_base=base, attn_factor=1.0, log_multiplier=1.0)
    limits = [keys.numbers("swiglu_clamp_exp", c.n_layer, 0.0)]
    limits.append(limits[0])
    if f"{c.arch}.swiglu_clamp_shexp" in keys.file.metadata:
        limits[1] = keys.numbers("swiglu_clamp_shexp", c.n_layer, 0.0)
    return replace(
        c,
        windowed=(True,) * c.n_layer,
        head_dim_v=0,  # values are the cached keys
        ropes=tuple(scaled if r else plain for r in compression.ratios),
        indexer=indexer,
        compression=compression,
        hyper=read_hyper(keys),
        output_groups=(groups, keys.count("attention.output_lora_rank")),
        q_rank=keys.count("attention.q_lora_rank"),
        moe=replace(moe, n_hashed=n_hashed),
        activation=tuple(zip(*limits, strict=True)),
    )


def _check_tables(keys: Keys, moe: MoeConfig, n_hashed: int) -> None:
    """Raises FormatError for a table that names experts which do not exist."""
    for il in range(n_hashed):
        name = f"blk.{il}.ffn_gate_tid2eid.weight"
        info = keys.file.tensors.get(name)
        if info is None:
            continue
        experts = info.data.view("<i4") if info.dtype.name == "i32" else np.full(1, -1)
        if experts.min(initial=0) < 0 or experts.max(initial=0) >= moe.n_expert:
            raise FormatError(
                f"{keys.file.path}: tensor {name} must have i32 numbers of experts from 0 to "
                f"{moe.n_expert - 1}; convert the model again"
            )


def _compression(c: ModelConfig, keys: Keys, index_dim: int) -> CompressionConfig:
    key = "attention.compress_ratios"
    ratios = keys.per_layer(key, c.n_layer)
    if max(ratios) > 1 << 12:
        raise keys.bad(key, max(ratios), f"at most {1 << 12}")
    names = keys.file.tensors
    indexed = tuple(f"blk.{il}.indexer.proj.weight" in names for il in range(c.n_layer))
    if not any(indexed):  # no weights are known yet
        indexed = tuple(r == 4 for r in ratios)
    spans = tuple(r * (1 + i) for r, i in zip(ratios, indexed, strict=True))
    if len({(r, n) for r, n in zip(ratios, spans, strict=True)}) > len(set(ratios)):
        raise keys.bad(key, list(ratios), "others in layers with an indexer than in those without")
    widths = tuple(
        0 if not r else 4 * (c.head_dim_k + index_dim) if i else 2 * c.head_dim_k
        for r, i in zip(ratios, indexed, strict=True)
    )
    return CompressionConfig(ratios, spans, widths, indexed)


def compression_of(c: ModelConfig) -> CompressionConfig:
    """The compression, which `configure` has set."""
    assert c.compression is not None
    return c.compression


class CompressedAttention:
    """Attention to a window and to compressed keys."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections of attention, of compressed keys and of the indexer."""
        blk, d, n_head = f"blk.{il}", c.head_dim_k, c.n_head(il)
        groups, rank = c.output_groups
        yield from linear_rows(f"{blk}.attn_q_a", c.n_embd, c.q_rank)
        yield need(f"{blk}.attn_q_a_norm.weight", c.q_rank)
        yield from linear_rows(f"{blk}.attn_q_b", c.q_rank, n_head * d)
        yield from linear_rows(f"{blk}.attn_kv", c.n_embd, d)
        yield need(f"{blk}.attn_kv_a_norm.weight", d)
        yield need(f"{blk}.attn_sinks.weight", n_head)
        yield need(f"{blk}.attn_output_a.weight", n_head * d // groups, groups * rank)
        yield from linear_rows(f"{blk}.attn_output_b", groups * rank, c.n_embd)
        compression = compression_of(c)
        ratio, indexed = compression.ratios[il], compression.indexed[il]
        if not ratio:
            return
        yield from _compressor_rows(c, f"{blk}.attn_compressor", d * (1 + indexed), ratio, d)
        if indexed:
            indexer = indexer_of(c)
            n, di = indexer.n_head, indexer.head_dim
            yield need(f"{blk}.indexer.proj.weight", c.n_embd, n)
            yield need(f"{blk}.indexer.attn_q_b.weight", c.q_rank, n * di)
            yield from _compressor_rows(c, f"{blk}.indexer_compressor", 2 * di, ratio, di)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c, layer, n_tokens = step.config, w.layer(il), x.ne[1]
        d, n_head = c.head_dim_k, c.n_head(il)
        query = norm(layer, "attn_q_a_norm", linear(layer, "attn_q_a", x), c.rms_eps)
        q = G.reshape(linear(layer, "attn_q_b", query), d, n_head, n_tokens)
        q = common.rotate_end(step, G.rms_norm(q, c.rms_eps), il).named(f"Qcur-{il}")
        k = norm(layer, "attn_kv_a_norm", linear(layer, "attn_kv", x), c.rms_eps)
        k = common.rotate_end(step, G.reshape(k, d, 1, n_tokens), il).named(f"Kcur-{il}")
        keys, mask = common.cached(step, il, step.cache.k[il], k), step.mask_of(il)
        if compression_of(c).ratios[il]:
            more, seen = compressed_keys(step, layer, il, x, query)
            keys, mask = G.concat(keys, more, 1), G.concat(mask, seen, 0)
        y = common.attend(step, q, keys, keys, mask, sinks=layer["attn_sinks.weight"])
        y = common.rotate_end(step, G.reshape(y, d, n_head, n_tokens), il, back=True)
        groups, rank = c.output_groups
        width = d * n_head // groups
        y = G.permute(G.reshape(y, width, groups, n_tokens), 0, 2, 1, 3)
        y = G.mul_mat(G.reshape(layer["attn_output_a.weight"], width, rank, groups), y)
        y = G.reshape(G.cont(G.permute(y, 0, 2, 1, 3)), rank * groups, n_tokens)
        return linear(layer, "attn_output_b", y)


def _compressor_rows(c: ModelConfig, name: str, width: int, ratio: int, d: int) -> Iterator[Row]:
    yield need(f"{name}_kv.weight", c.n_embd, width)
    yield need(f"{name}_gate.weight", c.n_embd, width)
    yield need(f"{name}_ape.weight", width, ratio)
    yield need(f"{name}_norm.weight", d)


def compressed_keys(
    step: Step, w: Weights, il: int, x: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    """The compressed keys [d, n_compressed, 1] of layer `il`, whose weights are `w`, with the
    blocks that end here, and their mask f16 [n_compressed, n_tokens]. They are computed
    from the input x of attention, and chosen by what queries are computed from."""
    c = step.config
    d, compression = c.head_dim_k, compression_of(c)
    ratio, indexed = compression.ratios[il], compression.indexed[il]
    blocks = step.blocks[ratio]
    names = ["attn_compressor", *(["indexer_compressor"] if indexed else [])]
    parts = [part for name in names for part in _to_pool(w, name, x, blocks)]
    row = parts[0]
    for part in parts[1:]:
        row = G.concat(row, part, 0)
    pending = G.set_rows(step.cache.pending[il], row, step.cells_of(il))
    rows = G.get_rows(pending, blocks.sources)  # [width, span * n_blocks]
    overlaps = compression.spans[il] > ratio
    pooled = _pooled(step, w, "attn_compressor", il, rows, 0, d, ratio if overlaps else 0)
    keys = _seen(G.set_rows(step.cache.compressed[il], pooled, blocks.cells), blocks)
    if not indexed:
        return keys, blocks.mask
    indexer = indexer_of(c)
    di, n, n_tokens = indexer.head_dim, indexer.n_head, x.ne[1]
    pooled = _pooled(step, w, "indexer_compressor", il, rows, 4 * d, di, ratio if overlaps else 0)
    index = G.set_rows(step.cache.index[il], pooled, blocks.cells)
    if step.cache.blocks[ratio].size <= indexer.top_k:
        # all blocks are seen; their keys are there for a saved state
        step.writes.append(index)
        return keys, blocks.mask
    q = G.reshape(linear(w, "indexer.attn_q_b", query), di, n, n_tokens)
    q = common.rotate_end(step, q, il)
    weights = G.scale(linear(w, "indexer.proj", x), 1 / math.sqrt(n * di))
    index = G.view_3d(index, di, 1, blocks.mask.ne[0], index.nb[1], index.nb[1])
    scores = G.lightning_indexer(q, index, weights, blocks.mask)
    return keys, of_largest(scores, blocks.mask, indexer.top_k)


def _to_pool(w: Weights, name: str, x: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """What is kept of each token: kv and gate."""
    gate = linear(w, f"{name}_gate", x)
    return linear(w, f"{name}_kv", x), G.add(
        gate, G.get_rows(w[f"{name}_ape.weight"], blocks.places)
    )


def _pooled(
    step: Step, w: Weights, name: str, il: int, rows: Tensor, at: int, d: int, ratio: int
) -> Tensor:
    """The keys [d, n_blocks] of blocks, from the rows [width, span * n_blocks] of their tokens,
    whose kv and gate begin at `at`. With a `ratio`, the first half of each span is of the block
    before, and has kv and gate of its own in front of the others."""
    blocks = step.blocks[compression_of(step.config).ratios[il]]
    span, _, n, _ = blocks.bias.ne
    width = rows.ne[0]
    assert isinstance(width, int) and isinstance(span, int)

    def part(start: int, first: int, n_rows: int) -> Tensor:
        """The elements from `start` on of some rows of each block, [d, n_rows, n_blocks]."""
        row = width * _SIZE
        return G.view_3d(rows, d, n_rows, n, row, span * row, first * row + start * _SIZE)

    def across(start: int) -> Tensor:
        """[span, d, n_blocks]"""
        whole = part(start, 0, span)
        if ratio:
            whole = G.concat(part(start, 0, ratio), part(start + d, ratio, ratio), 1)
        return G.cont(G.permute(whole, 1, 0, 2, 3))

    size = 2 * d if ratio else d
    shares = G.soft_max(G.add(across(at + size), blocks.bias))
    key = G.reshape(G.sum_rows(G.mul(across(at), shares)), d, 1, n)
    key = norm(w, f"{name}_norm", key, step.config.rms_eps)
    return G.reshape(common.rotate_end(step, key, il, blocks.positions), d, n)


def _seen(keys: Tensor, blocks: Blocks) -> Tensor:
    """The rows of compressed keys that tokens may see, [d, n_compressed, 1]."""
    d, n = keys.ne[0], blocks.mask.ne[0]
    return G.view_3d(keys, d, n, 1, keys.nb[1], n * keys.nb[1])


class HashedExperts:
    """Experts that router and learned bias choose, or in the first layers a table by token."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of experts, and the table."""
        moe = require_experts(c)
        hashed = il < moe.n_hashed
        yield from self.of(c, il).rows(c, il)
        if hashed:
            yield need(f"blk.{il}.ffn_gate_tid2eid.weight", moe.n_used, c.n_vocab)

    def of(self, c: ModelConfig, il: int) -> Experts:
        """The experts of a layer, with its limits."""
        routed, always = (
            partial(G.swiglu_clamp, limit=limit) if limit > 0 else G.swiglu
            for limit in c.activation[il]
        )
        balanced = il >= require_experts(c).n_hashed
        return Experts(None, "added", balanced=balanced, act=routed, shared_act=always)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c = step.config
        moe, experts, layer = require_experts(c), self.of(c, il), w.layer(il)
        if il >= moe.n_hashed:
            return experts(step, w, il, x)
        if step.embd is not None:
            raise ContextError(
                "this model chooses experts by tokens; rows of images cannot stand in their place"
            )
        best = G.get_rows(layer["ffn_gate_tid2eid.weight"], step.tokens)
        (best,) = last(step, il, best)
        y = experts.mixture(layer, x, moe, best=best)
        return experts.with_shared(step, w, il, x, y)


class Hyper(Architecture):
    """Blocks with hyper-connections: x is [n_embd, n_streams, n_tokens]."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        yield from head_rows(c)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        for part in ("attn", "ffn"):
            yield from hyper_rows(c, f"blk.{il}.hc_{part}")

    def embed(self, step: Step, w: Weights) -> Tensor:
        return streams(step, super().embed(step, w))

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        half = collapsed(step, layer, "hc_attn", il, x)
        y = self.normed(step, layer, self.before[0], half.x)
        x = half.expanded(self.attention(step, w, il, y))
        n_embd, n, n_tokens, _ = x.ne
        (flat,) = last(step, il, G.reshape(x, n_embd * n, n_tokens))
        x = G.reshape(flat, n_embd, n, flat.ne[1]).named(f"ffn_inp-{il}")
        half = collapsed(step, layer, "hc_ffn", il, x)
        y = self.normed(step, layer, self.before[1], half.x)
        return half.expanded(self.feed_forward(step, w, il, y))

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        return super().logits(step, w, summed(step, w, x))


# Hy4 (Tencent, 2026): DeepSeek-V3.2's sparse attention, with sinks and a gate behind it, and
# hyper-connections that do not mix streams. The experts that every token uses have no limit.


def configure_hy4(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets latent attention, the indexer, the streams and the limits of experts. The last
    dimensions of an indexer's head rotate, as in other heads."""
    c = configure_sparse(c, keys, halves=False)
    if indexer_of(c).head_dim < c.rope.n_dims:
        raise keys.bad("attention.indexer.key_length", indexer_of(c).head_dim, "a rotation or more")
    limits = keys.numbers("swiglu_clamp_exp", c.n_layer, 0.0)
    return replace(
        c,
        indexer=replace(indexer_of(c), tail=True),
        hyper=read_hyper(keys, mixed=False),
        activation=tuple((limit,) for limit in limits),
        norm_eps=c.rms_eps,
    )


class GatedSparse(SparseAttention):
    """Sparse attention with sinks, whose results have a gate."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of sparse attention, the gate and the sinks."""
        yield from super().rows(c, il)
        yield from linear_rows(f"blk.{il}.attn_gate", c.n_embd, c.n_head(il) * latent(c).head_dim_v)
        yield need(f"blk.{il}.attn_sinks.weight", c.n_head(il))

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return G.mul(y, G.sigmoid(linear(w, "attn_gate", x)))


class LimitedRouted(Experts):
    """Experts with the limit of their layer, which the shared ones do not have."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        (limit,) = step.config.activation[il]
        act = partial(G.swiglu_clamp, limit=limit) if limit > 0 else G.swiglu
        same = Experts(self.dense, self.shared, True, self.renormalise, self.balanced, act=act)
        return same(step, w, il, x)


ARCHITECTURES = {
    "deepseek4": Hyper(
        RopeMode.NORMAL,
        configure,
        attention=CompressedAttention(),
        feed_forward=HashedExperts(),
    ),
    "hy_v4": Hyper(
        RopeMode.NORMAL,
        configure_hy4,
        attention=GatedSparse(),
        feed_forward=LimitedRouted(shared="added", renormalise=False, balanced=True),
    ),
}
