"""HRM-Text (Sapient, 2026; arXiv 2506.21734): two stacks of layers, a fast and a slow one, that run
several times each, and cache keys and values each time. Norms have no gains, and the results of
heads have a gate.

    z_l = fast(z_l + z_h)  some times, then  z_h = slow(z_h + z_l),  and all of it some times

Text is read causally, as transformers does where no token types are given.
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
from weft.llm.models.parts import Attention, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets how often stacks run; a layer of the config is one run of a layer of a stack."""
    size, n_slow, n_fast = (
        keys.count(f"hrm.{name}", most=1 << 10)
        for name in ("layers_per_stack", "h_cycles", "l_cycles")
    )
    n_runs = size * n_slow * (n_fast + 1)
    if c.n_layer != n_runs:
        raise keys.bad("block_count", c.n_layer, f"{n_runs}, the runs of all layers")
    return replace(c, cycles=(size, n_slow, n_fast))


class Stacks(Architecture):
    """Layers of two stacks, first the layers of the fast one, which run in cycles."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        yield need("hrm.z_l_init", c.n_embd)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer, which the file has once for all runs."""
        if il < 2 * c.cycles[0]:
            yield from super().block_rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        """Computes logits [n_vocab, n_outputs] from tokens."""
        size, n_slow, n_fast = step.config.cycles
        w = for_all_runs(step.config, w)
        slow, fast, start = self.embed(step, w), w["hrm.z_l_init"], 0
        for _ in range(n_slow):
            for _ in range(n_fast):
                fast = self.stack(step, w, start, G.add(slow, fast))
                start += size
            slow = self.stack(step, w, start, G.add(slow, fast))
            start += size
        return self.logits(step, w, slow)

    def stack(self, step: Step, w: Weights, start: int, x: Tensor) -> Tensor:
        """The runs of a stack's layers from `start` on, and a norm."""
        for il in range(start, start + step.config.cycles[0]):
            x = common.steered(step, il, self.block(step, w, il, x))
        return self.normed(step, w, "stack_norm", x)


def for_all_runs(c: ModelConfig, w: Weights) -> Weights:
    """The weights of each run of a layer, the same for all runs."""
    size, _, n_fast = c.cycles
    leaves = {name: w[name] for name in w if not name.startswith("blk.")}
    for il in range(c.n_layer):
        is_slow = il // size % (n_fast + 1) == n_fast
        layer = w.layer(il % size + is_slow * size)
        leaves |= {f"blk.{il}.{name}": layer[name] for name in layer}
    return Weights(leaves, scales=w.scales)


ARCHITECTURES = {
    "hrm_text": Stacks(
        RopeMode.NEOX,
        configure,
        norm=Norm(gains=False),
        attention=Attention(gate=G.sigmoid),
        last_norm="",
    )
}
