"""Computations that the parts of models share.

Sizes in comments are innermost first, as in ggml's `ne`. `d` is the size of a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft import graph as G
from weft.errors import FormatError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.cache.cache_types import rotated_block
from weft.llm.cache.kv_cache import KVCache
from weft.llm.config import ModelConfig
from weft.llm.config_parts import RopeConfig
from weft.llm.models.step import Step
from weft.llm.weights import Weights


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """Computes W x, times the scale and plus the bias if the file has them."""
    y = G.mul_mat(w[f"{name}.weight"], x)
    if f"{name}.scale" in w:
        y = G.mul(y, w[f"{name}.scale"])
    if f"{name}.weight.lora_a" in w:
        y = G.add(y, adapted(w, f"{name}.weight", G.mul_mat(w[f"{name}.weight.lora_a"], x)))
    if f"{name}.bias" in w:
        y = G.add(y, w[f"{name}.bias"])
    return y


def adapted(w: Weights, name: str, columns: Tensor, ids: Tensor | None = None) -> Tensor:
    """The term that adapters add to the product of the matrix `name` with x: B (s * columns), where
    the columns are A x. With `ids` i32 [n_used, n_tokens] it is a product with these experts."""
    n_rows, *sizes = columns.ne
    for s in w.scales:
        if s.ne[1] == columns.ne[2] and ids is not None:
            s = G.reshape(s, n_rows, 1, s.ne[1])
        elif s.ne[1] == sizes[0] * sizes[1] and ids is None:
            s = G.reshape(s, n_rows, sizes[0], sizes[1]) if sizes[1] != 1 else s
        else:
            continue
        b = w[f"{name}.lora_b"]
        scaled = G.mul(columns, s)
        return G.mul_mat(b, scaled) if ids is None else G.mul_mat_id(b, scaled, ids)
    raise FormatError(
        f"an adapter changes {name}, which is not multiplied with one column for each token; "
        "merge it into the model"
    )


def steered(step: Step, il: int, x: Tensor) -> Tensor:
    """The output x [n_embd, n] of layer `il`, or of its streams [n_embd, n_streams, n], with the
    directions of control vectors that the model has for it."""
    if il in step.directions:
        x = _directed(step, il, x)
    x = x.named(f"l_out-{il}")
    if il + 1 in step.kept:
        if x.ne[2] != 1:
            raise FormatError(
                "the layers of this architecture have several streams, which no model that drafts "
                "reads"
            )
        step.inputs[il + 1] = x
    return x


def _directed(step: Step, il: int, x: Tensor) -> Tensor:
    columns = x.ne[2] if x.ne[2] != 1 else x.ne[1]
    scales = next((s for s in step.vector_scales if s.ne[1] == columns), None)
    if scales is None:
        raise FormatError(f"layer {il} of this architecture cannot be steered by control vectors")
    y = G.mul_mat(step.directions[il], scales)
    if x.ne[2] != 1:
        y = G.reshape(y, y.ne[0], 1, columns)
    return G.add(x, y)


def heads(x: Tensor, d: int, n_head: int, stride: int, start: int) -> Tensor:
    """The `d` elements of each head from `start` on, of x [stride n_head, n_tokens]."""
    size = x.dtype.bytes
    return G.cont(G.view_3d(x, d, n_head, x.ne[1], stride * size, x.nb[1], start * size))


def norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """Computes the RMS norm of x with a learned gain (arXiv 1910.07467)."""
    return G.mul(G.rms_norm(x, eps), w[f"{name}.weight"])


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """Computes the LayerNorm of x (arXiv 1607.06450) with a learned gain and an optional bias."""
    y = G.mul(G.norm(x, eps), w[f"{name}.weight"])
    return G.add(y, w[f"{name}.bias"]) if f"{name}.bias" in w else y


def embed(step: Step, w: Weights) -> Tensor:
    """The embeddings of the tokens, times the model's scale if it has one, or the rows given in
    place of tokens: [n_embd, n_tokens]."""
    if step.embd is not None:
        x, scale = deepstack(step, 0), step.config.row_scale
        return G.scale(x, scale) if scale else x
    x = G.get_rows(w["token_embd.weight"], step.tokens)
    if "token_embd.weight.lora_a" in w:
        rows = G.get_rows(w["token_embd.weight.lora_a"], step.tokens)
        x = G.add(x, adapted(w, "token_embd.weight", rows))
    scale = step.config.embedding_scale
    return G.scale(x, scale) if scale else x


def deepstack(step: Step, part: int) -> Tensor:
    """A part [n_embd, n_tokens] of the rows given in place of tokens: 0 is the input, the others
    are added behind layers."""
    embd, n = step.embd, step.config.n_embd
    assert embd is not None
    if not step.config.n_deepstack:
        return embd
    start = part * n * embd.dtype.bytes
    return G.cont(G.view_2d(embd, n, embd.ne[1], embd.nb[1], start))


def add_positions(step: Step, w: Weights, x: Tensor) -> Tensor:
    """Adds learned embeddings of positions to x [n_embd, n_tokens], if the model has them."""
    if not step.config.n_positions:
        return x
    return G.add(x, G.get_rows(w["position_embd.weight"], step.positions)).named("inpL")


def qkv(step: Step, w: Weights, il: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Projects x [n_embd, n_tokens] to q [d, n_head, n_tokens], k [d, n_head_kv, n_tokens] and v
    [dv, n_head_kv, n_tokens]. `w` has the weights of layer `il`."""
    c, n_tokens = step.config, x.ne[1]
    n_head, n_kv = c.n_head(il), c.n_head_kv(il)
    heads = (c.d_k(il), n_head), (c.d_k(il), n_kv), (c.d_v(il), n_kv)
    if "attn_qkv.weight" not in w:
        # without a matrix for values, they are the keys
        names = "qkv" if "attn_v.weight" in w else "qkk"
        each = [linear(w, f"attn_{name}", x) for name in names]
        q, k, v = (G.reshape(y, d, n, n_tokens) for y, (d, n) in zip(each, heads, strict=True))
        return q, k, v
    y = linear(w, "attn_qkv", x)
    parts, at = [], 0
    for name, (d, n) in zip("QKV", heads, strict=True):
        size = y.dtype.bytes
        part = G.view_3d(y, d, n, n_tokens, d * size, y.nb[1], at * size)
        parts.append(part.named(f"{name}cur-{il}"))
        at += d * n
    return parts[0], parts[1], parts[2]


def rotate_end(
    step: Step, x: Tensor, il: int, positions: Tensor | None = None, *, back: bool = False
) -> Tensor:
    """Rotates the last elements of each head of x [d, n_head, n] by `positions` i32 [n] (None:
    the tokens' own), with the rotary embedding of layer `il`, or `back` to position 0."""
    r, d = step.config.rope_of(il), x.ne[0]
    assert isinstance(d, int)
    at = step.positions if positions is None else positions
    factor, n = r.kernel_attn_factor, d - r.n_dims
    return _rotate(r, step.rope_mode, None, x, at, factor, n_offset=n, back=back)


def rope(
    step: Step,
    w: Weights,
    x: Tensor,
    il: int = 0,
    mode: G.RopeMode | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Rotates x [d, n_head, n] by `positions` i32 [n] (None: the tokens' own), with the rotary
    embedding of layer `il`; `mode` replaces the model's mode."""
    r = step.config.rope_of(il)
    factors = _freq_factors(w, r, step.cache)
    mode = mode or step.rope_mode
    planes = mode in (G.RopeMode.MROPE, G.RopeMode.IMROPE)
    sections = step.config.rope_sections if planes else (0, 0, 0, 0)
    at = step.positions if positions is None else positions
    return _rotate(r, mode, factors, x, at, r.kernel_attn_factor, sections=sections)


def sharpened(step: Step, q: Tensor, il: int) -> Tensor:
    """Queries [d, n_head, n_tokens] times the temperature of their positions, if the layer has
    one."""
    t = step.config.temperature
    if t is None or (t.unrotated and step.config.rope_of(il).n_dims):
        return q
    n_tokens = step.positions.ne[0]
    # half a position more, so that rounding leaves multiples of the span where they are
    spans = G.scale(G.cast(step.positions, "f32"), 1.0 / t.span, (t.offset + 0.5) / t.span)
    factors = G.scale(G.log(G.scale(G.floor(spans), 1.0, 1.0)), t.scale, 1.0)
    return G.mul(q, G.reshape(factors, 1, 1, n_tokens))


def shift_keys(
    c: ModelConfig,
    w: Weights,
    cache: KVCache,
    mode: G.RopeMode,
    full_shift: Tensor,
    small_shift: Tensor | None = None,
) -> list[Tensor]:
    """Rotates cached keys in place by `full_shift` i32 [n_kv], the change of each cell's position.

    Layers with cells of the sliding window rotate by `small_shift`; layers without rotary embedding
    are left out. Angles add up, so a rotated key equals one computed at the new position."""
    shifted = []
    for il, k in enumerate(cache.k):
        r = c.rope_of(il)
        index = c.indexer or c.chosen_blocks
        if index is not None and index.layers[il]:
            shifted.append(_shift_indexer(c, index.head_dim, mode, w, cache, il, full_shift))
        if r.n_dims == 0 or c.n_head_kv(il) == 0:
            continue
        shift = full_shift
        if small_shift is not None and cache.is_small(il):
            shift = small_shift
        factors = _freq_factors(w, r, cache)
        d, factor = c.d_k(il), r.shift_attn_factor
        gains = w.get(f"blk.{il}.attn_k_norm.weight") if c.heads_last else None
        in_place = k.dtype.name in ("f32", "f16") and gains is None and not _block(cache, k, d)
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
        decoded = spread(cache, k, G.cast(keys, "f32"), d)
        if gains is not None:  # they follow the rotation
            decoded = G.div(decoded, gains)
        rotated = _rotate(r, mode, factors, decoded, shift, factor, inplace=True, n_offset=r.offset)
        if gains is not None:
            rotated = G.mul(rotated, gains)
        shifted.append(G.cpy(spread(cache, k, rotated, d), keys))
    return shifted


def _shift_indexer(
    c: ModelConfig,
    d: int,
    mode: G.RopeMode,
    w: Weights,
    cache: KVCache,
    il: int,
    shift: Tensor,
) -> Tensor:
    """Rotates the cached keys of the indexer of layer `il`, which are behind the values."""
    v, r = cache.v[il], c.rope_of(il)
    start = v.dtype.row_bytes(c.n_embd_v(il) - d)
    offset = 0
    if c.indexer is not None and c.indexer.tail:
        offset = d - r.n_dims
    else:
        halves = c.indexer is None or c.indexer.halves
        mode = G.RopeMode.NEOX if halves else G.RopeMode.NORMAL
    keys = G.view_3d(v, d, 1, shift.ne[0], v.dtype.row_bytes(d), v.nb[1], start)
    factors = _freq_factors(w, r, cache)
    plain = v.dtype.name in ("f32", "f16") and not _block(cache, v, d, values=True)
    x = keys if plain else spread(cache, v, G.cast(keys, "f32"), d, values=True)
    factor = r.shift_attn_factor
    x = _rotate(r, mode, factors, x, shift, factor, inplace=True, n_offset=offset)
    return x if plain else G.cpy(spread(cache, v, x, d, values=True), keys)


def _rotate(
    r: RopeConfig,
    mode: G.RopeMode,
    factors: Tensor | None,
    x: Tensor,
    positions: Tensor,
    attn_factor: float,
    *,
    back: bool = False,
    **more: Any,
) -> Tensor:
    """Rotates x, or turns it `back`; `more` are further arguments of `G.rope`."""
    if r.n_dims == 0:
        return x
    if r.ext_factor and not r.rounded:
        factors = G.constant(list(r.yarn_divisors()))
        attn_factor *= r.yarn_magnitude(1.0)
        r = replace(r, ext_factor=0.0, scaling="none")
    rotate = G.rope_back if back else G.rope
    return rotate(
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
        **more,
    )


def _freq_factors(w: Weights, r: RopeConfig, cache: KVCache) -> Tensor | None:
    """The divisors of rotation angles, if the file has them. LongRoPE has one set for contexts
    within the original length and one beyond; the size of the cache decides, because all cached
    keys must use the same set."""
    if not r.factored:
        return None
    if "rope_freqs.weight" in w:
        return w["rope_freqs.weight"]
    long = cache.size > r.n_ctx_orig
    return w.get("rope_factors_long.weight" if long else "rope_factors_short.weight")


def attention(
    step: Step,
    il: int,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    sinks: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Writes k and v to the cache and computes attention over its first n_kv cells.

    Takes q [d, n_head, n_tokens], k [d, n_head_kv, n_tokens] and v [dv, n_head_kv, n_tokens]; None
    stands for what the layer `kv_source` has in the cache. `mask` replaces the layer's mask, `bias`
    f32 [n_kv, n_tokens, n_head] is added to the scores. Returns [dv * n_head, n_tokens]."""
    if k is not None and v is not None:
        keys = cached(step, il, step.cache.k[il], k)
        step.kv[il] = keys, cached(step, il, step.cache.v[il], v)
    keys, values = step.kv[step.config.kv_source(il)]
    mask = step.mask_of(il) if mask is None else mask
    out = attend(step, q, keys, values, mask, sinks=sinks, bias=bias)
    return out.named(f"kqv_out-{il}")


def spread(cache: KVCache, rows: Tensor, x: Tensor, d: int, *, values: bool = False) -> Tensor:
    """Heads x [d or n d, ...] rotated as heads of keys (or values) of size `d` are before they are
    stored in `rows`, so that outliers spread over their neighbours; a second time rotates back.
    Without such a rotation, x itself."""
    block = _block(cache, rows, d, values=values)
    return G.hadamard(x, block) if block else x


def _block(cache: KVCache, rows: Tensor, d: int, *, values: bool = False) -> int:
    return rotated_block(rows.dtype, d, values=values) if cache.rotated else 0


def attend(
    step: Step,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes attention of q [d, n_head, n_tokens] to keys [d, n_kv, n_head_kv] and values [dv,
    n_kv, n_head_kv]; see `attention`. Returns [dv * n_head, n_tokens]."""
    scale, cap = step.config.kq_scale, step.config.attn_softcap
    slope = step.config.alibi_bias
    n_head, n_tokens = q.ne[1:3]
    d, dv = keys.ne[0], values.ne[0]
    assert isinstance(d, int) and isinstance(dv, int)
    q = G.permute(spread(step.cache, keys, q, d), 0, 2, 1, 3)  # [d, n_tokens, n_head]
    if step.flash and bias is None:
        out = G.flash_attn_ext(
            q, keys, values, mask, sinks, scale=scale, max_bias=slope, logit_softcap=cap
        )
    else:
        scores = G.mul_mat(keys, q)  # [n_kv, n_tokens, n_head]
        if cap:
            scores, scale = soft_cap(G.scale(scores, scale), cap), 1.0
        if bias is not None:
            scores, scale = G.add(scores if scale == 1.0 else G.scale(scores, scale), bias), 1.0
        probs = G.soft_max(scores, mask, sinks, scale, slope)
        out = G.mul_mat(G.cont(G.transpose(values)), probs)  # [dv, n_tokens, n_head]
        out = G.cont(G.permute(out, 0, 2, 1, 3))
    # whole rows of tokens, so that the product that follows reads them while they are at hand
    out = G.reshape(out, dv * n_head, n_tokens)
    return spread(step.cache, values, out, dv, values=True)


def cached(step: Step, il: int, cache: Tensor, x: Tensor) -> Tensor:
    """Writes x [d, n_head_kv, n_tokens] to its cells of `cache`, the keys or the values of layer
    `il`, rotated where the cache rotates (`spread`); returns the cache as [d, n_kv, n_head_kv]."""
    d, n_head, n_tokens, _ = x.ne
    assert isinstance(d, int)
    if not x.is_contiguous:  # a part of a fused projection
        x = G.cont(x)
    is_values = cache is step.cache.v[il]
    rows = spread(step.cache, cache, G.reshape(x, d * n_head, n_tokens), d, values=is_values)
    return stored(step, il, cache, rows, d)


def stored(step: Step, il: int, cache: Tensor, rows: Tensor, d: int) -> Tensor:
    """Writes rows [d n_head_kv, n_tokens] to their cells of `cache` as they are; see `cached`."""
    n_head = exact_div(rows.ne[0], d)
    assert n_head is not None
    written = G.set_rows(cache, rows, step.cells_of(il))
    # a view of the result of the write, not of the leaf, so that it is read after the write
    return G.view_3d(
        written, d, step.mask_of(il).ne[0], n_head, cache.nb[1], cache.dtype.row_bytes(d)
    )


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Computes cap * tanh(x / cap), which is near x if that is small and never beyond the cap
    (arXiv 2408.00118)."""
    return G.scale(G.tanh(G.scale(x, 1.0 / cap)), cap)


def wanted(step: Step, x: Tensor) -> Tensor:
    """The columns of x [n, n_tokens] whose logits are wanted: [n, n_outputs]."""
    return G.get_rows(x, step.out_ids)


def output(w: Weights, x: Tensor) -> Tensor:
    """The output projection of x; without weights of its own it uses the embedding."""
    if "output.weight" in w:
        return linear(w, "output", x)
    y = G.mul_mat(w["token_embd.weight"], x)
    return G.add(y, w["output.bias"]) if "output.bias" in w else y
