"""The layers behind the pooling of a text: classifiers, and dense layers of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models import common
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

__all__ = ["Head"]


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
