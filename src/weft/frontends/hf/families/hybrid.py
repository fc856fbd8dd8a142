"""Mamba beside attention: Granite 4, Jamba, Falcon-H1 and Nemotron-H."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import granite_keys, granite_parts
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import (
    Vocabulary,
    has,
    llama,
    pieces_or_bpe,
    pieces_or_llama,
    plamo,
    sentencepiece,
)

Floats = NDArray[np.float32]


def _first(c: Config, *names: str) -> int | None:
    """The first of `names` that there is, as it is or with `mamba_` in front."""
    value = c.first(*names, *(f"mamba_{name}" for name in names))
    return None if value is None else int(value)


def sized(c: Config, *names: str) -> int:
    """The first of `names` that there is, as `_first`. Raises FormatError if there is none."""
    value = _first(c, *names)
    if value is None:
        raise c.bad(f"mamba_{names[0]}", "is missing")
    return value


def ssm_keys(c: Config, d_inner: int) -> Pairs:
    """The sizes of Mamba-2."""
    yield "ssm.conv_kernel", sized(c, "conv_kernel", "d_conv")
    yield "ssm.state_size", sized(c, "state_size", "d_state", "state_dim", "ssm_state_size")
    yield "ssm.group_count", sized(c, "n_groups", "num_groups")
    yield "ssm.inner_size", d_inner
    yield "ssm.time_step_rank", sized(c, "n_heads", "num_heads")


def _attends(c: Mapping[str, Any], n_layer: int) -> list[bool]:
    """For each layer, whether it is attention."""
    kinds = c.get("layer_types")
    if kinds:
        return [kind in ("attention", "full_attention") for kind in kinds]
    period, offset = c.get("attn_layer_period"), c.get("attn_layer_offset")
    chosen = c.get("attn_layer_indices") or ()
    return [il in chosen or bool(period and il % period == offset) for il in range(n_layer)]


def mamba2_tensors(c: Config, name: str, values: Values, n_group: int, d_inner: int) -> Named:
    """Mamba-2's tensors in the sizes that files have."""
    if name.endswith("conv1d.weight"):
        values = values.reshaped(values.shape[0], values.shape[-1])
    elif name.endswith((".A_log", ".D")):
        values = values.reshaped(*values.shape, 1)
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        values = values.reshaped(n_group, d_inner // n_group)
    yield name, values


# ---- Granite 4 -----------------------------------------------------------------------------------


def _granite_inner(c: Config) -> int:
    return sized(c, "expand") * c.n_embd


def _common(c: Config) -> Pairs:
    usual = c.get("head_dim") in (None, c.n_embd // max(c.n_head, 1))
    heads = ("attention.key_length", "attention.value_length")
    return ((key, value) for key, value in common_keys(c) if not (usual and key in heads))


def _granite_keys(c: Config) -> Pairs:
    yield from granite_keys(c)
    yield from ssm_keys(c, _granite_inner(c))
    part = c.main_rope.get("partial_rotary_factor", 1.0)
    n_dims = c.get("attn_rotary_emb", int(c.head_dim * part))
    if n_dims != c.head_dim:
        yield "rope.dimension_count", n_dims
    kv = c.n_head_kv
    yield "attention.head_count_kv", [kv if it else 0 for it in _attends(c, c.n_layer)]
    rotates = c.cls == "BambaForCausalLM" or c.get("position_embedding_type") == "rope"
    yield "rope.scaling.finetuned", rotates
    if not rotates:
        yield "context_length", 1 << 20


def _granite_variant(config: Mapping[str, Any]) -> str:
    """Folders without recurrent layers are Granite's usual models."""
    if not all(_attends(config, config.get("num_hidden_layers") or 0)):
        return ""
    return "granitemoe" if config.get("num_local_experts") else "granite"


def _granite_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith("block_sparse_moe.input_linear.weight") or "shared_mlp" in name:
        yield from granite_parts(c, name, values)
    elif ".mamba." in name:
        n_group = sized(c, "n_groups", "num_groups")
        yield from mamba2_tensors(c, name, values, n_group, _granite_inner(c))
    else:
        yield from granite_parts(c, name, values)


# ---- Jamba ---------------------------------------------------------------------------------------


def _jamba_keys(c: Config) -> Pairs:
    kv = c.n_head_kv
    yield "block_count", c.n_layer
    yield "context_length", c.first("max_position_embeddings", "n_ctx")
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", [kv if it else 0 for it in _attends(c, c.n_layer)]
    yield "ssm.conv_kernel", c.get("mamba_d_conv", 4)
    yield "ssm.inner_size", c["mamba_expand"] * c.n_embd
    yield "ssm.state_size", c.get("mamba_d_state", 16)
    rank = c.get("mamba_dt_rank")
    yield "ssm.time_step_rank", rank if isinstance(rank, int) else -(-c.n_embd // 16)
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-6))
    yield "expert_count", c.n_expert
    yield "expert_used_count", c.first("num_experts_per_tok", "num_experts_per_token")
    yield "general.file_type", None


def _jamba_change(c: Config, name: str, values: Values) -> Named:
    name = name.replace(".moe.", ".feed_forward.")
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer:
        behind = int(layer[1]) - c["expert_layer_offset"]
        if behind < 0 or behind % c["expert_layer_period"]:
            name = name.replace(".experts.0.", ".")
    if name.endswith("conv1d.weight"):
        values = values.reshaped(values.shape[0], values.shape[-1])
    stem = name.removesuffix(".weight")
    if stem.endswith("experts.gate_up_proj"):
        n = values.shape[-2] // 2
        shape = (*values.shape[:-2], n, values.shape[-1])
        base = stem.removesuffix("gate_up_proj")
        yield f"{base}gate_proj.weight", values.taken(..., slice(0, n), slice(None), shape=shape)
        yield f"{base}up_proj.weight", values.taken(..., slice(n, None), slice(None), shape=shape)
    elif stem.endswith("experts.down_proj"):
        yield f"{stem}.weight", values
    else:
        yield name, values


def _jamba_vocab(c: Config) -> Vocabulary:
    if has(c, "tokenizer.model"):
        yield from sentencepiece(c)
        return
    yield from llama(c)
    yield "tokenizer.ggml.add_space_prefix", False


# ---- Falcon-H1 -----------------------------------------------------------------------------------


def _falcon_keys(c: Config) -> Pairs:
    d_inner = c["mamba_d_ssm"]
    if c.get("mamba_rms_norm") and c.get("mamba_norm_before_gate", True):
        raise c.bad(
            "mamba_norm_before_gate", "is true, and GGUF files have the norm behind the gate"
        )
    yield "context_length", c.get("max_position_embeddings", 0)
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "block_count", c.n_layer
    yield "ssm.conv_kernel", c.get("mamba_d_conv", 4)
    yield "ssm.inner_size", d_inner
    yield "ssm.state_size", c.get("mamba_d_state", 128)
    # the size of heads is looked for under `head_dim`, too, and that of attention is found first
    head = c.first("mamba_d_head") or 64
    yield "ssm.time_step_rank", d_inner // head
    yield "ssm.group_count", c.get("mamba_n_groups", 1)
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-5))
    yield "general.file_type", None
    yield "vocab_size", c.count("vocab_size")
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.key_length", c.head_dim
    yield "attention.value_length", c.head_dim
    yield "rope.freq_base", float(c.main_rope["rope_theta"])


def _falcon_change(c: Config, name: str, values: Values) -> Named:
    """Multiplies the model's constants into the matrices."""
    n_group, d_inner = c.get("mamba_n_groups", 1), c["mamba_d_ssm"]
    inward = 1.0 if name.endswith(".bias") else c.get("attention_in_multiplier", 1.0)
    factors = {
        "down_proj": (c["mlp_multipliers"][1],), "gate_proj": (c["mlp_multipliers"][0],),
        "k_proj": (c.get("key_multiplier", 1.0), inward), "q_proj": (inward,),
        "v_proj": (inward,), "o_proj": (c.get("attention_out_multiplier", 1.0),),
        "out_proj": (c.get("ssm_out_multiplier", 1.0),),
        "in_proj": (c.get("ssm_in_multiplier", 1.0),),
        "lm_head": (c["lm_head_multiplier"],), "embed_tokens": (c["embedding_multiplier"],),
    }  # fmt: skip
    found = next((factors[part] for part in factors if part in name), ())
    if ".mamba.in_proj." in name:
        found = found if name.endswith(".weight") else ()
        yield name, values.through(lambda x: _scaled_inputs(c, _times(x, found)))
        return
    if "embed_tokens" in name and c.get("tie_word_embeddings"):  # with another factor
        yield "lm_head.weight", values.through(lambda x: _times(x, factors["lm_head"]))
    elif name == "lm_head.weight" and c.get("tie_word_embeddings"):
        return
    values = values.through(lambda x: _times(x, found)) if found else values
    if ".mamba." in name:
        yield from mamba2_tensors(c, name, values, n_group, d_inner)
    elif name.endswith("pre_ff_layernorm.weight"):  # the reference writes its name without an end
        yield re.sub(r".*layers\.(\d+)\..*", r"=blk.\1.ffn_norm", name), values
    else:
        yield name, values


def _times(x: Floats, factors: tuple[float, ...]) -> Floats:
    for factor in factors:
        x = x * np.float32(factor)
    return x


def _scaled_inputs(c: Config, x: Floats) -> Floats:
    """Each of gate, input, B, C and time steps has a factor of its own."""
    d_inner, state = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    ends = np.cumsum([d_inner, d_inner, state, state, x.shape[0]])
    start = 0
    for end, factor in zip(ends, c["ssm_multipliers"], strict=True):
        x[start:end] *= np.float32(factor)
        start = end
    return x


_GRANITE = Family(
    "granitehybrid", _granite_keys, _common, change=_granite_change, vocab=pieces_or_bpe,
    defaults=ROTARY, adjacent=True,
)  # fmt: skip


# Nemotron and Nemotron-H.


def _nemotron_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    eps = c.first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    yield "attention.layer_norm_epsilon", float(eps)
    part = c.rope.get("partial_rotary_factor", 0.5)
    yield "rope.dimension_count", int(part * c.head_dim)
    scaled = c.rope.get("rope_type") in (None, "linear")
    factor = c.get("factor") or (c.rope.get("factor") if scaled else None)
    yield "rope.scaling.type", "none" if factor is None else "linear"
    if factor is not None:
        yield "rope.scaling.factor", float(factor)


def _nemotron_vocab(c: Config) -> Vocabulary:
    yield from pieces_or_llama(c)
    yield "tokenizer.ggml.padding_token_id", 0
    yield "tokenizer.ggml.unknown_token_id", 1


def _shifted(c: Config, name: str, values: Values) -> Named:
    """Nemotron's norms multiply by 1 + weight."""
    yield name, values.through(lambda x: x + 1) if name.endswith("norm.weight") else values


def _pattern(c: Mapping[str, Any]) -> list[str]:
    """For each layer, M: Mamba-2, *: attention, -: feed-forward layer, E: experts."""
    pattern = c.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return list(pattern)
    names = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*",
             "moe": "E", "mlp": "-"}  # fmt: skip
    return [names[kind] for kind in c.get("layers_block_type") or c.get("layer_types") or ()]


def _n_draft(c: Config) -> int:
    """Layers that draft tokens: one, which the folder has in two parts."""
    n = int(c.get("num_nextn_predict_layers", 0)) if "E" in _pattern(c) else 0
    if n > 1:
        raise c.bad("num_nextn_predict_layers", f"is {n}; one layer can be read")
    return n


def _variant(config: Mapping[str, Any]) -> str:
    return "nemotron_h_moe" if "E" in _pattern(config) else ""


def _nemotron_common(c: Config) -> Pairs:
    n_draft = _n_draft(c)
    left_out = ["attention.key_length", "attention.value_length"]
    left_out += [] if "E" in _pattern(c) else ["expert_"]
    for key, value in common_keys(c):
        if not key.startswith(tuple(left_out)):
            yield key, c.n_layer + n_draft if key == "block_count" else value


def _keys(c: Config) -> Pairs:
    yield from granite_keys(c)
    pattern = _pattern(c)
    draft = _n_draft(c)
    yield from ssm_keys(c, c["mamba_num_heads"] * c["mamba_head_dim"])
    kv = c.n_head_kv
    yield ("attention.head_count_kv", [kv if kind == "*" else 0 for kind in pattern] + [kv] * draft)
    yield "rope.scaling.finetuned", False
    yield "context_length", 1 << 20
    head = c.first("head_dim", "attention_head_dim")
    yield "attention.key_length", head
    yield "attention.value_length", head
    width = c["intermediate_size"]
    if "E" not in pattern:
        yield "feed_forward_length", [width if kind == "-" else 0 for kind in pattern]
        return
    widths = {"-": width, "E": c["moe_intermediate_size"]}
    yield ("feed_forward_length", [widths.get(kind, 0) for kind in pattern] + [widths["E"]] * draft)
    yield "expert_used_count", c["num_experts_per_tok"]
    yield "expert_feed_forward_length", widths["E"]
    yield "expert_shared_feed_forward_length", c["moe_shared_expert_intermediate_size"]
    yield "expert_count", c["n_routed_experts"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield "expert_weights_norm", bool(c["norm_topk_prob"])
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_group_count", c["n_group"]
    if c.get("moe_latent_size") is not None:
        yield "moe_latent_size", c["moe_latent_size"]
    if draft:
        yield "nextn_predict_layers", draft


def _change(c: Config, name: str, values: Values) -> Named:
    n_group = sized(c, "n_groups", "num_groups")
    draft = re.match(r"mtp\.layers\.([01])\.(.+)", name)
    if draft:
        if not _n_draft(c):
            return
        stem, _, kind = draft[2].rpartition(".")
        stem = _DRAFT.get((draft[1], stem), stem)
        name = f"backbone.layers.{c.n_layer}.{stem}.{kind}"
    stem = name.removesuffix(".weight")
    if stem.endswith(("experts.up_proj", "experts.down_proj")):
        yield f"{stem}.weight", values
    else:
        d_inner = c["mamba_num_heads"] * c["mamba_head_dim"]
        yield from mamba2_tensors(c, name, values, n_group, d_inner)


_DRAFT = {("1", "norm"): "post_attention_norm", ("1", "final_layernorm"): "shared_head.norm"}
_FAMILY = Family(
    "nemotron_h", _keys, _nemotron_common, change=_change, adjacent=True,
    activation="relu2",
)  # fmt: skip


# PLaMo 2 and 3.

_PLAMO_NORMS = {"pre_mixer_norm": 1.0, "post_mixer_norm": 1 / 5, "pre_mlp_norm": 1.0,
                "post_mlp_norm": 1 / 5**1.5, "mixer.q_norm": 1.0, "mixer.k_norm": 1.0}  # fmt: skip
"""What is added to the gains of norms."""
_PLAMO_NAMES = {
    "pre_mixer_norm": "attn_norm", "pre_mlp_norm": "ffn_norm", "mixer.qkv_proj": "attn_qkv",
    "mixer.q_norm": "attn_q_norm", "mixer.k_norm": "attn_k_norm", "mixer.bcdt_proj": "ssm_x",
}  # fmt: skip
_PLAMO_BARE = {
    "post_mixer_norm.weight": "post_attention_norm", "post_mlp_norm.weight": "post_ffw_norm",
    "mixer.dt_norm_weight": "ssm_dt_norm", "mixer.B_norm_weight": "ssm_b_norm",
    "mixer.C_norm_weight": "ssm_c_norm", "mixer.q_weight": "attn_q_norm.weight",
    "mixer.k_weight": "attn_k_norm.weight",
}  # fmt: skip
"""Tensors that files have without `.weight`, and those that folders have so."""


def _plamo2_keys(c: Config) -> Pairs:
    step, n_layer = c.get("mamba_step", 2), c.n_layer
    few = n_layer <= step // 2  # the last layer attends then
    attends = [
        not c.get("mamba_enabled", True) or (il == n_layer - 1 if few else il % step == step // 2)
        for il in range(n_layer)
    ]
    d = c.get("hidden_size_per_head", 128)
    heads = c.get("num_attention_heads", 32), c.get("num_key_value_heads", 4)
    yield "vocab_size", c.count("vocab_size")
    yield "attention.head_count_kv", [heads[1] if it else 0 for it in attends]
    yield "attention.head_count", [heads[0] if it else 0 for it in attends]
    yield "context_length", c.get("max_position_embeddings", 2048)
    yield "embedding_length", c.get("hidden_size", 4096)
    yield "attention.key_length", d
    yield "attention.value_length", d
    yield "block_count", n_layer
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-6))
    yield "rope.freq_base", float(c.rope.get("rope_theta", 10000))
    yield "ssm.state_size", c.get("mamba_d_state", 64)
    yield "ssm.conv_kernel", c.get("mamba_d_conv", 4)
    yield "ssm.time_step_rank", c.get("mamba_num_heads", 64)
    yield "ssm.inner_size", c.get("mamba_num_heads", 64) * d
    yield "ssm.group_count", 0
    yield "feed_forward_length", c.get("intermediate_size", 13312)
    yield "general.file_type", None


def _plamo3_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    window = c.first("window_size", "sliding_window")
    if window is not None:
        yield "attention.sliding_window", window
        yield "attention.sliding_window_pattern", c["sliding_window_pattern"]
    factor = c.get("rope_scaling_factor", 1)
    if factor != 1 and "rope_type" not in c.rope:
        yield "rope.scaling.type", "yarn"
        yield "rope.scaling.factor", float(factor)
        yield "rope.scaling.original_context_length", c["initial_context_length"]
        yield "rope.scaling.yarn_beta_fast", 32.0
        yield "rope.scaling.yarn_beta_slow", 1.0
        yield "rope.scaling.yarn_truncate", False


def _plamo_change(c: Config, name: str, values: Values) -> Named:
    name = name.replace("layers.layers.", "layers.")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    rest = layer[2] if layer else ""
    added = _PLAMO_NORMS.get(
        rest.removesuffix(".weight"), 1.0 if name == "model.norm.weight" else 0
    )
    if added:
        values = values.through(lambda x: x + np.float32(added))
    if rest.endswith("conv1d.weight"):
        values = values.reshaped(values.shape[0], values.shape[-1])
    if layer and rest in _PLAMO_BARE:
        yield f"=blk.{layer[1]}.{_PLAMO_BARE[rest]}", values
    else:
        yield name, values


_PLAMO2 = Family(
    "plamo2", common=_plamo2_keys, change=_plamo_change, names=_PLAMO_NAMES, vocab=plamo,
    defaults=ROTARY, activation="",
)  # fmt: skip


FAMILIES = {
    "plamo2": _PLAMO2,
    "plamo3": replace(_PLAMO2, arch="plamo3", keys=_plamo3_keys, common=common_keys),
    "granitehybrid": replace(_GRANITE, variant=_granite_variant),
    "bamba": replace(_GRANITE, defaults={**ROTARY, "partial_rotary_factor": 0.5}),
    "granite": replace(_GRANITE, arch="granite"),
    "granitemoe": replace(_GRANITE, arch="granitemoe"),
    "jamba": Family("jamba", common=_jamba_keys, change=_jamba_change, vocab=_jamba_vocab),
    "falcon-h1": Family(
        "falcon-h1", common=_falcon_keys, change=_falcon_change,
        defaults={"rope_theta": 100000.0, "head_dim": 0},
    ),
    "nemotron": Family(
        "nemotron", _nemotron_keys, change=_shifted, vocab=_nemotron_vocab,
        defaults={**ROTARY, "partial_rotary_factor": 0.5, "norm_eps": 1e-5, "head_dim": 0},
        activation="relu2",
    ),
    "nemotron_h": replace(_FAMILY, variant=_variant),
    "nemotron_h_moe": replace(_FAMILY, arch="nemotron_h_moe", experts=("down_proj", "up_proj")),
}  # fmt: skip
