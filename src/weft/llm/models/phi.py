"""The Phi models of Microsoft."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, MoeConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import LAYER, FusedGated, Mlp
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]

# Phi-2 (Microsoft, 2023; its shape is phi-1.5's, arXiv 2309.05463): attention and feed-forward
# layer side by side behind one LayerNorm, rotation of a part of each head, biases everywhere.


class Parallel(Architecture):
    """Attention and feed-forward layer read the same normed input."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        normed = self.normed(step, w.layer(il), "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(y, self.feed_forward(step, w, il, normed)), x)


# Phi-3 (arXiv 2404.14219): LLaMA's blocks with q, k and v in one matrix, and gate and up in
# another. Long contexts have LongRoPE (arXiv 2402.13753): a factor for each rotated pair.
#
# All layers see only the sliding window, where there is one (models for 4096 tokens).


def configure_phi3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window of all layers, where it is shorter than the context of training."""
    return replace(c, windowed=(0 < c.sliding_window < c.n_ctx_train,) * c.n_layer)


# Phi-3.5-MoE (arXiv 2404.14219): Phi-3 with LayerNorm, biases, and two of the experts in every
# layer, by SparseMixer (arXiv 2409.12136): each of the two is weighed by a softmax over those
# scores that are nearly as large as its own, the second without the first.


_NEAR = 0.02
"""Maximum relative distance of a score that is nearly as large, twice the jitter of training."""


def configure_phimoe(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the epsilon of norms, which files store as the epsilon of RMS norms. Raises FormatError
    unless tokens use two experts."""
    if require_experts(c).n_used != 2:
        raise keys.bad("expert_used_count", require_experts(c).n_used, "2")
    return replace(c, norm_eps=c.rms_eps)


class Mixer(Experts):
    """Two experts, weighed by SparseMixer."""

    def weigh(self, scores: Tensor, best: Tensor, moe: MoeConfig) -> Tensor:
        """The weights of the experts `best` i32 [2, n_tokens], from the scores of all."""
        n_tokens = scores.ne[1]
        columns = G.reshape(scores, 1, moe.n_expert, n_tokens)
        two = G.reshape(G.get_rows(columns, best), 2, n_tokens)
        middle = G.mean(two)
        half = G.abs(G.sub(middle, row(two, 0)))  # of the distance between the two
        first, second = G.add(middle, half), G.sub(middle, half)
        others = complement(G.step(G.sub(scores, middle)))
        w1 = self.share(scores, first, near(scores, first))
        w2 = self.share(scores, second, G.mul(near(scores, second), others))
        return G.add(G.mul(G.step(G.sub(two, middle)), G.sub(w1, w2)), w2)

    def share(self, scores: Tensor, largest: Tensor, kept: Tensor) -> Tensor:
        """The softmax of the `largest` score [1, n_tokens] among those that are kept."""
        powers = G.mul(G.exp(G.sub(scores, largest)), kept)
        total = G.sum_rows(powers)
        return G.div(G.fill(total, 1.0), total)


def near(scores: Tensor, largest: Tensor) -> Tensor:
    """1 where a score is nearly as large as `largest` [1, n_tokens], 0 elsewhere."""
    distance = G.scale(G.sub(scores, largest), -1.0)
    size = G.add(G.relu(G.sub(G.abs(scores), largest)), largest)
    return complement(G.step(G.sub(G.div(distance, size), G.fill(size, _NEAR))))


def complement(flags: Tensor) -> Tensor:
    """1 - flags."""
    return G.scale(flags, -1.0, 1.0)


def row(x: Tensor, i: int) -> Tensor:
    """The elements `i` of each row of x [n, n_tokens]: [1, n_tokens]."""
    return G.cont(G.view_2d(x, 1, x.ne[1], x.nb[1], i * x.dtype.bytes))


ARCHITECTURES = {
    "phi2": Parallel(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp()),
    "phi3": Architecture(RopeMode.NEOX, configure_phi3, feed_forward=FusedGated()),
    "phimoe": Architecture(
        RopeMode.NEOX,
        configure_phimoe,
        norm=LAYER,
        feed_forward=Mixer(dense=None, softmax_first=False),
    ),
}
