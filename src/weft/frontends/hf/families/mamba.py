"""Mamba and Mamba 2: layers with a state instead of attention."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, pieces_or_bpe

__all__ = ["FAMILIES"]


def _inner(c: Config) -> int:
    return int(
        c.first("mamba_d_ssm", "intermediate_size", "d_inner")
        or (c.first("mamba_expand", "expand") or 2) * c.n_embd
    )


def _keys(c: Config) -> Pairs:
    yield "context_length", 1 << 20  # for those who ask for the default
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", 0
    yield "attention.head_count", 0
    yield "block_count", c.n_layer
    yield "ssm.conv_kernel", c.first("conv_kernel", "d_conv") or 4
    yield "ssm.inner_size", _inner(c)


def _keys1(c: Config) -> Pairs:
    yield from _keys(c)
    yield "ssm.state_size", c.first("state_size", "d_state") or 16
    yield "ssm.time_step_rank", c.first("time_step_rank", "dt_rank") or -(-c.n_embd // 16)
    yield "attention.layer_norm_rms_epsilon", _epsilon(c)
    yield "ssm.dt_b_c_rms", c.get("model_type") == "falcon_mamba"
    yield "general.file_type", None


def _keys2(c: Config) -> Pairs:
    yield from _keys(c)
    yield "ssm.state_size", c.first("state_size", "d_state") or 128
    yield "ssm.time_step_rank", _inner(c) // (c.first("mamba_d_head", "head_dim") or 64)
    yield "ssm.group_count", _groups(c)
    yield "attention.layer_norm_rms_epsilon", _epsilon(c)
    yield "general.file_type", None


def _epsilon(c: Config) -> float:
    return float(c.first("layer_norm_epsilon", "rms_norm_eps") or 1e-5)


def _groups(c: Config) -> int:
    return int(c.first("n_groups") or 1)


def _change(c: Config, name: str, values: Values) -> Named:
    if name.endswith(".A_log"):  # decays are kept as logarithms
        values = values.through(lambda x: -np.exp(x.astype(np.float64)).astype(np.float32))
    if name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    if name.endswith("conv1d.weight"):  # one filter per channel: [n, 1, width]
        values = values.reshaped(values.shape[0], values.shape[-1])
    if c.cls.startswith("Mamba2"):
        if name.endswith((".A_log", ".D")):
            values = values.reshaped(*values.shape, 1)
        elif name.endswith("mixer.norm.weight"):
            values = values.reshaped(_groups(c), _inner(c) // _groups(c))
    if name == "lm_head.weight" and c.get("tie_word_embeddings", True):
        return
    yield name, values


def _vocab(c: Config) -> Vocabulary:
    yield from pieces_or_bpe(c)


FAMILIES = {
    "mamba": Family("mamba", common=_keys1, change=_change, vocab=_vocab),
    "mamba2": Family("mamba2", common=_keys2, change=_change, vocab=_vocab),
}
