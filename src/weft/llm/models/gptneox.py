"""GPT-NeoX (arXiv 2204.06745) and Pythia (arXiv 2304.01373): rotation of a part of each head, and
attention and feed-forward layer side by side, each behind its own LayerNorm.

`use_parallel_residual` = false puts them one after another, as in GPT-2."""

from __future__ import annotations

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.parts import LAYER, Mlp
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


class GptNeox(Architecture):
    """The feed-forward layer has the input of attention, unless the metadata says otherwise."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y = last(step, il, x, y)
        attended = G.add(x, y)
        read = x if step.config.parallel_residual else attended
        y = self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm", read))
        return G.add(attended, y)


ARCHITECTURES = {"gptneox": GptNeox(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp())}
