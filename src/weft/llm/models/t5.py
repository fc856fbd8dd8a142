"""T5 (arXiv 1910.10683): an encoder reads the prompt, a decoder writes the answer. The second
version gates its feed-forward layers (arXiv 2002.05202). There are no positions: a learned number
for each head and each bucket of distances is added to the scores of attention.

Prompt and answer are one sequence of the cache. The encoder's graph reads the whole prompt at once
and writes, for each layer of the decoder, the keys and values of its output to the prompt's cells;
tokens of the answer have their own in theirs. So each layer of the decoder attends to some cells of
one cache by `mask`, and to the others by `cross_mask`. Files of `t5encoder` have the encoder alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.parts import Head
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need


def configure_encoder(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets buckets in place of a rotation, unscaled scores and, unless the file says it, the
    pooling."""
    n_buckets = keys.count("attention.relative_buckets_count", most=1 << 16)
    if n_buckets % 4:
        raise keys.bad("attention.relative_buckets_count", n_buckets, "a multiple of 4")
    pooling = "mean" if c.pooling == "none" else c.pooling
    c = replace(c.without_rope(), causal=False, pooling=pooling)
    return replace(c, n_buckets=n_buckets, attn_scale=1.0)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers of encoder and decoder. Files do not say whether logits are scaled: the first
    version, without gates, and UMT5, whose layers have biases each, do so where the embedding is
    the output."""
    c = configure_encoder(c, keys)
    n = keys.count("decoder_block_count", c.n_layer, most=1 << 16)
    names = keys.file.tensors
    first = "dec.blk.0.ffn_gate.weight" not in names or "dec.blk.1.attn_rel_b.weight" in names
    scaled = first and "output.weight" not in names
    return replace(
        c,
        causal=True,
        pooling="none",
        n_encoder=c.n_layer,
        n_layer=n,
        n_blocks=n,
        heads=c.heads[:1] * n,
        heads_kv=c.heads_kv[:1] * n,
        widths=c.widths[:1] * n,
        n_ctx_train=2 * c.n_ctx_train,  # a prompt and an answer of the length that the file says
        start_token=keys.count("decoder_start_token_id", 0, least=0, most=c.n_vocab - 1),
        logit_scale=c.logit_scale or (c.n_embd**-0.5 if scaled else 0.0),
    )


class T5Encoder(Architecture):
    """An encoder alone, whose output is the embedding of every token."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield need("token_embd.weight", c.n_embd, c.n_vocab)
        yield need("enc.output_norm.weight", c.n_embd)
        if self.head is not None:
            yield from self.head.rows(c)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return _block_rows(c, f"enc.blk.{il}.", ("attn",))

    def forward(self, step: Step, w: Weights) -> Tensor:
        x, enc = common.embed(step, w), w.part("enc.")
        x = _encoded(step, enc, x, step.config.n_layer, cached=True)
        return self.normed(step, enc, "output_norm", common.wanted(step, x)).named("result_norm")


class T5(Architecture):
    """An encoder and a decoder."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield need("token_embd.weight", c.n_embd, c.n_vocab)
        yield maybe("output.weight", c.n_embd, c.n_vocab)
        for part in ("enc", "dec"):
            yield need(f"{part}.output_norm.weight", c.n_embd)
        for il in range(c.n_encoder):
            yield from _block_rows(c, f"enc.blk.{il}.", ("attn",))

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return _block_rows(c, f"dec.blk.{il}.", ("attn", "cross_attn"))

    def forward(self, step: Step, w: Weights) -> Tensor:
        """Computes logits [n_vocab, n_outputs] from tokens of the answer; from tokens of the prompt
        the encoder's output [n_embd, n_outputs], and what the decoder reads of it."""
        x, c = common.embed(step, w), step.config
        if step.cross_mask is None:
            enc = w.part("enc.")
            x = _encoded(step, enc, x, c.n_encoder, cached=False)
            x = self.normed(step, enc, "output_norm", x)
            self.write_cross(step, w, x)
            return common.wanted(step, x).named("result_norm")
        dec, bias = w.part("dec."), None
        for il in range(c.n_layer):
            layer = dec.layer(il)
            bias = _bias(step, layer, bias)
            y = self.normed(step, layer, "attn_norm", x)
            q, k, v = (_heads(c, linear(layer, f"attn_{name}", y)) for name in "qkv")
            y = common.attention(step, il, q, k, v, bias=bias)
            x = G.add(x, linear(layer, "attn_o", y))
            q = _heads(c, linear(layer, "cross_attn_q", _normed(c, layer, "cross_attn_norm", x)))
            y = common.attention(step, il, q, None, None, mask=step.cross_mask)
            x = G.add(x, linear(layer, "cross_attn_o", y))
            if il == c.n_layer - 1:
                x = common.wanted(step, x)
            x = common.steered(step, il, _feed_forward(c, layer, x))
        x = self.normed(step, dec, "output_norm", x).named("result_norm")
        logits = common.output(w, x)
        return G.scale(logits, c.logit_scale) if c.logit_scale else logits

    def write_cross(self, step: Step, w: Weights, x: Tensor) -> None:
        """Writes the keys and values that the decoder's layers compute from the encoder's output x
        [n_embd, n_tokens]."""
        for il in range(step.config.n_layer):
            layer = w.part("dec.").layer(il)
            c, kv = step.config, step.cache
            for name, cache, d in (("k", kv.k[il], c.d_k(il)), ("v", kv.v[il], c.d_v(il))):
                y = linear(layer, f"cross_attn_{name}", x)
                y = common.spread(kv, cache, y, d, values=name == "v")
                step.writes.append(G.set_rows(cache, y, step.cells))


def _block_rows(c: ModelConfig, blk: str, attentions: tuple[str, ...]) -> Iterator[Row]:
    n_q, n_k, n_v = c.heads[0] * c.head_dim_k, c.n_embd_k(), c.n_embd_v()
    for attention in attentions:
        yield need(f"{blk}{attention}_norm.weight", c.n_embd)
        for name, n_out in (("q", n_q), ("k", n_k), ("v", n_v)):
            yield need(f"{blk}{attention}_{name}.weight", c.n_embd, n_out)
        yield need(f"{blk}{attention}_o.weight", c.heads[0] * c.head_dim_v, c.n_embd)
    # layers without biases have those of the layer before
    row = need if blk.endswith("blk.0.") else maybe
    yield row(f"{blk}attn_rel_b.weight", c.heads[0], c.n_buckets)
    yield need(f"{blk}ffn_norm.weight", c.n_embd)
    yield maybe(f"{blk}ffn_gate.weight", c.n_embd, c.widths[0])
    yield need(f"{blk}ffn_up.weight", c.n_embd, c.widths[0])
    yield need(f"{blk}ffn_down.weight", c.widths[0], c.n_embd)


def _encoded(step: Step, w: Weights, x: Tensor, n_layer: int, *, cached: bool) -> Tensor:
    """The output [n_embd, n_tokens] of the encoder's layers. Keys and values are in the cache, or
    only in the graph: then all tokens are of one text."""
    c, bias = step.config, None
    for il in range(n_layer):
        layer = w.layer(il)
        bias = _bias(step, layer, bias)
        y = _normed(c, layer, "attn_norm", x)
        q, k, v = (_heads(c, linear(layer, f"attn_{name}", y)) for name in "qkv")
        if cached:
            y = common.attention(step, il, q, k, v, bias=bias)
        else:
            k, v = G.permute(k, 0, 2, 1, 3), G.permute(v, 0, 2, 1, 3)
            y = common.attend(step, q, k, v, None, bias=bias)
        x = G.add(x, linear(layer, "attn_o", y))
        x = common.steered(step, il, _feed_forward(c, layer, x))
    return x


def _bias(step: Step, w: Weights, before: Tensor | None) -> Tensor | None:
    """The biases [n_kv, n_tokens, n_head] of scores in a layer; `before` are the biases of the
    layer in front of it."""
    if "attn_rel_b.weight" not in w:
        return before
    assert step.buckets is not None
    n_kv, n_tokens = step.buckets.ne[:2]
    rows = G.get_rows(w["attn_rel_b.weight"], G.reshape(step.buckets, n_kv * n_tokens))
    return G.cont(G.permute(G.reshape(rows, step.config.heads[0], n_kv, n_tokens), 2, 0, 1, 3))


def _heads(c: ModelConfig, x: Tensor) -> Tensor:
    n_head = c.heads[0]
    d = x.ne[0]
    assert isinstance(d, int)
    return G.reshape(x, d // n_head, n_head, x.ne[1])


def _normed(c: ModelConfig, w: Weights, name: str, x: Tensor) -> Tensor:
    return common.norm(w, name, x, c.rms_eps)


def _feed_forward(c: ModelConfig, w: Weights, x: Tensor) -> Tensor:
    """x plus its feed-forward layer, which is gated where the file has a gate."""
    y = _normed(c, w, "ffn_norm", x)
    up = linear(w, "ffn_up", y)
    if "ffn_gate.weight" in w:
        act = G.swiglu if c.hidden_act == "silu" else G.geglu
        inside = act(linear(w, "ffn_gate", y), up)
    else:
        inside = G.relu(up)
    return G.add(x, linear(w, "ffn_down", inside))


ARCHITECTURES = {
    "t5": T5(RopeMode.NEOX, configure),
    "t5encoder": T5Encoder(RopeMode.NEOX, configure_encoder, embeds=True, head=Head()),
}
