"""Nanbeige 4.2 (Nanbeige, 2026): LLaMA's blocks, all of which run several times one after another,
with keys and values cached each time and the last norm between the runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets how often the layers run, and whether a norm is between the runs; a layer of the config
    is one run of a layer."""
    n_runs = keys.count("num_loops", 1, most=1 << 10)
    if c.n_layer * n_runs > 1 << 16:
        raise keys.bad("num_loops", n_runs, f"at most {(1 << 16) // c.n_layer}")
    return replace(
        c,
        n_layer=c.n_layer * n_runs,
        heads=c.heads * n_runs,
        heads_kv=c.heads_kv * n_runs,
        widths=c.widths * n_runs,
        cycles=(c.n_layer, n_runs, 0),
        norm_cycles=not keys.flag("skip_loop_final_norm", False),
    )


class Runs(Architecture):
    """Layers that run several times."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer, which the file has once for all runs."""
        if il < c.cycles[0]:
            yield from super().block_rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        """Computes logits [n_vocab, n_outputs] from tokens."""
        c, w = step.config, for_all_runs(step.config, w)
        x = self.embed(step, w)
        for il in range(c.n_layer):
            x = common.steered(step, il, self.block(step, w, il, x))
            if c.norm_cycles and il < c.n_layer - 1 and (il + 1) % c.cycles[0] == 0:
                x = self.normed(step, w, self.last_norm, x)
        return self.logits(step, w, x)


def for_all_runs(c: ModelConfig, w: Weights) -> Weights:
    """The weights of each run of a layer, which are those of the layer."""
    leaves = {name: w[name] for name in w if not name.startswith("blk.")}
    for il in range(c.n_layer):
        layer = w.layer(il % c.cycles[0])
        leaves |= {f"blk.{il}.{name}": layer[name] for name in layer}
    return Weights(leaves, scales=w.scales)


ARCHITECTURES = {"nanbeige": Runs(RopeMode.NORMAL, configure)}
