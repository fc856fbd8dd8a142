"""Gemma 1 to 4."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RopeConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, RMS, Attention, Gated, attention_rows, linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need

# Gemma (arXiv 2403.08295): LLaMA's blocks with GeGLU, heads wider than n_embd / n_head, and
# embeddings multiplied by sqrt(n_embd). The gains of norms in files include the 1 that is added.


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the scale of the embeddings."""
    return replace(c, embedding_scale=math.sqrt(c.n_embd))


# Gemma 2 (arXiv 2408.00118): Gemma with norms behind attention and feed-forward layer as well,
# soft caps on attention scores and logits, and a sliding window in every second layer.


def configure_gemma2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, caps and scales, by default as in the paper."""
    windowed = keys.windowed(2, c.n_layer)
    # the 27B model, which has 46 layers, has another scale than its head size implies
    scale = 1 / math.sqrt(c.n_embd // c.n_head()) if c.n_layer == 46 else 0.0
    local = replace(c.rope, freq_base=keys.number("rope.freq_base_swa", c.rope.freq_base, above=0))
    return replace(
        c,
        embedding_scale=math.sqrt(c.n_embd),
        attn_scale=c.attn_scale or scale,
        attn_softcap=keys.number("attn_logit_softcapping", 50.0),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        sliding_window=c.sliding_window or 4096,
        windowed=windowed,
        ropes=tuple(local if w else c.rope for w in windowed),
    )


class Capped(Architecture):
    """Logits are soft-capped if the model has a cap."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The capped logits, cap * tanh(logits / cap): [n_vocab, n_outputs]."""
        y = super().logits(step, w, x)
        cap = step.config.final_softcap
        return common.soft_cap(y, cap) if cap else y


# Gemma 3 (arXiv 2503.19786): Gemma 2 with an RMS norm of each query and key head instead of the
# caps, and a sliding window in five of six layers, whose rotation has a base of its own.


def configure_gemma3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and rotations; positions of layers with a window are never scaled."""
    c = replace(c, embedding_scale=math.sqrt(c.n_embd))
    # the 27B model has another scale than its head size implies
    if c.n_layer == 62 and not c.attn_scale:
        c = replace(c, attn_scale=1 / math.sqrt(c.n_embd // c.n_head()))
    if not c.sliding_window:
        return c
    windowed = keys.windowed(6, c.n_layer)
    base = keys.number("rope.freq_base_swa", 10000.0, above=0)
    local = RopeConfig(c.rope.n_dims, base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


# Gemma 4 (Google, 2026): Gemma 3's blocks, where values are normed as well, the last layers attend
# to the keys and values of earlier ones, heads of layers with a window are smaller, and each layer
# may have an input of its own, from the token and from its embedding.
#
# The mixture of experts stands beside the dense layer, and has norms and a router of its own.


_EXPERTS = Experts(dense=None, act=G.geglu)


def configure_gemma4(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, sizes of heads, rotations, and whose keys and values the last layers have."""
    c = gemma4_layers(c, keys)
    return shared_caches(
        c, keys.count("attention.shared_kv_layers", 0, least=0, most=c.n_layer - 1)
    )


def gemma4_layers(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, sizes of heads and rotations."""
    windowed = keys.windowed(6, c.n_layer)
    size = keys.count("attention.key_length_swa", c.head_dim_k)
    if keys.count("attention.value_length_swa", size) != size or c.head_dim_v != c.head_dim_k:
        raise keys.bad("attention.value_length", c.head_dim_v, "the length of keys")
    local = replace(keys.local_rope(c), factored=False)
    n_embd_layer = keys.count("embedding_length_per_layer_input", 0, least=0)
    return replace(
        c,
        embedding_scale=math.sqrt(c.n_embd),
        attn_scale=1.0,
        windowed=windowed,
        head_dim_window=size,
        ropes=tuple(local if w else c.rope for w in windowed),
        n_embd_layer=n_embd_layer,
        # the small models, which have inputs of layers, see rows in order
        rows_join="none" if n_embd_layer else "windows",
    )


def shared_caches(c: ModelConfig, n_shared: int) -> ModelConfig:
    """Lets the last `n_shared` layers attend to the keys and values of the last layer before them
    with the same kind of window."""
    n_own = c.n_layer - n_shared
    own = {c.is_windowed(il): il for il in range(n_own)}
    sources = (il if il < n_own else own.get(c.is_windowed(il), 0) for il in range(c.n_layer))
    heads_kv = tuple(n if il < n_own else 0 for il, n in enumerate(c.heads_kv))
    return replace(c, kv_sources=tuple(sources), heads_kv=heads_kv) if n_shared else c


class SharedAttention(Attention):
    """Attention with normed values, which are the keys if there is no matrix for them; some layers
    have the keys and values of another."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections and norms of heads; without keys and values where they are another's."""
        assert self.heads is not None
        shared = c.kv_source(il) != il
        for row in (*attention_rows(c, il), *self.heads.rows(c, il)):
            if shared and (".attn_k" in row.name or ".attn_v" in row.name):
                continue
            yield replace(row, optional=True) if row.name.endswith("attn_v.weight") else row

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c, layer = step.config, w.layer(il)
        if c.kv_source(il) == il:
            return super().__call__(step, w, il, x)
        assert self.heads is not None
        q = G.reshape(linear(layer, "attn_q", x), c.d_k(il), c.n_head(il), x.ne[1])
        q = common.rope(step, w, self.heads(c, layer, "attn_q_norm", q), il)
        return self.output(step, layer, common.attention(step, il, q, None, None))

    def project(self, step: Step, w: Weights, il: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = common.qkv(step, w, il, x)
        q, k, v = self.norm_heads(step.config, w, q, k, v)
        return q, k, G.rms_norm(v, step.config.rms_eps)


def layer_inputs(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The inputs of all layers, [n_embd_layer, n_layer, n_tokens], from the tokens and from their
    embeddings x. Rows given in place of tokens count as token 0."""
    c = step.config
    n, n_tokens = c.n_embd_layer, x.ne[1]
    tokens = step.tokens if step.embd is None else G.constant(np.zeros(1, np.int32))
    own = G.get_rows(w["per_layer_token_embd.weight"], tokens)
    own = G.reshape(G.scale(own, math.sqrt(n)), n, c.n_layer, tokens.ne[0])
    projected = G.scale(G.mul_mat(w["per_layer_model_proj.weight"], x), 1 / math.sqrt(c.n_embd))
    projected = G.reshape(projected, n, c.n_layer, n_tokens)
    projected = RMS(c, w, "per_layer_proj_norm", projected)
    return G.scale(G.add(projected, own), math.sqrt(0.5))


def layer_input(step: Step, inputs: Tensor, il: int) -> Tensor:
    """The input of layer `il`, [n_embd_layer, n_tokens]; in the last layer, [.., n_outputs]."""
    n, n_layer, n_tokens, _ = inputs.ne
    assert isinstance(n, int) and isinstance(n_layer, int)
    size = inputs.dtype.bytes
    one = G.view_2d(inputs, n, n_tokens, n * n_layer * size, il * n * size)
    return last(step, il, G.cont(one))[0]


class Gemma4(Capped):
    """Layers have an input of their own, a mixture of experts beside the dense layer, and a factor
    of their output, as far as the file has them."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        n = c.n_embd_layer * c.n_layer
        if n:
            yield need("per_layer_token_embd.weight", n, c.n_vocab)
            yield need("per_layer_model_proj.weight", c.n_embd, n)
            yield need("per_layer_proj_norm.weight", c.n_embd_layer)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        yield maybe(f"blk.{il}.layer_output_scale.weight", 1)
        if c.n_embd_layer:
            yield from linear_rows(f"blk.{il}.inp_gate", c.n_embd, c.n_embd_layer)
            yield from linear_rows(f"blk.{il}.proj", c.n_embd_layer, c.n_embd)
            yield need(f"blk.{il}.post_norm.weight", c.n_embd)
        if c.moe is not None:
            rows = _EXPERTS.rows(c, il)
            yield from (row for row in rows if not row.name.endswith("ffn_gate_inp.bias"))
            yield need(f"blk.{il}.ffn_gate_inp.scale", c.n_embd)
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                yield need(f"blk.{il}.{name}.weight", c.n_embd)

    def forward(self, step: Step, w: Weights) -> Tensor:
        x = self.embed(step, w)
        inputs = layer_inputs(step, w, x) if step.config.n_embd_layer else None
        for il in range(step.config.n_layer):
            x, layer = self.block(step, w, il, x), w.layer(il)
            if inputs is not None:
                y = G.mul(G.gelu(linear(layer, "inp_gate", x)), layer_input(step, inputs, il))
                x = G.add(x, self.normed(step, layer, "post_norm", linear(layer, "proj", y)))
            x = common.steered(step, il, self.scaled(layer, x))
        return self.logits(step, w, x)

    def scaled(self, layer: Weights, x: Tensor) -> Tensor:
        """The output x of a layer times the layer's factor, if the file has one."""
        factor = layer.get("layer_output_scale.weight")
        return x if factor is None else G.mul(x, factor)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y = last(step, il, x, y)
        x = G.add(x, self.normed(step, layer, "post_attention_norm", y)).named(f"ffn_inp-{il}")
        y = self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm", x))
        if step.config.moe is not None:
            routed = self.normed(step, layer, "post_ffw_norm_2", self.routed(step, layer, x))
            y = G.add(self.normed(step, layer, "post_ffw_norm_1", y), routed)
        return G.add(x, self.normed(step, layer, "post_ffw_norm", y))

    def routed(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The mixture of experts of x [n_embd, n_tokens]; the router norms x without gains."""
        c = step.config
        assert c.moe is not None
        routes = G.scale(G.rms_norm(x, c.rms_eps), 1 / math.sqrt(c.n_embd))
        scores = G.mul_mat(w["ffn_gate_inp.weight"], G.mul(routes, w["ffn_gate_inp.scale"]))
        return _EXPERTS.mixture(w, self.normed(step, w, "pre_ffw_norm_2", x), c.moe, scores)


# Gemma 3n (Google, 2025): Gemma 4's shared keys and values and inputs of layers, and
#
# - several streams in place of one residual (AltUp, arXiv 2301.13310): a layer predicts all of
# them, computes one, and corrects all by what that one became, - a low-rank path beside attention
# (LAuReL, arXiv 2411.07501), - gates of the first layers' feed-forward parts of which only the
# largest count, those beyond so many standard deviations.
#
#     p_i = x_i + sum_j P[i, j] x_j          P, C: of the active stream, through a router
#     x_i = p_i + C[i] (layer(p_a) - p_a)    a: the active stream


_LEAST_MEAN = 1e-5
"""Minimum mean square to which a stream is brought to the magnitude of another."""


def configure_gemma3n(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, rotations, streams, sparse layers, and whose keys and values the last have."""
    windowed = keys.windowed(5, c.n_layer)
    local = keys.local_rope(c)
    n_streams = keys.count("altup.num_inputs", most=64)
    sparsity = keys.file.get_array(f"{c.arch}.activation_sparsity_scale").tolist()
    low = keys.file.tensors.get("blk.0.laurel_l.weight")  # no key has its width
    c = replace(
        c,
        laurel_rank=64 if low is None else low.ne[1],
        embedding_scale=math.sqrt(c.n_embd),
        attn_scale=1.0,
        windowed=windowed,
        ropes=tuple(local if w else c.rope for w in windowed),
        n_embd_layer=keys.count("embedding_length_per_layer_input"),
        streams=(n_streams, keys.count("altup.active_idx", 0, least=0, most=n_streams - 1)),
        activation=tuple((float(s),) for s in sparsity),
    )
    return shared_caches(
        c, keys.count("attention.shared_kv_layers", 0, least=0, most=c.n_layer - 1)
    )


class SparseGated(Gated):
    """A gated feed-forward layer; in some layers, gates count by how far they are beyond a number
    of standard deviations."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, c = w.layer(il), step.config
        gate = linear(layer, "ffn_gate", x)
        deviations = c.activation[il][0] if il < len(c.activation) else -math.inf
        if deviations > -math.inf:
            centred = G.sub(gate, G.mean(gate))
            deviation = G.sqrt(G.mean(G.sqr(centred)))
            gate = G.relu(G.sub(centred, G.scale(deviation, deviations)))
        return linear(layer, "ffn_down", self.act(gate, linear(layer, "ffn_up", x)))


class Gemma3n(Capped):
    """Blocks of several streams, which are [n_embd, n_streams, n_tokens]."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        n, n_others = c.n_embd_layer * c.n_layer, c.streams[0] - 1
        yield need("altup_proj.weight", c.n_embd, c.n_embd, n_others)
        yield need("altup_unembd_proj.weight", c.n_embd, c.n_embd, n_others)
        yield need("per_layer_token_embd.weight", n, c.n_vocab)
        yield need("per_layer_model_proj.weight", c.n_embd, n)
        yield need("per_layer_proj_norm.weight", c.n_embd_layer)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        blk, n = f"blk.{il}", c.streams[0]
        for name in ("post_norm", "altup_correct_scale", "altup_router_norm", "laurel_post_norm"):
            yield need(f"{blk}.{name}.weight", c.n_embd)
        yield need(f"{blk}.altup_router.weight", c.n_embd, n)
        yield need(f"{blk}.altup_predict_coef.weight", n, n * n)
        yield need(f"{blk}.altup_correct_coef.weight", n, n)
        rank = c.laurel_rank
        yield from linear_rows(f"{blk}.laurel_l", c.n_embd, rank)
        yield from linear_rows(f"{blk}.laurel_r", rank, c.n_embd)
        yield from linear_rows(f"{blk}.inp_gate", c.n_embd, c.n_embd_layer)
        yield from linear_rows(f"{blk}.proj", c.n_embd_layer, c.n_embd)

    def forward(self, step: Step, w: Weights) -> Tensor:
        x = self.embed(step, w)
        inputs = layer_inputs(step, w, x)
        streams = split(step, w, x)
        for il in range(step.config.n_layer):
            streams = common.steered(step, il, self.streams(step, w, il, streams, inputs))
        return self.logits(step, w, joined(step, w, streams))

    def streams(self, step: Step, w: Weights, il: int, x: Tensor, inputs: Tensor) -> Tensor:
        """One layer, from streams x [n_embd, n_streams, n_tokens] to the same sizes."""
        c, layer = step.config, w.layer(il)
        n_embd, (n, active) = c.n_embd, c.streams
        n_tokens = x.ne[2]
        mixed = G.cont(G.permute(x, 1, 0, 2, 3))  # [n_streams, n_embd, n_tokens]
        weights = linear(layer, "altup_predict_coef", self.routed(step, layer, stream(x, active)))
        x = G.add(x, G.mul_mat(mixed, G.reshape(weights, n, n, n_tokens)))

        active_x = stream(x, active)
        normed = self.normed(step, layer, "attn_norm", active_x)
        low = linear(layer, "laurel_r", linear(layer, "laurel_l", normed))
        low = G.add(normed, self.normed(step, layer, "laurel_post_norm", low))
        y = self.attention(step, w, il, normed)
        flat = G.reshape(x, n_embd * n, n_tokens)
        flat, active_x, low, y = last(step, il, flat, active_x, low, y)
        y = G.add(active_x, self.normed(step, layer, "post_attention_norm", y))
        y = G.scale(G.add(y, low), math.sqrt(0.5))
        z = self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm", y))
        y = G.add(y, self.normed(step, layer, "post_ffw_norm", z))

        n_out = y.ne[1]
        x = G.reshape(flat, n_embd, n, n_out)
        weights = G.scale(
            linear(layer, "altup_correct_coef", self.routed(step, layer, y)), 1.0, 1.0
        )
        change = G.repeat(G.reshape(G.sub(y, active_x), n_embd, 1, n_out), x)
        x = G.add(x, G.mul(change, G.reshape(weights, 1, n, n_out)))
        first = G.mul(stream(x, active), layer["altup_correct_scale.weight"])
        first = G.mul(G.gelu(linear(layer, "inp_gate", first)), layer_input(step, inputs, il))
        first = self.normed(step, layer, "post_norm", linear(layer, "proj", first))
        others = G.add(streams(x, 1, n), G.reshape(first, n_embd, 1, n_out))
        return G.concat(streams(x, 0, 1), others, 1)

    def routed(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The router's coefficients for a stream x [n_embd, n_tokens]: [n_streams, n_tokens]."""
        x = G.scale(self.normed(step, w, "altup_router_norm", x), 1 / step.config.n_embd)
        return G.tanh(linear(w, "altup_router", x))


def streams(x: Tensor, start: int, stop: int) -> Tensor:
    """The streams [start, stop) of x [n_embd, n_streams, n_tokens]."""
    n_embd, _, n_tokens, _ = x.ne
    return G.cont(G.view_3d(x, n_embd, stop - start, n_tokens, x.nb[1], x.nb[2], start * x.nb[1]))


def stream(x: Tensor, i: int) -> Tensor:
    """The stream `i` of x [n_embd, n_streams, n_tokens]: [n_embd, n_tokens]."""
    return G.reshape(streams(x, i, i + 1), x.ne[0], x.ne[2])


def split(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The streams that begin with x [n_embd, n_tokens]: x itself and its projections, brought to
    the same magnitude."""
    n_embd, n_tokens, _, _ = x.ne
    x = G.reshape(x, n_embd, n_tokens, 1)
    copies = x
    for _ in range(step.config.streams[0] - 2):
        copies = G.concat(copies, x, 2)
    others = as_large(G.mul_mat(w["altup_proj.weight"], copies), x)
    return G.cont(G.permute(G.concat(x, others, 2), 0, 2, 1, 3))


def joined(step: Step, w: Weights, x: Tensor) -> Tensor:
    """The mean of streams x [n_embd, n_streams, n_outputs], the others projected back and brought
    to the magnitude of the active one: [n_embd, n_outputs]."""
    n = step.config.streams[0]
    n_embd, _, n_out, _ = x.ne
    others = G.cont(G.permute(streams(x, 1, n), 0, 2, 1, 3))
    others = G.mul_mat(w["altup_unembd_proj.weight"], others)
    others = as_large(others, G.reshape(stream(x, 0), n_embd, n_out, 1))
    total = stream(x, 0)
    for i in range(n - 1):
        total = G.add(total, G.view_2d(others, n_embd, n_out, others.nb[1], i * others.nb[2]))
    return G.scale(total, 1 / n)


def as_large(x: Tensor, like: Tensor) -> Tensor:
    """x with the mean square of `like` in each row."""
    square = G.clamp(G.mean(G.sqr(x)), _LEAST_MEAN, math.inf)
    return G.div(G.mul(x, G.sqrt(G.mean(G.sqr(like)))), G.sqrt(square))


ARCHITECTURES = {
    "gemma": Architecture(RopeMode.NEOX, configure, feed_forward=Gated(G.geglu)),
    "gemma2": Capped(
        RopeMode.NEOX, configure_gemma2, feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "gemma3": Capped(
        RopeMode.NEOX, configure_gemma3, attention=Attention(EACH_HEAD),
        feed_forward=Gated(G.geglu), after=("post_attention_norm", "post_ffw_norm"),
    ),
    "gemma4": Gemma4(
        RopeMode.NEOX, configure_gemma4, attention=SharedAttention(EACH_HEAD),
        feed_forward=Gated(G.geglu), after=("post_attention_norm", "post_ffw_norm"),
    ),
    "gemma3n": Gemma3n(
        RopeMode.NEOX, configure_gemma3n, attention=SharedAttention(EACH_HEAD),
        feed_forward=SparseGated(G.geglu), after=("post_attention_norm", "post_ffw_norm"),
    ),
}  # fmt: skip
