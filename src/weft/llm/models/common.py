"""What model files share: the inputs of a step, and the parts they are put together from.
`rows.py` has the tables of these parts' weights.

Sizes in comments are ggml's `ne`, innermost first. `d` is the size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, MoeConfig, RopeConfig
from weft.llm.kv_cache import KVCache
from weft.llm.weights import Weights

__all__ = [
    "Step",
    "add_positions",
    "attention",
    "capped",
    "embed",
    "feed_forward",
    "fused_feed_forward",
    "head_normed_attention",
    "layer_norm",
    "layer_normed_logits",
    "linear",
    "logits",
    "mixture",
    "mlp",
    "norm",
    "norm_whole",
    "output",
    "qkv",
    "rope",
    "self_attention",
    "shift_keys",
    "soft_cap",
    "wanted",
]


_LEAST_SUM = 2.0**-14
"""What expert weights are divided by at least."""


@dataclass(frozen=True, slots=True)
class Step:
    """The leaves that the context fills for each ubatch, and what the graph is built over."""

    config: ModelConfig
    cache: KVCache
    tokens: Tensor
    """i32 [n_tokens]"""
    positions: Tensor
    """i32 [n_tokens]"""
    cells: Tensor
    """i64 [n_tokens]: the cache cell that each token is written to."""
    mask: Tensor
    """f16 [n_kv, n_tokens]: 0 where a token sees a cell, -inf elsewhere."""
    window_mask: Tensor | None
    """The same for sliding-window layers; None when the architecture has none."""
    out_ids: Tensor
    """i32 [n_outputs]: the tokens whose logits are wanted."""
    rope_mode: G.RopeMode
    """Which elements of a head rotate together."""
    flash: bool = True
    """Attention as one op (FLASH_ATTN_EXT), or as matmuls around a softmax."""
    embd: Tensor | None = None
    """f32 [n_embd, n_tokens] in place of the tokens' embeddings."""

    window_cells: Tensor | None = None
    """i64 [n_tokens]: the same as `cells` for sliding-window layers with cells of their own."""
    slots: tuple[Tensor, Tensor] | None = None
    """Recurrent models: i32 [n_seqs] each, the slots of states that are read and written. Tokens
    are of one sequence after another then, as many and in order of each."""
    n_seqs: Size = 1
    writes: list[Tensor] = field(default_factory=list)
    """What the graph must compute besides its output: writes of recurrent states."""

    @property
    def n_seq_tokens(self) -> Size:
        """Tokens of each sequence."""
        each = exact_div(self.tokens.ne[0], self.n_seqs)
        assert each is not None
        return each

    def mask_of(self, il: int) -> Tensor:
        """The mask that layer `il` attends with."""
        if not self.config.is_windowed(il):
            return self.mask
        assert self.window_mask is not None
        return self.window_mask

    def cells_of(self, il: int) -> Tensor:
        """The cells that layer `il` writes to."""
        small = self.window_cells is not None and self.config.is_windowed(il)
        return self.window_cells if small and self.window_cells is not None else self.cells


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """W x, times its scale and plus its bias where the file has them."""
    y = G.mul_mat(w[f"{name}.weight"], x)
    if f"{name}.scale" in w:
        y = G.mul(y, w[f"{name}.scale"])
    if f"{name}.bias" in w:
        y = G.add(y, w[f"{name}.bias"])
    return y


def norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """RMS norm with a learned gain (arXiv 1910.07467)."""
    return G.mul(G.rms_norm(x, eps), w[f"{name}.weight"])


def norm_whole(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """RMS norm of x [d, n_head, n_tokens] over all heads of a token at once."""
    d, n_head, n_tokens, _ = x.ne
    flat = G.reshape(x if x.is_contiguous else G.cont(x), d * n_head, n_tokens)
    return G.reshape(norm(w, name, flat, eps), d, n_head, n_tokens)


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """LayerNorm (arXiv 1607.06450) with a learned gain and, where the file has it, a bias."""
    y = G.mul(G.norm(x, eps), w[f"{name}.weight"])
    return G.add(y, w[f"{name}.bias"]) if f"{name}.bias" in w else y


def embed(step: Step, w: Weights) -> Tensor:
    """Rows of the embedding, scaled where the model says so, or those given: [n_embd, n_tokens]."""
    if step.embd is not None:
        return step.embd
    x = G.get_rows(w["token_embd.weight"], step.tokens)
    scale = step.config.embedding_scale
    return (G.scale(x, scale) if scale else x).named("embd")


def add_positions(step: Step, w: Weights, x: Tensor) -> Tensor:
    """Embeddings x [n_embd, n_tokens] plus the learned ones of their positions, where the file has
    them."""
    if not step.config.n_positions:
        return x
    return G.add(x, G.get_rows(w["position_embd.weight"], step.positions))


def qkv(step: Step, w: Weights, il: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [n_embd, n_tokens] -> q [d, n_head, n_tokens], k [d, n_head_kv, n_tokens], v [dv,
    n_head_kv, n_tokens], by the weights `w` of layer `il`."""
    c, n_tokens = step.config, x.ne[1]
    n_head, n_kv = c.n_head(il), c.n_head_kv(il)
    heads = (c.head_dim_k, n_head), (c.head_dim_k, n_kv), (c.head_dim_v, n_kv)
    if "attn_qkv.weight" not in w:
        each = [linear(w, f"attn_{name}", x) for name in "qkv"]
        q, k, v = (G.reshape(y, d, n, n_tokens) for y, (d, n) in zip(each, heads, strict=True))
        return q, k, v
    y = linear(w, "attn_qkv", x)
    parts, at = [], 0
    for d, n in heads:
        size = y.dtype.bytes
        parts.append(G.view_3d(y, d, n, n_tokens, d * size, y.nb[1], at * size))
        at += d * n
    return parts[0], parts[1], parts[2]


def rope(step: Step, w: Weights, x: Tensor, il: int = 0) -> Tensor:
    """Rotates x [d, n_head, n_tokens] by its positions, as layer `il` does."""
    r = step.config.rope_of(il)
    factors = _freq_factors(w, r, step.cache)
    return _rotate(r, step.rope_mode, factors, x, step.positions, r.kernel_attn_factor)


def shift_keys(
    c: ModelConfig,
    w: Weights,
    cache: KVCache,
    mode: G.RopeMode,
    full_shift: Tensor,
    small_shift: Tensor | None = None,
) -> list[Tensor]:
    """Cached keys rotated in place by i32 shift [n_kv], the move of each cell's position
    (`small_shift`: of the layers whose cells are those of the sliding window). Angles
    add up, so a key then is as if computed at its new position; its magnitude stays. Layers without
    rotary embedding are left out."""
    shifted = []
    for il, k in enumerate(cache.k):
        r = c.rope_of(il)
        if r.n_dims == 0 or c.n_head_kv(il) == 0:
            continue
        shift = full_shift
        if small_shift is not None and cache.is_small(il):
            shift = small_shift
        factors = _freq_factors(w, r, cache)
        d, factor = c.head_dim_k, r.shift_attn_factor
        in_place = k.dtype.name in ("f32", "f16")
        skipped = r.offset if in_place else 0
        keys = G.view_3d(
            k,
            d - skipped,
            c.n_head_kv(il),
            shift.ne[0],
            k.dtype.row_bytes(d),
            k.nb[1],
            skipped * k.dtype.bytes,
        )
        if in_place:
            shifted.append(_rotate(r, mode, factors, keys, shift, factor, inplace=True))
            continue
        decoded = G.cast(keys, "f32")
        rotated = _rotate(r, mode, factors, decoded, shift, factor, inplace=True, n_offset=r.offset)
        shifted.append(G.cpy(rotated, keys))
    return shifted


def _rotate(
    r: RopeConfig,
    mode: G.RopeMode,
    factors: Tensor | None,
    x: Tensor,
    positions: Tensor,
    attn_factor: float,
    *,
    inplace: bool = False,
    n_offset: int = 0,
) -> Tensor:
    if r.n_dims == 0:
        return x
    return G.rope(
        x,
        positions,
        factors,
        mode=mode,
        n_dims=r.n_dims,
        n_ctx_orig=r.n_ctx_orig,
        freq_base=r.freq_base,
        freq_scale=r.freq_scale,
        ext_factor=r.ext_factor,
        attn_factor=attn_factor,
        beta_fast=r.beta_fast,
        beta_slow=r.beta_slow,
        n_offset=n_offset,
        inplace=inplace,
    )


def _freq_factors(w: Weights, r: RopeConfig, cache: KVCache) -> Tensor | None:
    """What rotation angles are divided by. LongRoPE's two sets are for contexts within and beyond
    the original length: chosen once a context, since cached keys must agree."""
    if "rope_freqs.weight" in w:
        return w["rope_freqs.weight"]
    long = cache.size > r.n_ctx_orig
    return w.get("rope_factors_long.weight" if long else "rope_factors_short.weight")


def attention(
    step: Step,
    il: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Writes k and v to the cache and attends over the first n_kv cells that the layer sees.

    q [d, n_head, n_tokens], k [d, n_head_kv, n_tokens], v [dv, n_head_kv, n_tokens] ->
    [dv * n_head, n_tokens]."""
    mask = step.mask_of(il)
    scale, cap = step.config.kq_scale, step.config.attn_softcap
    bias = step.config.alibi_bias
    keys = _cached(step, il, step.cache.k[il], k)
    values = _cached(step, il, step.cache.v[il], v)
    q = G.permute(q, 0, 2, 1, 3)  # [d, n_tokens, n_head]
    if step.flash:
        out = G.flash_attn_ext(
            q, keys, values, mask, sinks, scale=scale, max_bias=bias, logit_softcap=cap
        )
    else:
        scores = G.mul_mat(keys, q)  # [n_kv, n_tokens, n_head]
        if cap:
            scores, scale = soft_cap(G.scale(scores, scale), cap), 1.0
        probs = G.soft_max(scores, mask, sinks, scale, bias)
        out = G.mul_mat(G.cont(G.transpose(values)), probs)  # [dv, n_tokens, n_head]
        out = G.cont(G.permute(out, 0, 2, 1, 3))
    n_out = step.config.head_dim_v * step.config.n_head(il)
    return G.reshape(out, n_out, step.tokens.ne[0]).named(f"kqv_out-{il}")


def self_attention(
    step: Step,
    w: Weights,
    il: int,
    x: Tensor,
    *,
    qk_norm: Callable[[Weights, str, Tensor, float], Tensor] | None = None,
) -> Tensor:
    """Grouped-query attention (arXiv 2305.13245) with rotary embedding, from x [n_embd, n_tokens]
    to the output projection. `w`: of the whole model. `qk_norm`: what queries and keys go through
    in front of the rotation (arXiv 2302.05442): `norm` for each head, `norm_whole` for all."""
    layer, eps = w.layer(il), step.config.rms_eps
    q, k, v = qkv(step, layer, il, x)
    if qk_norm is not None:
        q, k = qk_norm(layer, "attn_q_norm", q, eps), qk_norm(layer, "attn_k_norm", k, eps)
    q, k = rope(step, w, q, il), rope(step, w, k, il)
    return linear(layer, "attn_output", attention(step, il, q, k, v))


def head_normed_attention(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """`self_attention` with a LayerNorm of its own for each head of q and k, where the file has
    them."""
    eps, layer = step.config.norm_eps, w.layer(il)
    q, k, v = qkv(step, layer, il, x)
    if "attn_q_norm.weight" in layer:
        q = layer_norm(layer, "attn_q_norm", q, eps)
    if "attn_k_norm.weight" in layer:
        k = layer_norm(layer, "attn_k_norm", k, eps)
    q, k = rope(step, w, q, il), rope(step, w, k, il)
    return linear(layer, "attn_output", attention(step, il, q, k, v))


def _cached(step: Step, il: int, cache: Tensor, x: Tensor) -> Tensor:
    """x [d, n_head_kv, n_tokens] written to its cells; the cache as [d, n_kv, n_head_kv]."""
    d, n_head, n_tokens, _ = x.ne
    assert isinstance(d, int)
    if not x.is_contiguous:  # a part of a fused projection
        x = G.cont(x)
    written = G.set_rows(cache, G.reshape(x, d * n_head, n_tokens), step.cells_of(il))
    # A view of what was written, not of the leaf: that is what puts it after the write.
    return G.view_3d(
        written, d, step.mask_of(il).ne[0], n_head, cache.nb[1], cache.dtype.row_bytes(d)
    )


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap): as x where it is small, never beyond the cap (arXiv 2408.00118)."""
    return G.scale(G.tanh(G.scale(x, 1.0 / cap)), cap)


def capped(step: Step, logits: Tensor) -> Tensor:
    """Logits soft-capped, where the model has a cap."""
    cap = step.config.final_softcap
    return soft_cap(logits, cap) if cap else logits


def feed_forward(
    w: Weights, x: Tensor, act: Callable[[Tensor, Tensor], Tensor] = G.swiglu, suffix: str = ""
) -> Tensor:
    """A gated feed-forward layer (arXiv 2002.05202): down(silu(gate x) * up x) with SwiGLU.

    `suffix`: of the names of the matrices, "_shexp" for shared experts."""
    y = act(linear(w, f"ffn_gate{suffix}", x), linear(w, f"ffn_up{suffix}", x))
    return linear(w, f"ffn_down{suffix}", y)


def fused_feed_forward(w: Weights, x: Tensor) -> Tensor:
    """SwiGLU, the gate being the first half of `ffn_up`."""
    return linear(w, "ffn_down", G.swiglu(linear(w, "ffn_up", x)))


def mlp(w: Weights, x: Tensor, act: Callable[[Tensor], Tensor] = G.gelu) -> Tensor:
    """A feed-forward layer without a gate: down(act(up x))."""
    return linear(w, "ffn_down", act(linear(w, "ffn_up", x)))


def mixture(
    w: Weights,
    x: Tensor,
    moe: MoeConfig,
    *,
    softmax_first: bool = True,
    renormalise: bool = True,
    oai: bool = False,
) -> Tensor:
    """Each token x [n_embd, n_tokens] through its best experts, summed by router weight.

    `softmax_first`: softmax over all experts, then the best, whose weights are brought to sum 1
    when `renormalise` (Mixtral, arXiv 2401.04088) unless the metadata says otherwise; else softmax
    over the scores of the best. `oai`: gpt-oss' clamped activation instead of SwiGLU."""
    n_embd, n_tokens = x.ne[0], x.ne[1]
    n_used = moe.n_used
    scores = linear(w, "ffn_gate_inp", x)  # [n_expert, n_tokens]
    if moe.sigmoid:
        scores = G.sigmoid(scores)
    elif softmax_first:
        scores = G.soft_max(scores)
    best = _best_experts(w, scores, moe)
    columns = G.reshape(scores, 1, moe.n_expert, n_tokens)
    weights = G.reshape(G.get_rows(columns, best), n_used, n_tokens)
    if not softmax_first:
        weights = G.soft_max(weights)
    elif renormalise if moe.renormalise is None else moe.renormalise:
        total = G.sum_rows(weights)
        # sigmoids may all be next to nothing, what softmax has chosen is not
        weights = G.div(weights, G.clamp(total, _LEAST_SUM, math.inf) if moe.sigmoid else total)
    if moe.scale != 1.0:
        weights = G.scale(weights, moe.scale)

    x = G.reshape(x, n_embd, 1, n_tokens)
    gate = _experts(w, "ffn_gate_exps", x, best)  # [n_ff, n_used, n_tokens]
    up = _experts(w, "ffn_up_exps", x, best)
    act = G.swiglu_oai(gate, up, alpha=1.702, limit=7.0) if oai else G.swiglu(gate, up)
    y = _experts(w, "ffn_down_exps", act, best)  # [n_embd, n_used, n_tokens]
    y = G.mul(y, G.reshape(weights, 1, n_used, n_tokens))
    parts = [G.view_2d(y, n_embd, n_tokens, y.nb[2], i * y.nb[1]) for i in range(n_used)]
    total = parts[0] if n_used > 1 else G.cont(parts[0])
    for part in parts[1:]:
        total = G.add(total, part)
    return total


def _best_experts(w: Weights, scores: Tensor, moe: MoeConfig) -> Tensor:
    """The experts of each token, i32 [n_used, n_tokens], by scores [n_expert, n_tokens].

    A bias learned for balance takes part in the choice, not in the weights; with groups, only those
    are chosen from whose best two experts have the largest sum (DeepSeek-V3, arXiv 2412.19437)."""
    n_expert, n_tokens, _, _ = scores.ne
    if "exp_probs_b.bias" in w:
        scores = G.add(scores, w["exp_probs_b.bias"])
    if moe.n_group > 1:
        size = moe.n_expert // moe.n_group
        groups = G.reshape(scores, size, moe.n_group, n_tokens)
        best_two = G.get_rows(G.reshape(groups, 1, size, moe.n_group, n_tokens), G.top_k(groups, 2))
        sums = G.sum_rows(G.reshape(best_two, 2, moe.n_group, n_tokens))
        chosen = G.top_k(G.reshape(sums, moe.n_group, n_tokens), moe.n_group_used)
        kept = G.get_rows(groups, chosen)  # [size, n_group_used, n_tokens]
        scores = G.set_rows(G.fill(groups, -math.inf), kept, chosen)
        scores = G.reshape(scores, n_expert, n_tokens)
    return G.top_k(scores, moe.n_used)


def _experts(w: Weights, name: str, x: Tensor, ids: Tensor) -> Tensor:
    y = G.mul_mat_id(w[f"{name}.weight"], x, ids)
    if f"{name}.scale" in w:  # a number for each expert
        n_used, n_tokens = ids.ne[0], ids.ne[1]
        column = G.reshape(w[f"{name}.scale"], 1, w[f"{name}.scale"].ne[0])
        scales = G.get_rows(column, G.reshape(ids, n_used * n_tokens))
        y = G.mul(y, G.reshape(scales, 1, n_used, n_tokens))
    return G.add_id(y, w[f"{name}.bias"], ids) if f"{name}.bias" in w else y


def wanted(step: Step, x: Tensor) -> Tensor:
    """The columns of x [n, n_tokens] whose logits are asked for: [n, n_outputs]."""
    return G.get_rows(x, step.out_ids)


def output(w: Weights, x: Tensor) -> Tensor:
    """The output projection; tied to the embedding where the file has none of its own."""
    if "output.weight" in w:
        return linear(w, "output", x)
    y = G.mul_mat(w["token_embd.weight"], x)
    return G.add(y, w["output.bias"]) if "output.bias" in w else y


def layer_normed_logits(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The last LayerNorm and the output projection."""
    return output(w, layer_norm(w, "output_norm", x, step.config.norm_eps).named("result_norm"))


def logits(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The last RMS norm and the output projection."""
    return output(w, norm(w, "output_norm", x, step.config.rms_eps).named("result_norm"))
