"""Granite Switch (IBM, 2026): Granite with adapters of its own, which tokens of the text turn on.

A token of the text names an adapter a; the tokens behind it, and itself, are computed with

    y = W x + B[a] A[a] x

in all matrices of attention and feed-forward layer, where adapter 0 is none. The number of the
adapter is what one more head of attention reads, whose keys are the gain in tokens that name an
adapter and its negative in others, and whose values are the number of the adapter or 0. So it is
the rounded mean of the adapters that are named in the text. A token that names an adapter has the
embedding of another token.

The head is a layer of the cache behind the model's own layers, but is computed in front of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import ContextError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import SwitchConfig
from weft.llm.models import common
from weft.llm.models.architecture import scaled
from weft.llm.models.common import linear
from weft.llm.models.llama import Granite, configure_granite
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

_MOST = 4096
"""Maximum number of adapters, and maximum rank of one."""
_EXACT = 1 << 24
"""Numbers of tokens below this are exact as float32."""


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the adapters and the layer of the head that chooses one."""
    c = configure_granite(c, keys)
    n = keys.count("adapters.count", most=_MOST)
    lists = []
    for name in ("activate", "substitute"):
        key = f"adapters.token_ids_{name}"
        ids = keys.per_layer(key, n)
        if len(keys.file.get_array(f"{c.arch}.{key}")) != n:
            raise keys.bad(key, "of another length", f"a list of {n} tokens (adapters.count)")
        if max(ids) >= min(c.n_vocab, _EXACT):
            raise keys.bad(key, max(ids), f"below {min(c.n_vocab, _EXACT)}")
        lists.append(ids)
    if len(set(lists[0])) < n:
        raise keys.bad("adapters.token_ids_activate", list(lists[0]), "different tokens")
    rank = keys.count("adapters.lora_rank", most=_MOST)
    gain = keys.number("adapters.router_gain", 15.0, above=0.0)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        n_layer=c.n_layer + 1,
        heads=(*c.heads, 1),
        heads_kv=(*c.heads_kv, 1),
        widths=(*c.widths, 0),
        ropes=(*(c.rope,) * c.n_layer, none),
        switch=SwitchConfig(rank, gain, lists[0], lists[1]),
    )


def switch_of(c: ModelConfig) -> SwitchConfig:
    """The adapters, which `configure` has set."""
    assert c.switch is not None
    return c.switch


def switched(w: Weights, il: int, name: str, x: Tensor, ids: Tensor) -> Tensor:
    """The product of the matrix `name` with x [n_in, n_tokens], and of the adapters `ids` i32 [1,
    n_tokens]."""
    y = G.add(linear(w, name, x), delta(w, il, name, x, ids))
    return y.named(f"{name}_switched-{il}")


def delta(w: Weights, il: int, name: str, x: Tensor, ids: Tensor) -> Tensor:
    """The products of adapters with x [n_in, n_tokens]."""
    narrow = G.mul_mat_id(w[f"{name}.lora_a"], G.reshape(x, x.ne[0], 1, x.ne[1]), ids)
    narrow = narrow.named(f"{name}_narrow-{il}")
    y = G.mul_mat_id(w[f"{name}.lora_b"], narrow, ids).named(f"{name}_delta-{il}")
    return G.reshape(y, y.ne[0], x.ne[1])


class Switch(Granite):
    """Layers whose matrices have adapters."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The tensors of a layer; the last one is the head that chooses an adapter, without any."""
        if il == c.n_layer - 1:
            return
        b, n_slots, rank = f"blk.{il}", len(switch_of(c).tokens) + 1, switch_of(c).rank
        n_q, n_kv, n_ff = c.n_head(il) * c.d_k(il), c.n_embd_k(il), c.n_ff(il)
        for name in self.before:
            yield from self.norm.rows(f"{b}.{name}", c.n_embd)
        yield need(f"{b}.attn_qkv.weight", c.n_embd, n_q + 2 * n_kv)
        for name, n_in, n_out in (
            ("attn_q", c.n_embd, n_q),
            ("attn_k", c.n_embd, n_kv),
            ("attn_v", c.n_embd, n_kv),
            ("attn_output", n_q, c.n_embd),
            ("ffn_gate", c.n_embd, n_ff),
            ("ffn_up", c.n_embd, n_ff),
            ("ffn_down", n_ff, c.n_embd),
        ):
            if name[-2:] not in ("_q", "_k", "_v"):
                yield need(f"{b}.{name}.weight", n_in, n_out)
            yield need(f"{b}.{name}.lora_a", n_in, rank, n_slots)
            yield need(f"{b}.{name}.lora_b", rank, n_out, n_slots)

    def forward(self, step: Step, w: Weights) -> Tensor:
        if step.embd is not None:
            raise ContextError(
                "this model chooses adapters by tokens; rows of images cannot stand in their place"
            )
        c, n = step.config, step.config.n_layer - 1
        tokens, ids = self.chosen(step)
        x = G.get_rows(w["token_embd.weight"], tokens)
        x = G.scale(x, c.embedding_scale) if c.embedding_scale else x
        for il in range(n):
            layer = w.layer(il)
            y = self.attend(step, w, il, self.normed(step, layer, "attn_norm", x), ids)
            if il == n - 1 and step.states is None:
                x, y, ids = (common.wanted(step, t) for t in (x, y, ids))
            x = G.add(x, scaled(step, y)).named(f"ffn_inp-{il}")
            y = self.normed(step, layer, "ffn_norm", x)
            gate, up = (switched(layer, il, f"ffn_{name}", y, ids) for name in ("gate", "up"))
            y = G.swiglu(gate, up).named(f"ffn_swiglu-{il}")
            y = switched(layer, il, "ffn_down", y, ids)
            x = common.steered(step, il, G.add(x, scaled(step, y)))
        return self.logits(step, w, x)

    def chosen(self, step: Step) -> tuple[Tensor, Tensor]:
        """The tokens whose embeddings are read, i32 [n_tokens], and the number of each token's
        adapter, i32 [1, n_tokens]."""
        c, s, il = step.config, switch_of(step.config), step.config.n_layer - 1
        n, n_tokens, d = len(s.tokens), step.tokens.ne[0], c.d_k(il)
        ids = G.reshape(G.cast(step.tokens, "f32"), 1, n_tokens)
        # for each adapter, 1 in tokens that name it and 0 in others
        away = G.sub(G.repeat(ids, (n, n_tokens, 1, 1)), G.constant([float(t) for t in s.tokens]))
        away = G.clamp(G.sqr(away), 0.0, 1.0).named("adapters_away")
        named = G.scale(away, -1.0, 1.0).named("adapters_named")

        def summed(factors: list[float]) -> Tensor:
            return G.sum_rows(G.mul(named, G.constant(factors)))  # [1, n_tokens]

        others = [float(b - a) for a, b in zip(s.tokens, s.substitutes, strict=True)]
        tokens = G.reshape(G.cast(G.add(ids, summed(others)), "i32"), n_tokens)
        key = G.scale(summed([1.0] * n), 2.0 * s.gain, -s.gain).named("router_k")
        value = summed([float(i + 1) for i in range(n)]).named("router_v")
        query = G.fill(key, 1.0 / c.kq_scale).named("router_q")
        q, k, v = (
            G.pad(G.reshape(t, 1, 1, n_tokens), (0, 0, 0, 0), (width - 1, 0, 0, 0))
            for t, width in ((query, d), (key, d), (value, c.d_v(il)))
        )
        y = common.attention(step, il, q, k, v)
        mean = G.cont(G.view_2d(y, 1, n_tokens, y.nb[1], 0))
        number = G.floor(G.scale(G.clamp(mean, 0.0, float(n)), 1.0, 0.5))
        return tokens, G.cast(number, "i32").named("adapter_ids")

    def attend(self, step: Step, w: Weights, il: int, x: Tensor, ids: Tensor) -> Tensor:
        """Attention in layer `il`."""
        layer, n_tokens = w.layer(il), x.ne[1]
        parts = []
        for part, both in zip("qkv", common.qkv(step, layer, il, x), strict=True):
            more = G.reshape(delta(layer, il, f"attn_{part}", x, ids), *both.ne[:2], n_tokens)
            parts.append(G.add(G.cont(both), more).named(f"{part.upper()}cur-{il}"))
        q, k, v = parts
        q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
        y = common.attention(step, il, q, k, v)
        return switched(layer, il, "attn_output", y, ids)


ARCHITECTURES = {"graniteswitch": Switch(RopeMode.NORMAL, configure)}
