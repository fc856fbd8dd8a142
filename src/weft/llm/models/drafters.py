"""Models that draft for one other model, their target, whose states they read.

They were trained for it, and share with it what their files lack: its embeddings, its output
projection, or its keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from weft import graph as G
from weft.errors import ContextError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import DraftConfig
from weft.llm.models import common
from weft.llm.models.architecture import EMBEDDING, OUTPUT, Bound, Drafter
from weft.llm.models.common import linear
from weft.llm.models.gemma import Gemma4, SharedAttention, gemma4_layers
from weft.llm.models.parts import EACH_HEAD, RMS, Attention, Gated, linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need


def _drafts(c: ModelConfig) -> DraftConfig:
    assert c.drafts is not None
    return c.drafts


def _target_layers(keys: Keys) -> tuple[int, ...]:
    """The layers whose inputs are read; empty if the file does not say which."""
    if f"{keys.arch}.target_layers" not in keys.file.metadata:
        return ()
    given = keys.file.get_array(f"{keys.arch}.target_layers")
    whole = np.issubdtype(given.dtype, np.integer) and 1 <= len(given) <= MOST_TAKEN
    layers = tuple(int(il) for il in given) if whole else ()
    if not layers or min(layers) < 0 or len(set(layers)) < len(layers):
        raise keys.bad("target_layers", layers, f"1 to {MOST_TAKEN} different layers")
    return layers


def _rows(keys: Keys, name: str, i: int) -> int:
    """The size `i`, innermost first, of a tensor; 0: the file has none of that name."""
    info = keys.file.tensors.get(name)
    return 0 if info is None else info.ne[i]


MOST_TAKEN = 64
"""Maximum number of layers whose inputs a model that drafts reads."""
MOST_BLOCK = 256
"""Maximum number of tokens of a block that is guessed at once."""

# EAGLE-3 (arXiv 2503.01840): one LLaMA layer, whose attention reads the token at p + 1 beside the
# state of the token at p. That is a projection of the inputs of three layers of the target, and in
# later guesses the output of the layer itself.
#
#     g = fc [h_a; h_b; h_c]        x = [norm(embedding(next token)); norm(g)]
#     y = g + attention(x)          g' = y + feed_forward(norm(y))         logits = head(norm(g'))


def configure_eagle3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets what is read of the target, whose width the file's matrix tells."""
    if c.n_layer != 1:
        raise keys.bad("block_count", c.n_layer, "1")
    layers = _target_layers(keys)
    if layers and len(layers) != 3:
        raise keys.bad("target_layers", layers, "three layers")
    wide = _rows(keys, "fc.weight", 0)
    drafts = DraftConfig(
        keys.count("target_hidden_size", max(wide // 3, 1)),
        c.n_embd,
        layers or (0, 0, 0),
        n_vocab=_rows(keys, "d2t", 0),
        norm_before_residual=keys.flag("norm_before_residual", False),
    )
    return replace(c, drafts=drafts)


class Eagle3(Drafter):
    """One layer that reads a token beside the state of the token before."""

    def bound(self, c: ModelConfig, own: Weights, target: ModelConfig, shared: Weights) -> Bound:
        drafts = _drafts(c)
        if not any(drafts.layers):  # those that its makers take by default
            n = target.n_layer
            c = replace(c, drafts=replace(drafts, layers=(2, n // 2, n - 3)))
        return super().bound(c, own, target, shared)

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from self.vocabulary(c)
        yield from linear_rows("fc", _drafts(c).n_read, c.n_embd)
        yield maybe("enc.output_norm.weight", _drafts(c).n_read)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
            yield need(f"blk.{il}.{name}.weight", c.n_embd)
        n_q, n_k, n_v = c.n_head(il) * c.d_k(il), c.n_embd_k(il), c.n_embd_v(il)
        for name, n_out in (("q", n_q), ("k", n_k), ("v", n_v)):
            yield from linear_rows(f"blk.{il}.attn_{name}", 2 * c.n_embd, n_out)
        yield from linear_rows(f"blk.{il}.attn_output", c.n_head(il) * c.d_v(il), c.n_embd)
        yield from self.feed_forward.rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        g, layer = step.states_in, w.layer(0)
        assert g is not None
        if step.fused:
            if "enc.output_norm.weight" in w:
                g = self.normed(step, w, "enc.output_norm", g)
            g = linear(w, "fc", g)
        e = self.normed(step, layer, "attn_norm", common.embed(step, w))
        h = self.normed(step, layer, "attn_norm_2", g)
        y = self.attention(step, w, 0, G.concat(e, h, 0))
        x = G.add(y, h if _drafts(step.config).norm_before_residual else g)
        x = G.add(x, self.feed_forward(step, w, 0, self.normed(step, layer, "ffn_norm", x)))
        if step.states is not None:
            step.states.append(x)
        x = self.normed(step, w, "output_norm", common.wanted(step, x)).named("result_norm")
        return common.output(w, x)


# The assistants of Gemma 4 (Google, 2026): a few of its layers, without keys and values of their
# own. They attend to what the target's last layers of the same kind have, and all guesses stand at
# the position behind the text.
#
#     x = pre [embedding(token) of the target; state]       state' = post norm(layers(x))


_TARGET_EMBEDDING = "target.token_embd.weight"


def configure_assistant(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets what Gemma 4 has, and that keys and values are the target's."""
    c = gemma4_layers(c, keys)
    n, n_embd = c.n_layer, keys.count("embedding_length_out")
    return replace(
        c,
        embedding_scale=math.sqrt(n_embd),
        heads_kv=(0,) * n,
        # behind the layers: the caches of the target's layers that see everything, and the others
        kv_sources=tuple(n + c.is_windowed(il) for il in range(n)),
        n_embd_layer=0,
        final_softcap=0.0,
        drafts=DraftConfig(n_embd, n_embd, shares_cache=True),
    )


class Assistant(Gemma4, Drafter):
    """Layers that attend to the keys and values of the target."""

    def bound(self, c: ModelConfig, own: Weights, target: ModelConfig, shared: Weights) -> Bound:
        c, _ = Drafter.bound(self, c, own.joined({OUTPUT: own[EMBEDDING]}), target, shared)
        kinds = {c.is_windowed(il): il for il in range(c.n_layer)}
        for windowed, il in kinds.items():
            other = _last(target, windowed)
            if other is None:
                what = "with a window" if windowed else "that see everything"
                raise ContextError(f"it attends to layers {what}, which the model has not")
            theirs, n_kv = target.d_k(other), target.n_head_kv(other)
            if c.d_k(il) != theirs or c.n_head(il) % n_kv:
                raise ContextError(
                    f"its layer {il} has {c.n_head(il)} heads of {c.d_k(il)} elements, and layer "
                    f"{other} of the model keys of {n_kv} heads of {theirs}"
                )
        if c.window != target.window and any(c.windowed):
            raise ContextError(f"its window is {c.window}, and the model's {target.window}")
        return c, {_TARGET_EMBEDDING: shared[EMBEDDING]}

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield need(EMBEDDING, c.n_embd, c.n_vocab)
        yield need("output_norm.weight", c.n_embd)
        yield maybe("rope_freqs.weight", c.rope.n_dims // 2)
        n = _drafts(c).n_embd
        yield from linear_rows("nextn.pre_projection", 2 * n, c.n_embd)
        yield from linear_rows("nextn.post_projection", c.n_embd, n)

    def forward(self, step: Step, w: Weights) -> Tensor:
        c = step.config
        assert step.states_in is not None
        step.kv.update(lent_caches(step))
        x = G.scale(G.get_rows(w[_TARGET_EMBEDDING], step.tokens), c.embedding_scale)
        x = linear(w, "nextn.pre_projection", G.concat(x, step.states_in, 0))
        for il in range(c.n_layer):
            x = self.scaled(w.layer(il), self.block(step, w, il, x))
        x = self.normed(step, w, "output_norm", x)
        if step.states is not None:
            step.states.append(linear(w, "nextn.post_projection", x))
            x = common.wanted(step, x)
        return common.output(w, x.named("result_norm"))


def _last(target: ModelConfig, windowed: bool) -> int | None:
    """The last layer of the target, with a window or without, that has keys of its own."""
    layers = [target.kv_source(il) for il in range(target.n_layer)]
    return next((il for il in reversed(layers) if target.is_windowed(il) == windowed), None)


def lent_caches(step: Step) -> Mapping[int, tuple[Tensor, Tensor]]:
    """The keys and values [d, n_kv, n_head_kv] of the target, as `kv_source` numbers them."""
    lender, found = step.cache.lender, {}
    assert lender is not None
    for windowed in {step.config.is_windowed(il) for il in range(step.config.n_layer)}:
        il = _last(lender.config, windowed)
        assert il is not None
        mask = step.window_mask if windowed else step.mask
        assert mask is not None
        d, n_head, n_kv = lender.config.d_k(il), lender.config.n_head_kv(il), mask.ne[0]
        k, v = (
            G.view_3d(t, d, n_kv, n_head, t.nb[1], t.dtype.row_bytes(d))
            for t in (lender.k[il], lender.v[il])
        )
        found[step.config.n_layer + windowed] = k, v
    return found


# DFlash (block diffusion): layers of Qwen3 that guess a block of tokens at once, the last token of
# the text and masks behind it. The keys and values of the text come from the inputs of several
# layers of the target; the block has its own, from its embeddings, and sees itself whole.
#
#     g = norm(fc [h_a; h_b; ...])        k, v of the text = (K g, V g) of each layer


def configure_dflash(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets what is read of the target, the block and the mask; a block sees itself whole."""
    layers = _target_layers(keys)
    if not layers:
        raise keys.bad("target_layers", "missing", "an array of the layers that it reads")
    unknown = [key for key in ("hyper_connection.count", "selector_rank", "conv_kernel_size")
               if keys.count(key, 0, least=0)]  # fmt: skip
    if unknown or "markov_w1.weight" in keys.file.tensors:
        raise keys.bad(unknown[0] if unknown else "sample_from_anchor", "set",
                       "absent: DSpark and DFlash 2 are not read yet")  # fmt: skip
    causal = keys.flag("attention.causal", False)
    mask = keys.file.get_int("tokenizer.ggml.mask_token_id", -1)
    block = keys.count("block_size", 16, least=2, most=MOST_BLOCK)
    if not 0 <= mask < c.n_vocab:
        raise keys.bad("tokenizer.ggml.mask_token_id", mask, f"in 0..{c.n_vocab - 1}")
    window = c.sliding_window
    if window and not causal:  # half of a window is on each side of a token
        window = 2 * (window - 1)
        if c.sliding_window < block:
            raise keys.bad("attention.sliding_window", c.sliding_window, f"at least {block}")
    n = max(_rows(keys, "fc.weight", 0) // len(layers), 1)
    return replace(
        c,
        causal=causal,
        sliding_window=window,
        drafts=DraftConfig(n, 0, layers, _rows(keys, "d2t", 0), block, mask),
    )


class DFlash(Drafter):
    """Layers that guess a block behind a text whose keys and values come from the target."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from self.vocabulary(c)
        yield from linear_rows("fc", _drafts(c).n_read, c.n_embd)
        yield need("enc.output_norm.weight", c.n_embd)

    def forward(self, step: Step, w: Weights) -> Tensor:
        if step.states_in is None:
            return super().forward(step, w)
        g = self.normed(step, w, "enc.output_norm", linear(w, "fc", step.states_in))
        for il in range(step.config.n_layer):
            self.write(step, w, il, g)
        return common.wanted(step, g).named("result_norm")

    def write(self, step: Step, w: Weights, il: int, g: Tensor) -> None:
        """Writes the keys and values of layer `il` that g [n_embd, n_tokens] gives."""
        c, layer, n = step.config, w.layer(il), g.ne[1]
        k, v = (
            G.reshape(linear(layer, f"attn_{name}", g), d, c.n_head_kv(il), n)
            for name, d in (("k", c.d_k(il)), ("v", c.d_v(il)))
        )
        k = common.rope(step, w, EACH_HEAD(c, layer, "attn_k_norm", k), il)
        for x, cache in ((k, step.cache.k[il]), (v, step.cache.v[il])):
            rows = G.reshape(x, cache.ne[0], n)
            values = cache is step.cache.v[il]
            d = c.d_v(il) if values else c.d_k(il)
            rows = common.spread(step.cache, cache, rows, d, values=values)
            step.writes.append(G.set_rows(cache, rows, step.cells_of(il)))


ARCHITECTURES = {
    "eagle3": Eagle3(RopeMode.NORMAL, configure_eagle3),
    "gemma4-assistant": Assistant(
        RopeMode.NEOX, configure_assistant, attention=SharedAttention(EACH_HEAD),
        feed_forward=Gated(G.geglu), norm=RMS, after=("post_attention_norm", "post_ffw_norm"),
    ),
    "dflash": DFlash(RopeMode.NEOX, configure_dflash, attention=Attention(EACH_HEAD)),
}  # fmt: skip
