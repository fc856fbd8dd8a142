"""The parts of which architectures are composed.

`rows(c, il)` lists the weights of a part in layer `il`, with sizes innermost first. The call
`part(step, w, il, x)` computes it from x [n_embd, n_tokens] to the same sizes; `w` has the weights
of the whole model. `experts.py` has mixtures of experts, `step.py` what recurrent layers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models import common
from weft.llm.models.common import linear
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass


class Part(Protocol):
    """One half of a block: attention, a feed-forward layer, or a replacement of one of them."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of layer `il`."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The part, from x [n_embd, n_tokens] to the same sizes."""


# ---- norms ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm, or a LayerNorm if `centred`; if `biased`, files may have a bias."""

    centred: bool = False
    biased: bool = False
    gains: bool = True
    """False: the norm has no learned gains, and the file no tensors for it."""

    def rows(self, name: str, *sizes: int, optional: bool = False) -> Iterator[Row]:
        """The gain and the bias."""
        if not self.gains:
            return
        yield (maybe if optional else need)(f"{name}.weight", *sizes)
        if self.biased:
            yield maybe(f"{name}.bias", *sizes)

    def __call__(self, c: ModelConfig, w: Weights, name: str, x: Tensor) -> Tensor:
        """Norms x along its innermost dimension."""
        if not self.gains:
            return G.norm(x, c.norm_eps) if self.centred else G.rms_norm(x, c.rms_eps)
        if self.centred:
            return common.layer_norm(w, name, x, c.norm_eps)
        return common.norm(w, name, x, c.rms_eps)


RMS, LAYER = Norm(), Norm(centred=True, biased=True)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm of queries and keys in front of the rotation (arXiv 2302.05442)."""

    norm: Norm = RMS
    whole: bool = False
    """True norms all heads of a token at once, False each head by itself."""
    own_gains: bool = False
    """True if each head has gains of its own."""
    optional: bool = False
    """True if some files have none."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The gains for queries and for keys."""
        for name, n_head in (("q", c.n_head(il)), ("k", c.n_head_kv(il))):
            d = c.d_k(il)
            sizes = (d * n_head,) if self.whole else (d, n_head) if self.own_gains else (d,)
            yield from self.norm.rows(f"blk.{il}.attn_{name}_norm", *sizes, optional=self.optional)

    def __call__(self, c: ModelConfig, w: Weights, name: str, x: Tensor) -> Tensor:
        """Norms x [d, n_head, n_tokens] by the weights `w` of the layer."""
        if self.optional and f"{name}.weight" not in w:
            return x
        if not self.whole:
            return self.norm(c, w, name, x)
        d, n_head, n_tokens, _ = x.ne
        flat = G.reshape(x if x.is_contiguous else G.cont(x), d * n_head, n_tokens)
        return G.reshape(self.norm(c, w, name, flat), d, n_head, n_tokens)


EACH_HEAD, WHOLE = HeadNorm(), HeadNorm(whole=True)
LAYER_NORMED_HEADS = HeadNorm(Norm(centred=True), own_gains=True, optional=True)


# ---- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention (arXiv 2305.13245) with rotary embedding, the output projection
    included."""

    heads: HeadNorm | None = None
    sinks: bool | Literal["some"] = False
    """True if each head has a learned logit that counts only in the denominator of the softmax;
    "some": in some layers."""
    gate: Callable[[Tensor], Tensor] | None = None
    """The activation of the gate of the heads' results; None: there is no gate."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections, norms of heads, and sinks."""
        yield from attention_rows(c, il)
        if self.heads is not None:
            yield from self.heads.rows(c, il)
        if self.sinks:
            row = maybe if self.sinks == "some" else need
            yield row(f"blk.{il}.attn_sinks.weight", c.n_head(il))
        if self.gate is not None:
            n_gates = c.n_head(il) * (1 if c.gated_heads else c.d_v(il))
            yield from linear_rows(f"blk.{il}.attn_gate", c.n_embd, n_gates)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        q, k, v = self.project(step, layer, il, x)
        q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
        if step.config.heads_last:
            q, k, v = self.norm_heads(step.config, layer, q, k, v)
        q = common.sharpened(step, q, il)
        sinks = layer.get("attn_sinks.weight") if self.sinks else None
        y = common.attention(step, il, q, k, v, sinks=sinks)
        return self.output(step, layer, self.gated(step, layer, il, x, y))

    def gated(self, step: Step, w: Weights, il: int, x: Tensor, y: Tensor) -> Tensor:
        """The heads' results y [dv * n_head, n_tokens] times a gate computed from the input x of
        attention, if the architecture has one."""
        if self.gate is None:
            return y
        gate = self.gate(linear(w, "attn_gate", x))
        return gate_heads(y, gate) if step.config.gated_heads else G.mul(y, gate)

    def project(self, step: Step, w: Weights, il: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values before the rotation."""
        q, k, v = common.qkv(step, w, il, x)
        return (q, k, v) if step.config.heads_last else self.norm_heads(step.config, w, q, k, v)

    def norm_heads(
        self, c: ModelConfig, w: Weights, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norms queries and keys, if the architecture does so."""
        if self.heads is not None:
            q, k = self.heads(c, w, "attn_q_norm", q), self.heads(c, w, "attn_k_norm", k)
        return q, k, v

    def output(self, step: Step, w: Weights, y: Tensor) -> Tensor:
        """The output projection of the heads' results y [dv * n_head, n_tokens]."""
        return linear(w, "attn_output", y)


def gate_heads(y: Tensor, gate: Tensor) -> Tensor:
    """The heads' results y [d * n_head, n_tokens], each times its number in gate [n_head,
    n_tokens]."""
    (width, n_tokens), n_head = y.ne[:2], gate.ne[0]
    assert isinstance(width, int) and isinstance(n_head, int)
    heads = G.reshape(y, width // n_head, n_head, n_tokens)
    return G.reshape(G.mul(heads, G.reshape(gate, 1, n_head, n_tokens)), width, n_tokens)


class ClampedAttention(Attention):
    """Attention with clamped queries, keys and values; queries and keys may be normed."""

    def project(self, step: Step, w: Weights, il: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = step.config
        q, k, v = common.qkv(step, w, il, x)
        if c.clamp_qkv > 0:
            whole, (q, k, v) = (q, k, v), (G.clamp(t, -c.clamp_qkv, c.clamp_qkv) for t in (q, k, v))
            for t, clamped in zip(whole, (q, k, v), strict=True):
                clamped.name, t.name = t.name, ""  # parts of one matrix are named when clamped
        return self.norm_heads(c, w, q, k, v)


def attention_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """The projections of layer `il`, with optional biases and scales: of the output, and of q, k
    and v, which may be one matrix with their rows one after another."""
    n_q, n_k, n_v = c.n_head(il) * c.d_k(il), c.n_embd_k(il), c.n_embd_v(il)
    fused = f"blk.{il}.attn_qkv"
    yield maybe(f"{fused}.weight", c.n_embd, n_q + n_k + n_v)
    yield maybe(f"{fused}.bias", n_q + n_k + n_v)
    yield maybe(f"{fused}.scale", 1)
    for name, n_out in (("q", n_q), ("k", n_k), ("v", n_v)):
        yield from linear_rows(f"blk.{il}.attn_{name}", c.n_embd, n_out, unless=f"{fused}.weight")
    yield from linear_rows(f"blk.{il}.attn_output", c.n_head(il) * c.d_v(il), c.n_embd)


def linear_rows(name: str, n_in: int, n_out: int, *, unless: str = "") -> Iterator[Row]:
    """A matrix with optional bias and scale; `unless` as in `need`."""
    yield need(f"{name}.weight", n_in, n_out, unless=unless)
    yield maybe(f"{name}.bias", n_out)
    yield maybe(f"{name}.scale", 1)


# ---- feed-forward layers -------------------------------------------------------------------------


@dataclass(frozen=True)
class Gated:
    """A gated feed-forward layer (arXiv 2002.05202): down(silu(gate x) * up x) with SwiGLU."""

    act: Callable[[Tensor, Tensor], Tensor] = G.swiglu
    suffix: str = ""
    """End of the matrices' names; "_shexp" for shared experts."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return self.sized_rows(c, il, c.n_ff(il))

    def sized_rows(self, c: ModelConfig, il: int, n_ff: int) -> Iterator[Row]:
        """The three matrices, with an inner width of `n_ff`."""
        for name in ("gate", "up"):
            yield from linear_rows(f"blk.{il}.ffn_{name}{self.suffix}", c.n_embd, n_ff)
        yield from linear_rows(f"blk.{il}.ffn_down{self.suffix}", n_ff, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, s = w.layer(il), self.suffix
        inside = self.act(linear(layer, f"ffn_gate{s}", x), linear(layer, f"ffn_up{s}", x))
        return linear(layer, f"ffn_down{s}", self.inner(step, layer, inside))

    def inner(self, step: Step, w: Weights, inside: Tensor) -> Tensor:
        """Changes the input of the last matrix, [n_ff, n_tokens]; here not at all."""
        return inside


@dataclass(frozen=True)
class FusedGated:
    """A gated feed-forward layer whose gate is the first half of `ffn_up`."""

    act: Callable[[Tensor], Tensor] = G.swiglu
    suffix: str = ""
    """End of the matrices' names; "_shexp" for shared experts."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return self.sized_rows(c, il, c.n_ff(il))

    def sized_rows(self, c: ModelConfig, il: int, n_ff: int) -> Iterator[Row]:
        """The two matrices, with an inner width of `n_ff`."""
        yield from linear_rows(f"blk.{il}.ffn_up{self.suffix}", c.n_embd, 2 * n_ff)
        yield from linear_rows(f"blk.{il}.ffn_down{self.suffix}", n_ff, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, s = w.layer(il), self.suffix
        return linear(layer, f"ffn_down{s}", self.act(linear(layer, f"ffn_up{s}", x)))


def squared_relu(x: Tensor) -> Tensor:
    """Computes max(x, 0) squared (arXiv 2109.08668)."""
    return G.sqr(G.relu(x))


@dataclass(frozen=True)
class Mlp:
    """A feed-forward layer without a gate: down(act(up x))."""

    act: Callable[[Tensor], Tensor] = G.gelu
    suffix: str = ""
    """End of the matrices' names; "_shexp" for shared experts."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return self.sized_rows(c, il, c.n_ff(il))

    def sized_rows(self, c: ModelConfig, il: int, n_ff: int) -> Iterator[Row]:
        """The two matrices, with an inner width of `n_ff`."""
        yield from linear_rows(f"blk.{il}.ffn_up{self.suffix}", c.n_embd, n_ff)
        yield from linear_rows(f"blk.{il}.ffn_down{self.suffix}", n_ff, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, s = w.layer(il), self.suffix
        inside = self.act(linear(layer, f"ffn_up{s}", x))
        return linear(layer, f"ffn_down{s}", self.inner(layer, inside))

    def inner(self, w: Weights, inside: Tensor) -> Tensor:
        """Changes the input of the last matrix, [n_ff, n_tokens]; here not at all."""
        return inside


@dataclass(frozen=True)
class Head:
    """Computes the scores of a pooled text, out(norm(act(dense x))), or its embedding through the
    dense layers of the file. Files may lack any of these layers."""

    act: Callable[[Tensor], Tensor] = G.tanh
    softmax: bool = False
    """True if scores are probabilities."""

    def rows(self, c: ModelConfig) -> Iterator[Row]:
        """The layers that the file has."""
        n_in = c.n_embd
        for name, n_out in zip(("cls", "cls.output"), c.classifier, strict=True):
            if n_out:
                yield need(f"{name}.weight", n_in, n_out)
                yield maybe(f"{name}.bias", n_out)
                n_in = n_out
        if any(c.classifier):
            yield maybe("cls.norm.weight", c.n_embd)
        n_in = c.n_embd
        for number, n_out in enumerate(c.dense, 2):
            yield need(f"dense_{number}.weight", n_in, n_out)
            yield maybe(f"dense_{number}.bias", n_out)
            n_in = n_out

    def scores(self, c: ModelConfig, w: Weights, x: Tensor) -> Tensor:
        """The scores [n_scores, n_rows] of pooled rows x [n_embd, n_rows]."""
        if c.classifier[0]:
            x = self.activate(w, common.linear(w, "cls", x))
        if "cls.norm.weight" in w:
            x = common.layer_norm(w, "cls.norm", x, c.norm_eps)
        if c.classifier[1]:
            x = common.linear(w, "cls.output", x)
        return G.soft_max(x) if self.softmax else x

    def activate(self, w: Weights, x: Tensor) -> Tensor:
        """The activation of the classifier's first layer."""
        return self.act(x)

    def dense(self, c: ModelConfig, w: Weights, x: Tensor) -> Tensor:
        """The embedding [n_out, n_rows] from pooled rows x [n_embd, n_rows]."""
        for number, _ in enumerate(c.dense, 2):
            x = common.linear(w, f"dense_{number}", x)
        return x
