"""DeepSeek, and models with its experts or its latent attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import IndexerConfig, MlaConfig, RopeConfig, Temperature
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import layer_norm, linear, norm
from weft.llm.models.experts import Experts
from weft.llm.models.llama import Granite
from weft.llm.models.parts import EACH_HEAD, Attention, Mlp, linear_rows, squared_relu
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need
from weft.records import dataclass

# DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437): multi-head latent attention, and many small
# experts, some of them shared.
#
#     latent = norm(kv_a x)               [kv_rank], all heads of a token share it
#     k_nope[h] = K[h] latent             v[h] = V[h] latent
#     k[h] = k_nope[h], rope(k_pe)        k_pe is of all heads, too
#     q[h] = q_nope[h], rope(q_pe[h])
#
# Scores need  q_nope . K latent = (K^T q_nope) . latent,  so what is cached can be the latent and
# k_pe: a single key head, whose first part is the value as well. V follows attention then. Older
# files have `attn_kv_b`, K and V of each head in one matrix, and cache keys and values of all
# heads. Mistral 3 Large and Mistral 4 sharpen the scores of late tokens.


def configure_latent(c: ModelConfig, keys: Keys, *, rotates: bool = True) -> ModelConfig:
    """Sizes of the latent attention, a part of whose keys `rotates` or not, and its scale under
    YaRN."""
    head_dim_k = keys.count("attention.key_length_mla", 0, least=0)
    head_dim_v = keys.count("attention.value_length_mla", 0, least=0)
    absorbed = bool(head_dim_k and head_dim_v)
    mla = MlaConfig(
        q_rank=keys.count("attention.q_lora_rank", 0, least=0),
        kv_rank=keys.count("attention.kv_lora_rank"),
        head_dim_k=head_dim_k if absorbed else c.head_dim_k,
        head_dim_v=head_dim_v if absorbed else c.head_dim_v,
        absorbed=absorbed,
        norm_eps=keys.number("attention.latent_norm_rms_epsilon", c.rms_eps, above=0.0),
    )
    n_rot = c.rope.n_dims
    if not rotates and (n_rot or not absorbed):
        raise keys.bad("rope.dimension_count", n_rot, "0, with attention.key_length_mla")
    if rotates and not 0 < n_rot < mla.head_dim_k:
        raise keys.bad("rope.dimension_count", n_rot, f"in 1..{mla.head_dim_k - 1}")
    cached = (mla.kv_rank + n_rot, mla.kv_rank) if absorbed else (mla.head_dim_k, mla.head_dim_v)
    if (c.head_dim_k, c.head_dim_v) != cached:
        raise keys.bad("attention.key_length", c.head_dim_k, f"{cached[0]}, values {cached[1]}")
    if set(c.heads_kv) != {1} and absorbed:
        raise keys.bad("attention.head_count_kv", c.heads_kv[0], "1: the latent is shared")
    if c.heads_kv != c.heads and not absorbed:
        raise keys.bad("attention.head_count_kv", c.heads_kv[0], "attention.head_count")
    rope, scale = _yarn(c, mla)
    sharpening = keys.number("attention.temperature_scale", 0.0)
    span = keys.count("attention.temperature_length", rope.n_ctx_orig)
    temperature = Temperature(sharpening, span) if sharpening else None
    return replace(c, mla=mla, rope=rope, attn_scale=scale, temperature=temperature)


def _yarn(c: ModelConfig, mla: MlaConfig) -> tuple[RopeConfig, float]:
    """The rotation and the scale of scores. Under YaRN, the scale has the square of a magnitude as
    a factor, because the part that does not rotate needs it too; with `yarn_log_multiplier` (0.1
    mscale_all_dim) the rotation itself has none."""
    r = replace(c.rope, offset=c.head_dim_k - c.rope.n_dims)
    scale = 1.0 / math.sqrt(mla.head_dim_k)
    if r.ext_factor and r.factor > 1.0:
        log = math.log(r.factor)
        multiplied = r.log_multiplier != 0.0
        rotation = r.attn_factor * (1.0 if multiplied else 1.0 + 0.1 * log)
        scale *= (rotation * (1.0 + r.log_multiplier * log)) ** 2
        r = replace(r, log_multiplier=float(multiplied))
    return r, scale


def latent_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """The projections of latent attention."""
    mla, n_head = latent(c, il), c.n_head(il)
    n_rot = c.rope.n_dims
    d_nope, dv = mla.head_dim_k - n_rot, mla.head_dim_v
    if mla.q_rank:
        yield from linear_rows(f"blk.{il}.attn_q_a", c.n_embd, mla.q_rank)
        yield need(f"blk.{il}.attn_q_a_norm.weight", mla.q_rank)
        yield from linear_rows(f"blk.{il}.attn_q_b", mla.q_rank, n_head * mla.head_dim_k)
    else:
        yield from linear_rows(f"blk.{il}.attn_q", c.n_embd, n_head * mla.head_dim_k)
    yield from linear_rows(f"blk.{il}.attn_kv_a_mqa", c.n_embd, mla.kv_rank + n_rot)
    yield need(f"blk.{il}.attn_kv_a_norm.weight", mla.kv_rank)
    if mla.absorbed:
        yield need(f"blk.{il}.attn_k_b.weight", d_nope, mla.kv_rank, n_head)
        yield need(f"blk.{il}.attn_v_b.weight", mla.kv_rank, dv, n_head)
    else:
        yield from linear_rows(f"blk.{il}.attn_kv_b", mla.kv_rank, n_head * (d_nope + dv))
    yield from linear_rows(f"blk.{il}.attn_output", n_head * dv, c.n_embd)


def latent(c: ModelConfig, il: int | None = None) -> MlaConfig:
    """The sizes of latent attention, which `configure_latent` has set; layer `il` may have other
    sizes than layers that see everything."""
    mla = c.mla_window if il is not None and c.is_windowed(il) else None
    mla = mla or c.mla
    assert mla is not None
    return mla


@dataclass(frozen=True, slots=True)
class Latents:
    """The inputs of attention."""

    query: Tensor
    """The input of queries, [q_rank or n_embd, n_tokens]."""
    q_nope: Tensor
    short: Tensor
    """The latents, [kv_rank, n_tokens]."""
    pe: tuple[Tensor, Tensor] | None
    """The parts of queries and keys that rotate; None: there are none."""


def project(step: Step, w: Weights, il: int, x: Tensor) -> Latents:
    """Projects the input x [n_embd, n_tokens] of attention in layer `il`."""
    c, layer = step.config, w.layer(il)
    mla, n_rot, n_head = latent(c, il), c.rope.n_dims, c.n_head(il)
    d_nope = mla.head_dim_k - n_rot
    query = x
    if mla.q_rank:
        query = norm(layer, "attn_q_a_norm", linear(layer, "attn_q_a", x), mla.norm_eps)
    q = linear(layer, "attn_q_b" if mla.q_rank else "attn_q", query).named(f"q-{il}")
    q_nope = common.heads(q, d_nope, n_head, mla.head_dim_k, 0).named(f"q_nope-{il}")
    kv, pe = linear(layer, "attn_kv_a_mqa", x), None  # [kv_rank + n_rot, n_tokens]
    if n_rot:
        q_pe = common.heads(q, n_rot, n_head, mla.head_dim_k, d_nope).named(f"q_pe-{il}")
        q_pe = common.rope(step, w, q_pe, il)
        k_pe = common.heads(kv, n_rot, 1, n_rot, mla.kv_rank).named(f"k_pe-{il}")
        if "attn_k_norm.weight" in layer:
            k_pe = norm(layer, "attn_k_norm", k_pe, mla.norm_eps)
        pe = q_pe, common.rope(step, w, k_pe, il)
    short = G.view_2d(kv, mla.kv_rank, kv.ne[1], kv.nb[1], 0).named(f"kv_cmpr-{il}")
    short = norm(layer, "attn_kv_a_norm", short, mla.norm_eps)
    return Latents(query, q_nope, short, pe)


Attend = Callable[[Step, int, Tensor, Tensor, Tensor], Tensor]
"""Attention of queries, keys and values, as `common.attention`."""


def absorbed(
    step: Step, w: Weights, il: int, p: Latents, attend: Attend = common.attention
) -> Tensor:
    """Computes attention over the latents themselves."""
    mla, n_tokens = latent(step.config, il), p.short.ne[1]
    n_head = p.q_nope.ne[1]
    q = G.mul_mat(w["attn_k_b.weight"], G.permute(p.q_nope, 0, 2, 1, 3))
    q = G.cont(G.permute(q, 0, 2, 1, 3))
    k = v = G.reshape(p.short, mla.kv_rank, 1, n_tokens).named(f"Vcur-{il}")
    if p.pe is not None:
        q = G.concat(q, p.pe[0], 0)  # [kv_rank + n_rot, n_head, n_tokens]
        k = G.concat(v, p.pe[1], 0).named(f"Kcur-{il}")
    q = G.scale(q, mla.query_scale) if mla.query_scale != 1.0 else q
    y = attend(step, il, common.sharpened(step, q.named(f"Qcur-{il}"), il), k, v)
    y = G.permute(G.reshape(y, mla.kv_rank, n_head, n_tokens), 0, 2, 1, 3)
    y = G.mul_mat(w["attn_v_b.weight"], y)  # [head_dim_v, n_tokens, n_head]
    return G.reshape(G.cont(G.permute(y, 0, 2, 1, 3)), mla.head_dim_v * n_head, n_tokens)


def expanded(step: Step, w: Weights, il: int, p: Latents) -> Tensor:
    """Computes attention over the keys and values that each head computes from the latents."""
    mla = latent(step.config)
    d_nope, n_head = p.q_nope.ne[0], p.q_nope.ne[1]
    assert isinstance(d_nope, int) and isinstance(n_head, int)
    kv, stride = linear(w, "attn_kv_b", p.short), d_nope + mla.head_dim_v
    k = common.heads(kv, d_nope, n_head, stride, 0)
    v = common.heads(kv, mla.head_dim_v, n_head, stride, d_nope).named(f"Vcur-{il}")
    assert p.pe is not None
    q_pe, k_pe = p.pe
    k = G.concat(k, G.repeat(k_pe, q_pe), 0).named(f"Kcur-{il}")
    q = G.concat(p.q_nope, q_pe, 0).named(f"Qcur-{il}")
    q = common.sharpened(step, q, il)
    return common.attention(step, il, q, k, v)


class LatentAttention:
    """Attention that computes the keys and values of all heads from one latent per token."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return latent_rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        attend = absorbed if latent(step.config).absorbed else expanded
        layer = w.layer(il)
        y = attend(step, layer, il, project(step, w, il, x))
        return linear(layer, "attn_output", self.gated(layer, x, y))

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Changes the heads' results y [head_dim_v * n_head, n_tokens] by the input x of attention;
        here not at all."""
        return y


EXPERTS = Experts(shared="added", renormalise=False, balanced=True)


_DEEPSEEK2 = Architecture(
    RopeMode.NORMAL, configure_latent, attention=LatentAttention(), feed_forward=EXPERTS
)


# DeepSeekMoE (arXiv 2401.06066) and Ling (bailingmoe, arXiv 2503.05139): LLaMA's blocks with many
# small experts, some of them shared, behind dense layers if there are such.


_EXPERTS = Experts(shared="added", renormalise=False)


_DEEPSEEK = Architecture(RopeMode.NORMAL, feed_forward=_EXPERTS)


# DeepSeek-OCR's text model (deepseek2-ocr, arXiv 2510.18234): DeepSeek-V2 with LLaMA's attention,
# where halves of whole heads rotate. Files say that 0 elements do. The windows of Unlimited-OCR,
# which never hide a prompt, are left out.


def configure_ocr(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Rotates whole heads, and takes no window."""
    rope = replace(c.rope, n_dims=c.head_dim_k)
    return replace(c, rope=rope, sliding_window=0, windowed=())


# dots.llm1 (arXiv 2506.05767): DeepSeek-V3's experts, chosen by sigmoids and a learned bias, with
# attention as in Qwen3. Ling 2.0 and Ring 2.0 (bailingmoe2, arXiv 2510.22115) are the same, with
# rotation of a part of each head.


_DOTS = Architecture(
    RopeMode.NEOX,
    attention=Attention(EACH_HEAD),
    feed_forward=Experts(shared="added", renormalise=False, balanced=True),
)


# DeepSeek-V3.2 (arXiv 2512.02556) and GLM-5 (glm-dsa): DeepSeek-V3, where a token attends only to
# the positions that an indexer chooses, those of the largest scores
#
#     score = sum over heads of  weight[h] relu(q[h] . k)
#
# with a key per position, which is cached behind the latent, and queries and weights per token.
# Some layers of GLM-5 take the choice of the layer before. While all positions fit, all are
# chosen.


def configure_sparse(c: ModelConfig, keys: Keys, *, halves: bool) -> ModelConfig:
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
    first = indexer.layers[0] or c.is_windowed(0)
    if not first or not c.rope.n_dims <= indexer.head_dim <= latent(c).kv_rank:
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
        layer, parts = w.layer(il), project(step, w, il, x)

        def attend(step: Step, il: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys = common.cached(step, il, step.cache.k[il], k)
            cache, table = step.cache, step.cache.v[il]
            rank, d = latent(step.config).kv_rank, indexer_of(step.config).head_dim
            # each part is rotated by itself, as it is read by itself
            index = common.spread(cache, table, self.index_keys(step, w, il, x, v), d, values=True)
            v = G.concat(common.spread(cache, table, v, rank, values=True), index, 0)
            rows = G.reshape(v, rank + d, x.ne[1])
            both = common.stored(step, il, table, rows, rank + d)  # [kv_rank + d, n_kv, 1]
            step.kv[il] = keys, G.view_3d(both, rank, both.ne[1], 1, both.nb[1], both.nb[2])
            mask = self.chosen(step, w, il, x, parts.query, both)
            sinks = layer.get("attn_sinks.weight")
            return common.attention(step, il, q, None, None, mask=mask, sinks=sinks)

        y = absorbed(step, layer, il, parts, attend)
        return linear(layer, "attn_output", self.gated(layer, x, y))

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """The results y of heads [head_dim_v n_head, n_tokens], from the input x of attention."""
        return y

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
        if indexer_of(step.config).tail:
            return common.rotate_end(step, x, il)
        mode = RopeMode.NEOX if indexer_of(step.config).halves else RopeMode.NORMAL
        return common.rope(step, w, x, il, mode)

    def chosen(
        self, step: Step, w: Weights, il: int, x: Tensor, query: Tensor, cached: Tensor
    ) -> Tensor | None:
        """The mask of the chosen positions, f16 [n_kv, n_tokens], from the input x of attention,
        what queries are computed from, and the cache; None: the mask of all positions."""
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
        q = common.spread(step.cache, cached, self.rotated(step, w, il, q), d, values=True)
        mask = of_largest(G.lightning_indexer(q, keys, weights, step.mask), step.mask, top_k)
        step.chosen.append(mask)
        return mask


def of_largest(scores: Tensor, mask: Tensor, top_k: int) -> Tensor:
    """The mask f16 [n_kv, n_tokens] of the `top_k` positions with the largest scores among those
    that `mask` f16 [n_kv, n_tokens] has; they may be all."""
    n_kv, n_tokens = mask.ne[:2]
    # as many more as are chosen, so that there are always enough
    more = G.repeat(G.constant([-math.inf]), (top_k, n_tokens, 1, 1))
    columns = G.concat(G.reshape(scores, n_kv, n_tokens), more, 0)
    best = G.top_k(columns, top_k)
    columns = G.reshape(columns, 1, n_kv + top_k, n_tokens)
    kept = G.fill(G.get_rows(columns, best), 0.0)  # [1, top_k, n_tokens]
    flags = G.set_rows(G.fill(columns, -math.inf), kept, best)
    flags = G.cont(G.view_2d(flags, n_kv, n_tokens, flags.nb[2]))
    return G.cast(G.add(flags, G.cast(mask, "f32")), "f16")


_SPARSE = Architecture(
    RopeMode.NORMAL,
    partial(configure_sparse, halves=True),
    attention=SparseAttention(),
    feed_forward=EXPERTS,
)


# MiniCPM3 (OpenBMB, 2024): DeepSeek-V2's latent attention, with the keys and values of all heads
# cached, and Granite's constants, which files do not have. PLM (arXiv 2503.12167) has no
# constants, and squared ReLU without a gate in the feed-forward layer.


def configure_minicpm3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of attention and the constants."""
    return replace(
        configure_latent(c, keys),
        embedding_scale=12.0,
        residual_scale=1.4 / math.sqrt(c.n_layer),
        logit_scale=c.n_embd / 256,
    )


ARCHITECTURES = {
    "deepseek2": _DEEPSEEK2,
    "deepseek2-ocr": Architecture(RopeMode.NEOX, configure_ocr, feed_forward=EXPERTS),
    "mistral4": _DEEPSEEK2,
    "bailingmoe": _DEEPSEEK,
    "deepseek": _DEEPSEEK,
    "bailingmoe2": _DOTS,
    "dots1": _DOTS,
    "deepseek32": _SPARSE,
    "glm-dsa": replace(_SPARSE, configure=partial(configure_sparse, halves=False)),
    "minicpm3": Granite(RopeMode.NEOX, configure_minicpm3, attention=LatentAttention()),
    "plm": Architecture(
        RopeMode.NORMAL,
        configure_latent,
        attention=LatentAttention(),
        feed_forward=Mlp(squared_relu),
    ),
}
