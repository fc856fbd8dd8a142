"""Mamba, Mamba 2 and LFM2: layers with a state, in place of attention or in turn with it."""

from __future__ import annotations

from dataclasses import replace

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, pieces_or_bpe


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


def _mamba_keys(c: Config) -> Pairs:
    yield from _keys(c)
    yield "ssm.state_size", c.first("state_size", "d_state") or 16
    yield "ssm.time_step_rank", c.first("time_step_rank", "dt_rank") or -(-c.n_embd // 16)
    yield "attention.layer_norm_rms_epsilon", _epsilon(c)
    yield "ssm.dt_b_c_rms", c.get("model_type") == "falcon_mamba"
    yield "general.file_type", None


def _mamba2_keys(c: Config) -> Pairs:
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


# LFM2: short convolutions and attention in turn, and its mixture of experts.


def _common(c: Config) -> Pairs:
    kinds = c.get("layer_types") or ["full_attention"] * c.n_layer
    for key, value in common_keys(c):
        if key == "attention.head_count_kv":
            value = [0 if kind == "conv" else c.n_head_kv for kind in kinds]
        yield key, value


def _lfm2_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "shortconv.l_cache", c["conv_L_cache"]
    yield "attention.layer_norm_rms_epsilon", float(c["norm_eps"])
    width = c.first("block_ff_dim", "intermediate_size")
    if c.get("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if c.get("block_ffn_dim_multiplier", 1.0) is not None:
            width = int(c.get("block_ffn_dim_multiplier", 1.0) * width)
        unit = c.get("block_multiple_of", 256)
        width = unit * -(-width // unit)
    yield "feed_forward_length", width


def _lfm2moe_keys(c: Config) -> Pairs:
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "leading_dense_block_count", c["num_dense_layers"]
    yield "expert_gating_func", 2  # a sigmoid
    if c.get("routed_scaling_factor", 1.0) != 1.0:
        yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "attention.layer_norm_rms_epsilon", float(c["norm_eps"])
    yield "vocab_size", c.count("vocab_size")
    yield "shortconv.l_cache", c["conv_L_cache"]


def _lfm2_change(c: Config, name: str, values: Values) -> Named:
    if "conv.conv" in name:  # one filter per channel: [n, 1, width]
        values = values.reshaped(values.shape[0], *values.shape[2:])
    name = name.replace(".expert_bias", ".expert_bias.bias")
    yield name, values


_LFM2 = Family(
    "lfm2", _lfm2_keys, common=_common, change=_lfm2_change,
    defaults={"rope_theta": 1e6, "norm_eps": 1e-5},
)  # fmt: skip


FAMILIES = {
    "mamba": Family("mamba", common=_mamba_keys, change=_change, vocab=_vocab),
    "mamba2": Family("mamba2", common=_mamba2_keys, change=_change, vocab=_vocab),
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2, arch="lfm2moe", keys=_lfm2moe_keys, experts=("w1", "w2", "w3"), norm_topk=True,
    ),
}  # fmt: skip
