"""Step 3.5 and 3.7 (StepFun, 2026): three of four layers have a sliding window, another number of
heads and a rotation of their own; the others rotate half of each head. The results of heads have a
gate, and experts, chosen by sigmoids and a learned bias, are behind the first layers. In some
layers the halves of the gated product are limited:

    down(min(silu(gate x), limit) * clamp(up x, -limit, limit))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import Attention, Gated, HeadNorm
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets rotations, limits, and that weights are sigmoids where no key says otherwise. Divisors
    of angles are for layers without a window."""
    moe = require_experts(c)
    if c.rope.n_dims % 4:
        raise keys.bad("rope.dimension_count", c.rope.n_dims, "a multiple of 4")
    half = replace(c.rope, n_dims=c.rope.n_dims // 2)
    local = replace(keys.local_rope(c), factored=False)
    limits = (keys.numbers(f"swiglu_clamp_{name}", c.n_layer, 0.0) for name in ("exp", "shexp"))
    stated = f"{c.arch}.expert_gating_func" in keys.file.metadata
    return replace(
        c,
        gated_heads=True,
        ropes=tuple(local if c.is_windowed(il) else half for il in range(c.n_layer)),
        activation=tuple(zip(*limits, strict=True)),
        moe=replace(moe, sigmoid=moe.sigmoid or not stated),
    )


def limited(limit: float) -> Callable[..., Tensor]:
    """The activation of gate and up in a layer; with a limit of 0 there is none."""

    def act(gate: Tensor, up: Tensor | None = None) -> Tensor:
        if up is None:  # one matrix, one after another
            n, size = gate.ne[0], gate.dtype.bytes
            assert isinstance(n, int)
            gate, up = (
                G.cont(G.view_3d(gate, n // 2, *gate.ne[1:3], *gate.nb[1:3], start * size))
                for start in (0, n // 2)
            )
        return G.mul(G.clamp(G.silu(gate), -math.inf, limit), G.clamp(up, -limit, limit))

    return act if limit > 0 else G.swiglu


class Limited(Experts):
    """Experts and dense layers with the limits of their layer."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The mixture or the dense layer, from x [n_embd, n_tokens] to the same sizes."""
        routed, always = (limited(limit) for limit in step.config.activation[il])
        same = Experts(Gated(always), self.shared, self.softmax_first, self.renormalise,
                       self.balanced, act=routed, shared_act=always)  # fmt: skip
        return same(step, w, il, x)


ARCHITECTURES = {
    "step35": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(HeadNorm(optional=True), gate=G.sigmoid),
        feed_forward=Limited(shared="added", renormalise=False, balanced=True),
    )
}
