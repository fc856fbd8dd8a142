"""Mixtures of experts: a router chooses a few experts for each token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

from weft import graph as G
from weft.errors import FormatError
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import MoeConfig
from weft.llm.models.common import adapted, linear, norm
from weft.llm.models.parts import FusedGated, Gated, Mlp, Part, linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

_LEAST_SUM = 2.0**-14
"""Minimum divisor of expert weights."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, in layers behind the dense ones, if the metadata has experts."""

    dense: Part | None = Gated()
    """The feed-forward part of dense layers; None: every file has experts."""
    shared: Literal["", "added", "averaged", "gated"] = ""
    """Experts that every token uses: `gated` by a sigmoid of their own, or `added` or `averaged`
    with the mixture if the file has them; empty: there are none."""
    softmax_first: bool = True
    """True takes the softmax over all experts, False over the chosen ones only."""
    renormalise: bool = True
    """True scales the weights of the chosen experts to sum 1 (Mixtral, arXiv 2401.04088), unless
    the metadata says otherwise."""
    balanced: bool = False
    """True if files may have a bias that affects the choice of experts but not their weights."""
    oai: bool = False
    """True uses gpt-oss' clamped activation instead of `act`."""
    weigh_inputs: bool = False
    """True multiplies the experts' inputs, not their outputs, by the weights."""
    act: Callable[..., Tensor] = G.swiglu
    """The activation of gate and up, which may be one matrix, one after another."""
    shared_act: Callable[[Tensor, Tensor], Tensor] = G.swiglu
    """The activation of the experts that every token uses."""
    latent: tuple[str, str, str] = ("ffn_latent_down", "ffn_latent_up", "")
    """Names of the projections around experts with an input of another width, and of the norm
    between them, which some files have; empty: no file has one."""
    plain: Callable[[Tensor], Tensor] | None = None
    """The activation of experts without a gate, down(act(up x)); None: they have one."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Router and stacked experts, with optional biases; or the weights of the dense layer.

        Raises FormatError for a file that must have experts and has none."""
        if self.dense is not None and (c.moe is None or c.moe.is_dense(il)):
            yield from self.dense.rows(c, il)
            return
        moe = require_experts(c)
        yield need(f"blk.{il}.ffn_gate_inp.weight", c.n_embd, moe.n_expert)
        yield maybe(f"blk.{il}.ffn_gate_inp.bias", moe.n_expert)
        n_embd = moe.n_latent or c.n_embd
        if moe.n_latent:
            yield from linear_rows(f"blk.{il}.{self.latent[0]}", c.n_embd, n_embd)
            yield from linear_rows(f"blk.{il}.{self.latent[1]}", n_embd, c.n_embd)
            if self.latent[2]:
                yield maybe(f"blk.{il}.{self.latent[2]}.weight", n_embd)
        both = "" if self.plain else f"blk.{il}.ffn_gate_up_exps.weight"
        matrices = [("ffn_up_exps", n_embd, moe.n_ff), ("ffn_down_exps", moe.n_ff, n_embd)]
        if both:
            yield maybe(both, n_embd, 2 * moe.n_ff, moe.n_expert)
            matrices.insert(0, ("ffn_gate_exps", n_embd, moe.n_ff))
        for name, n_in, n_out in matrices:
            unless = "" if "down" in name else both
            yield need(f"blk.{il}.{name}.weight", n_in, n_out, moe.n_expert, unless=unless)
            yield maybe(f"blk.{il}.{name}.bias", n_out, moe.n_expert)
            yield maybe(f"blk.{il}.{name}.scale", moe.n_expert)
        if moe.n_ff_small:
            n, n_small = moe.n_ff_small, moe.n_expert // moe.n_sharing
            for name, n_in, n_out in (("gate", n_embd, n), ("up", n_embd, n), ("down", n, n_embd)):
                yield need(f"blk.{il}.ffn_{name}_chexps.weight", n_in, n_out, n_small)
        if self.balanced:
            yield maybe(f"blk.{il}.exp_probs_b.bias", moe.n_expert)
        if self.shared == "gated":
            yield need(f"blk.{il}.ffn_gate_inp_shexp.weight", c.n_embd)
        if self._has_shared(moe):
            yield from self._always(c).sized_rows(c, il, moe.n_ff_shared)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The mixture or the dense layer, from x [n_embd, n_tokens] to the same sizes."""
        moe, layer = step.config.moe, w.layer(il)
        if moe is None or (self.dense is not None and moe.is_dense(il)):
            assert self.dense is not None
            return self.dense(step, w, il, x)
        if self.shared == "gated":
            gate = G.sigmoid(G.mul_mat(layer["ffn_gate_inp_shexp.weight"], x))  # [1, n_tokens]
            always = G.mul(self._always(step.config)(step, w, il, x), gate)
            return G.add(self.routed(layer, x, moe), always)
        return self.with_shared(step, w, il, x, self.routed(layer, x, moe))

    def with_shared(self, step: Step, w: Weights, il: int, x: Tensor, y: Tensor) -> Tensor:
        """The mixture y with the experts that every token uses, if there are such."""
        if not self._has_shared(require_experts(step.config)):
            return y
        y = G.add(y, self._always(step.config)(step, w, il, x))
        return G.scale(y, 0.5) if self.shared == "averaged" else y

    def _always(self, c: ModelConfig) -> Gated | FusedGated | Mlp:
        """The experts that every token uses, as one layer."""
        if c.fused_gate:
            return FusedGated(suffix="_shexp")
        return Mlp(self.plain, "_shexp") if self.plain else Gated(self.shared_act, "_shexp")

    def _has_shared(self, moe: MoeConfig) -> bool:
        return self.shared == "gated" or (self.shared != "" and moe.n_ff_shared > 0)

    def routed(self, w: Weights, x: Tensor, moe: MoeConfig) -> Tensor:
        """The mixture, with the projections around it if there are such."""
        if not moe.n_latent:
            return self.mixture(w, x, moe)
        scores = linear(w, "ffn_gate_inp", x)
        down, up, normed = self.latent
        y = self.mixture(w, linear(w, down, x), moe, scores)
        if normed and f"{normed}.weight" in w:
            y = norm(w, normed, y, moe.latent_eps)
        return linear(w, up, y)

    def mixture(
        self,
        w: Weights,
        x: Tensor,
        moe: MoeConfig,
        scores: Tensor | None = None,
        best: Tensor | None = None,
    ) -> Tensor:
        """The outputs of the chosen experts for each token of x [n_embd, n_tokens], summed with the
        weights of the router, whose `scores` [n_expert, n_tokens] may be given, and so may the
        experts `best` i32 [n_used, n_tokens]."""
        n_embd, n_tokens = x.ne[0], x.ne[1]
        n_used = moe.n_used
        if scores is None:
            scores = linear(w, "ffn_gate_inp", x)  # [n_expert, n_tokens]
        if moe.sigmoid:
            scores = G.sigmoid(scores)
        elif moe.root:
            scores = G.sqrt(G.softplus(scores))
        elif self.softmax_first:
            scores = G.soft_max(scores)
        best = _best_experts(w, scores, moe) if best is None else best
        weights = self.weigh(scores, best, moe)
        weights = G.reshape(weights, 1, n_used, n_tokens)
        x = G.reshape(x, n_embd, 1, n_tokens)
        if self.weigh_inputs:
            x = G.mul(G.repeat(x, (n_embd, n_used, n_tokens, 1)), weights)
        y = through_experts(w, "ffn_down_exps", self.inside(w, x, best), best)
        if moe.n_ff_small:
            y = G.add(y, self.small(w, x, best, moe))
        if not self.weigh_inputs:
            y = G.mul(y, weights)  # [n_embd, n_used, n_tokens]
        parts = [G.view_2d(y, n_embd, n_tokens, y.nb[2], i * y.nb[1]) for i in range(n_used)]
        total = parts[0] if n_used > 1 else G.cont(parts[0])
        for part in parts[1:]:
            total = G.add(total, part)
        return total

    def weigh(self, scores: Tensor, best: Tensor, moe: MoeConfig) -> Tensor:
        """The weights of the experts `best` i32 [n_used, n_tokens], from the scores of all."""
        n_tokens = scores.ne[1]
        columns = G.reshape(scores, 1, moe.n_expert, n_tokens)
        weights = G.reshape(G.get_rows(columns, best), moe.n_used, n_tokens)
        if not self.softmax_first:
            weights = G.soft_max(weights)
        elif self.renormalise if moe.renormalise is None else moe.renormalise:
            total = G.sum_rows(weights)
            # the sum of sigmoids may be near 0, that of a softmax is not
            if moe.sigmoid or moe.root:
                total = G.clamp(total, _LEAST_SUM, math.inf)
            weights = G.div(weights, total)
        return G.scale(weights, moe.scale) if moe.scale != 1.0 else weights

    def small(self, w: Weights, x: Tensor, best: Tensor, moe: MoeConfig) -> Tensor:
        """The outputs of the small experts that belong to the experts `best`, [n_embd, n_used,
        n_tokens]."""
        # half a number more, so that rounding leaves the first expert of each where it is
        n = moe.n_sharing
        ids = G.cast(G.floor(G.scale(G.cast(best, "f32"), 1 / n, 0.5 / n)), "i32")
        gate, up = (through_experts(w, f"ffn_{name}_chexps", x, ids) for name in ("gate", "up"))
        y = through_experts(w, "ffn_down_chexps", self.act(gate, up), ids)
        return G.scale(y, moe.small_scale)

    def inside(self, w: Weights, x: Tensor, best: Tensor) -> Tensor:
        """The input of the last matrix of the experts `best`, [n_ff, n_used, n_tokens]."""
        if self.plain is not None:
            return self.plain(through_experts(w, "ffn_up_exps", x, best))
        if "ffn_gate_up_exps.weight" in w:
            return self.act(through_experts(w, "ffn_gate_up_exps", x, best))
        gate = through_experts(w, "ffn_gate_exps", x, best)
        up = through_experts(w, "ffn_up_exps", x, best)
        return G.swiglu_oai(gate, up, alpha=1.702, limit=7.0) if self.oai else self.act(gate, up)


def _best_experts(w: Weights, scores: Tensor, moe: MoeConfig) -> Tensor:
    """The experts of each token, i32 [n_used, n_tokens], by scores [n_expert, n_tokens].

    A bias learned for balance takes part in the choice, not in the weights. With groups, only those
    are chosen from whose best two experts have the largest sum (DeepSeek-V3, arXiv 2412.19437), or,
    where weights are a softmax, whose best expert is best (DeepSeek-V2, arXiv 2405.04434)."""
    n_expert, n_tokens, _, _ = scores.ne
    bias = w.get("exp_probs_b.bias", w.get("exp_probs_b"))
    if bias is not None:
        scores = G.add(scores, bias)
    if moe.n_group > 1:
        size = moe.n_expert // moe.n_group
        groups = G.reshape(scores, size, moe.n_group, n_tokens)
        n_best = 2 if moe.sigmoid else 1
        columns = G.reshape(groups, 1, size, moe.n_group, n_tokens)
        best = G.get_rows(columns, G.top_k(groups, n_best))
        sums = G.sum_rows(G.reshape(best, n_best, moe.n_group, n_tokens))
        chosen = G.top_k(G.reshape(sums, moe.n_group, n_tokens), moe.n_group_used)
        kept = G.get_rows(groups, chosen)  # [size, n_group_used, n_tokens]
        scores = G.set_rows(G.fill(groups, -math.inf), kept, chosen)
        scores = G.reshape(scores, n_expert, n_tokens)
    return G.top_k(scores, moe.n_used)


def through_experts(w: Weights, name: str, x: Tensor, ids: Tensor) -> Tensor:
    """Multiplies x [n, n_used or 1, n_tokens] by the matrices `name` of the experts `ids` i32
    [n_used, n_tokens], with their scales and biases if the file has them."""
    y = G.mul_mat_id(w[f"{name}.weight"], x, ids)
    if f"{name}.scale" in w:  # a number for each expert
        n_used, n_tokens = ids.ne[0], ids.ne[1]
        column = G.reshape(w[f"{name}.scale"], 1, w[f"{name}.scale"].ne[0])
        scales = G.get_rows(column, G.reshape(ids, n_used * n_tokens))
        y = G.mul(y, G.reshape(scales, 1, n_used, n_tokens))
    if f"{name}.weight.lora_a" in w:
        columns = G.mul_mat_id(w[f"{name}.weight.lora_a"], x, ids)
        y = G.add(y, adapted(w, f"{name}.weight", columns, ids))
    return G.add_id(y, w[f"{name}.bias"], ids) if f"{name}.bias" in w else y


def require_experts(c: ModelConfig) -> MoeConfig:
    """The sizes of the mixture of experts. Raises FormatError, which names the missing key, if the
    file has none."""
    if c.moe is None:
        raise FormatError(f"metadata key {c.arch}.expert_count is missing; convert the model again")
    return c.moe


def halves_limits(c: ModelConfig, keys: Keys) -> tuple[tuple[float, ...], ...]:
    """For each layer, the limits of the halves of the experts' gated product and of the shared
    experts'; 0: there is none."""
    each = (keys.numbers(f"swiglu_clamp_{name}", c.n_layer, 0.0) for name in ("exp", "shexp"))
    return tuple(zip(*each, strict=True))


def halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and up, which may be one matrix, one after another."""
    if up is not None:
        return gate, up
    n, size = gate.ne[0], gate.dtype.bytes
    assert isinstance(n, int)
    first, second = (
        G.cont(G.view_3d(gate, n // 2, *gate.ne[1:3], *gate.nb[1:3], start * size))
        for start in (0, n // 2)
    )
    return first, second


def limited(limit: float) -> Callable[..., Tensor]:
    """The activation of gate and up in a layer; with a limit of 0 there is none."""

    def act(gate: Tensor, up: Tensor | None = None) -> Tensor:
        gate, up = halves(gate, up)
        return G.mul(G.clamp(G.silu(gate), -math.inf, limit), G.clamp(up, -limit, limit))

    return act if limit > 0 else G.swiglu


class LimitedHalves(Experts):
    """Experts and dense layers with the limits of their layer."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        routed, always = (limited(limit) for limit in step.config.activation[il])
        same = Experts(Gated(always), self.shared, self.softmax_first, self.renormalise,
                       self.balanced, act=routed, shared_act=always)  # fmt: skip
        return same(step, w, il, x)
