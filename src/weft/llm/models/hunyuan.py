"""Hunyuan (arXiv 2411.02265, and Tencent, 2025): LLaMA's blocks with an RMS norm of each query and
key head behind the rotation; the mixture of experts of A13B has a shared expert. Hy 3 (hy_v3,
Tencent, 2026) norms heads in front of the rotation, and has experts chosen by sigmoids and a
learned bias behind dense layers. Maincoder (Maincode, 2025) is Hunyuan's dense model, with pairs of
adjacent elements that rotate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import EACH_HEAD, Attention
from weft.llm.weights import Row, maybe

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets where heads are normed."""
    return replace(c, heads_last=True)


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of the shared expert as well, which is that of dense layers if not stated."""
    moe = require_experts(c)
    moe = replace(moe, n_ff_shared=moe.n_ff_shared or c.n_ff())
    return replace(c, heads_last=True, moe=moe)


def configure_v3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets what no key has: the number of dense layers, by their tensors, that weights are
    sigmoids, and the width of the shared expert if it is not stated."""
    moe = require_experts(c)
    sparse = (f"blk.{il}.ffn_gate_inp.weight" in keys.file.tensors for il in range(c.n_layer))
    n_dense = next((il for il, has_experts in enumerate(sparse) if has_experts), moe.n_dense)
    sigmoid = moe.sigmoid or f"{c.arch}.expert_gating_func" not in keys.file.metadata
    n_shared = moe.n_ff_shared or moe.n_ff
    return replace(c, moe=replace(moe, n_dense=n_dense, sigmoid=sigmoid, n_ff_shared=n_shared))


class BareBias(Experts):
    """A mixture whose files call the bias `exp_probs_b`, without `.bias`."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Router, experts and the bias."""
        yield from super().rows(c, il)
        if not require_experts(c).is_dense(il):
            yield maybe(f"blk.{il}.exp_probs_b", require_experts(c).n_expert)


ARCHITECTURES = {
    "hunyuan-dense": Architecture(RopeMode.NEOX, configure, attention=Attention(EACH_HEAD)),
    "hunyuan-moe": Architecture(
        RopeMode.NEOX,
        configure_experts,
        attention=Attention(EACH_HEAD),
        feed_forward=Experts(dense=None, shared="added"),
    ),
    "hy_v3": Architecture(
        RopeMode.NEOX,
        configure_v3,
        attention=Attention(EACH_HEAD),
        feed_forward=BareBias(shared="added", renormalise=False),
    ),
    "maincoder": Architecture(RopeMode.NORMAL, configure, attention=Attention(EACH_HEAD)),
}
