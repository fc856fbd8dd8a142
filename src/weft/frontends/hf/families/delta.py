"""Qwen3-Next, Qwen3.5 and Kimi Linear, whose layers are gated delta nets and attention in turn."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import split_latent
from weft.frontends.hf.families.qwen import expert_keys, split_experts
from weft.frontends.hf.family import NORM_BEHIND, ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys, drafting, n_draft
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe

Floats = NDArray[np.float32]
_DRAFT = {
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}  # fmt: skip


def _n_draft(c: Config) -> int:
    """Layers that predict the token after the next; older folders have them unannounced."""
    n = c.first("mtp_num_hidden_layers")
    if n:
        return int(n)
    found = (re.match(r"(?:model\.)?mtp\.layers\.(\d+)\.", name) for name in open_shards(c.folder))
    return max((int(m[1]) + 1 for m in found if m), default=0)


def _common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        yield key, c.n_layer + _n_draft(c) if key == "block_count" else value


def _keys(c: Config, *, drafts: bool = True) -> Pairs:
    yield from expert_keys(c)
    n = _n_draft(c) if drafts else 0
    if n:
        yield "nextn_predict_layers", n
    yield "ssm.conv_kernel", c["linear_conv_kernel_dim"]
    yield "ssm.state_size", c["linear_key_head_dim"]
    yield "ssm.group_count", c["linear_num_key_heads"]
    yield "ssm.time_step_rank", c["linear_num_value_heads"]
    yield "ssm.inner_size", c["linear_value_head_dim"] * c["linear_num_value_heads"]
    kinds = c.get("layer_types")
    if kinds:
        recurrent = [kind == "linear_attention" for kind in kinds]
        yield "attention.recurrent_layers", recurrent + [False] * n
    yield "full_attention_interval", c.get("full_attention_interval", 4)
    part = c.rope.get("partial_rotary_factor", 0.25)
    yield "rope.dimension_count", int(c.head_dim * part)


def keys35(c: Config, *, drafts: bool = True) -> Pairs:
    """Sizes of experts and delta nets, and the sections of rotation; with `drafts` also the number
    of layers that draft."""
    yield from _keys(c, drafts=drafts)
    if "mrope_section" not in c.rope:
        yield "rope.dimension_sections", [11, 11, 10, 0]


def _change(c: Config, name: str, values: Values) -> Named:
    name = _draft_name(c, name.removeprefix("model.") if name.startswith("model.mtp.") else name)
    if "conv1d" in name:  # one filter per channel: [n, 1, width]
        values = values.reshaped(values.shape[0], values.shape[-1])
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values.through(lambda x: x + 1)
    if "in_proj_qkvz" not in name:
        yield from split_experts(c, name, values)
        return
    sizes = _sizes(c)
    blk = re.sub(r".*layers\.(\d+)\..*", r"=blk.\1", name)
    n_k, d_k, each, _ = sizes
    rows = (2 * d_k * n_k + each * n_k, each * n_k)

    def parts(x: Floats) -> list[Floats]:
        """Queries, keys, values and gates of all heads; the folder has the four of a head."""
        heads = x.reshape(n_k, -1, x.shape[-1])
        cut = np.split(heads, np.cumsum((d_k, d_k, each)), axis=1)
        return [part.reshape(-1, x.shape[-1]) for part in cut]

    width = values.shape[-1]
    yield (
        f"{blk}.attn_qkv.weight",
        values.through(lambda x: np.concatenate(parts(x)[:3]), (rows[0], width)),
    )
    yield f"{blk}.attn_gate.weight", values.through(lambda x: parts(x)[3], (rows[1], width))


def _sizes(c: Config) -> tuple[int, int, int, int]:
    """Key heads, the size of one, the rows of values for one, value heads for one."""
    n_k, n_v = c["linear_num_key_heads"], c["linear_num_value_heads"]
    return n_k, c["linear_key_head_dim"], n_v // n_k * c["linear_value_head_dim"], n_v // n_k


def _draft_name(c: Config, name: str) -> str:
    if not name.startswith("mtp."):
        return name
    layer = re.match(r"mtp\.layers\.(\d+)\.(.+)", name)
    if layer:
        return f"model.layers.{c.n_layer + int(layer[1])}.{layer[2]}"
    stem, _, kind = name.removeprefix("mtp.").rpartition(".")
    return f"model.layers.{c.n_layer}.{_DRAFT.get(stem, stem)}.{kind}"


def in_turns(c: Config, name: str, values: Values) -> Named:
    """Puts value heads that share a key head apart: first the first of each, then the second."""
    n_k, d_k, _, r = _sizes(c)
    if r > 1 and "linear_attn." in name:
        values = _reordered(name, values, n_k, d_k, r)
    yield from _change(c, name, values)


def _reordered(name: str, values: Values, n_k: int, d_k: int, r: int) -> Values:
    def turned(x: Floats, axis: int = 0) -> Floats:
        n = x.shape[axis] // (n_k * r)
        shape = (*x.shape[:axis], n_k, r, n, *x.shape[axis + 1 :])
        return x.reshape(shape).swapaxes(axis, axis + 1).reshape(x.shape)

    start = 2 * d_k * n_k
    if ".in_proj_qkv." in name or ".conv1d" in name:
        return values.through(lambda x: np.concatenate((x[:start], turned(x[start:]))))
    if ".out_proj." in name:
        return values.through(lambda x: turned(x, 1))
    heads = (".in_proj_z.", ".in_proj_a.", ".in_proj_b.", ".A_log", ".dt_bias")
    return values.through(turned) if any(part in name for part in heads) else values


_DEFAULTS = {**ROTARY, "partial_rotary_factor": 0.25}


# Kimi Linear: gated delta nets and latent attention in turn.


def delta_size(c: Config, theirs: str, ours: str) -> int:
    """A size of delta nets, which older folders have in an object of their own."""
    return int(c.get("linear_attn_config", {}).get(theirs) or c[ours])


def _attends(c: Config) -> list[bool]:
    kinds = c.get("layer_types")
    if kinds:
        return [kind == "full_attention" for kind in kinds]
    chosen = c["linear_attn_config"]["full_attn_layers"]  # counted from 1
    return [il + 1 in chosen for il in range(c.n_layer)]


def _kimi_common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        if key == "attention.head_count_kv":
            value = [1 if it else 0 for it in _attends(c)]
        yield key, value


def n_dense(c: Config) -> int:
    """Number of first layers with a dense feed-forward layer."""
    kinds = c.get("mlp_layer_types")
    return int(kinds.count("dense") if kinds else c.get("first_k_dense_replace", 1))


def _kimi_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "ssm.conv_kernel", delta_size(c, "short_conv_kernel_size", "linear_conv_kernel_dim")
    yield "kda.head_dim", delta_size(c, "head_dim", "linear_head_dim")
    yield from latent_sizes(c)
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["num_shared_experts"]
    yield "leading_dense_block_count", n_dense(c)
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    if not c.get("moe_renormalize", True):
        yield "expert_weights_norm", False


def latent_sizes(c: Config) -> Pairs:
    """Sizes of latent attention."""
    if c.get("q_lora_rank") is not None:
        yield "attention.q_lora_rank", c["q_lora_rank"]
    rank, rotated = c["kv_lora_rank"], c["qk_rope_head_dim"]
    yield "attention.kv_lora_rank", rank
    yield "rope.dimension_count", rotated
    yield "attention.key_length", rank + rotated
    yield "attention.key_length_mla", c["qk_nope_head_dim"] + rotated
    yield "attention.value_length_mla", c["v_head_dim"]


def kimi_change(c: Config, name: str, values: Values) -> Named:
    """Changes the shapes of delta nets' weights, and takes latent attention apart."""
    if name.endswith(".A_log"):
        yield name, values.reshaped(1, 1, math.prod(values.shape), 1)
    elif name.endswith("_conv1d.weight"):
        yield name, values.reshaped(1, values.shape[0], 1, values.shape[-1])
    elif name.endswith("kv_b_proj.weight"):
        yield from split_latent(c, name, values)
    else:
        yield name, values


# Ling 3.0: the same with a bound of decays, gates, and rotation. The folders that transformers
# saves have other names for some sizes.


def _ling_attends(c: Config) -> list[bool]:
    kinds, size = c.get("layer_types"), c.get("layer_group_size", 6)
    if kinds:
        attends = [kind == "full_attention" for kind in kinds]
    else:  # layers behind the last whole group attend, too
        whole = c.n_layer // size * size
        attends = [(il + 1) % size == 0 or il >= whole for il in range(c.n_layer)]
    return attends + [True] * n_draft(c)


def _ling_common(c: Config) -> Pairs:
    for key, value in drafting(c):
        if key == "attention.head_count_kv":
            value = [int(it) for it in _ling_attends(c)]
        yield key, value


def _ling_keys(c: Config) -> Pairs:
    if c.rope.get("mscale") != c.rope.get("mscale_all_dim"):
        raise c.bad("rope_scaling", "must have the same mscale and mscale_all_dim here")
    for key, value, known in (
        ("no_kda_lora", True, "matrices of delta nets in one piece"),
        ("kda_safe_gate", True, "decays with a lower bound"),
        ("gated_attention_proj_granularity_type", "head_wise", "gates of heads"),
    ):
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}; weft knows {known} here ({value!r})")
    yield "vocab_size", c.count("vocab_size")
    yield "ssm.conv_kernel", c["short_conv_kernel_size"]
    yield "kda.head_dim", c.first("linear_head_dim", "head_dim")
    yield "kda.safe_gate", True
    yield "kda.gate_lower_bound", float(c["kda_lower_bound"])
    yield from latent_sizes(c)
    width, n_shared = c["moe_intermediate_size"], c.first("num_shared_experts", "n_shared_experts")
    n_shared = 1 if n_shared is None else n_shared
    yield "expert_gating_func", 2
    yield "expert_feed_forward_length", width
    yield (
        "expert_shared_feed_forward_length",
        c.get("moe_shared_expert_intermediate_size", width * n_shared),
    )
    yield "expert_shared_count", n_shared
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c.first("norm_topk_prob", "moe_renormalize"))
    yield "expert_group_count", c.first("n_group", "num_expert_group") or 1
    yield "expert_group_used_count", c.get("topk_group") or 1
    for key, name in (
        ("exp", "expert_swiglu_limit_list"),
        ("shexp", "share_expert_swiglu_limit_list"),
    ):
        limits = c.get(name)
        if limits is not None:
            n = c.n_layer + n_draft(c)
            numbers = [float(limit or 0.0) for limit in limits[:n]]
            yield f"swiglu_clamp_{key}", numbers + [0.0] * (n - len(numbers))
    if n_draft(c):
        yield "nextn_predict_layers", n_draft(c)


def _ling_change(c: Config, name: str, values: Values) -> Named:
    name = name.replace(".attention.", ".self_attn.").replace(
        "gate.expert_bias", "gate.expert_bias.bias"
    )
    name = name.replace(".forget_gate.", ".")
    if name.endswith(".A_log"):
        n_head = math.prod(values.shape)
        yield name, values.through(np.negative).reshaped(n_head, 1)
    elif name.endswith("self_attn.g_proj.weight"):
        il = int(name.split(".layers.")[1].split(".")[0])
        part = "attn_gate" if _ling_attends(c)[il] else "ssm_g_a"
        yield f"=blk.{il}.{part}.weight", values
    else:
        yield from kimi_change(c, name, values)


# Kimi K3: the same with experts whose input is a projection, and residual streams that are kept.
# Its text may be under the name of Kimi Linear's class.


def _of_k3(config: Mapping[str, Any]) -> str:
    text = config.get("text_config")
    both = {**config, **(text if isinstance(text, dict) else {})}
    return "kimi-k3" if "attn_res_block_size" in both else ""


def _k3_keys(c: Config) -> Pairs:
    for key, value in (("mla_use_nope", True), ("hidden_act", "situ"),
                       ("moe_router_activation_func", "sigmoid")):  # fmt: skip
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, and must be {value!r} here")
    delta = c["linear_attn_config"]
    yield "vocab_size", c.count("vocab_size")
    yield "ssm.conv_kernel", delta["short_conv_kernel_size"]
    yield "kda.head_dim", delta["head_dim"]
    if delta.get("gate_lower_bound") is not None:
        yield "kda.gate_lower_bound", float(delta["gate_lower_bound"])
    yield from latent_sizes(c)
    yield "attention.value_length", c["kv_lora_rank"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["num_shared_experts"]
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c["moe_renormalize"])
    if c.get("routed_expert_hidden_size") is not None:
        yield "expert_latent_length", c["routed_expert_hidden_size"]
    yield "activation.situ_beta", float(c["activation_situ_beta"])
    yield "activation.situ_linear_beta", float(c["activation_situ_linear_beta"])
    yield "attn_res.block_size", c["attn_res_block_size"]


_SCORES = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score",
           "output_attn_res": "output_res_score"}  # fmt: skip


def _k3_join(c: Config, tensors: Named) -> Named:
    """The gains of a norm and the vector that reads what it normed are one vector in files."""
    waiting: dict[str, Values] = {}
    for name, values in tensors:
        found = re.search(r"(?:layers\.(\d+)\.)?(\w+)_(?:norm|proj)\.weight$", name)
        if found is None or found[2] not in _SCORES:
            yield name, values
            continue
        whole = _SCORES[found[2]]
        whole = f"=blk.{found[1]}.{whole}.weight" if found[1] else f"={whole}.weight"
        other = waiting.pop(whole, None)
        if other is None:
            waiting[whole] = values
        elif other.size != values.size:
            raise FormatError(f"{c.folder}: {name} and the norm before it have other sizes")
        else:
            yield whole, _product(other, values)
    if waiting:
        raise FormatError(f"{c.folder}: {next(iter(waiting))[1:]} lacks its norm or its matrix")


def _product(a: Values, b: Values) -> Values:
    return Values((a.size,), "f32", lambda: a.load().reshape(-1) * b.load().reshape(-1))


def _k3_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith(".A_log"):
        yield name, values.reshaped(math.prod(values.shape))
    elif name.endswith("self_attn.g_proj.weight"):
        il = int(name.split(".layers.")[1].split(".")[0])
        yield f"=blk.{il}.{'attn_gate' if _attends(c)[il] else 'ssm_g'}.weight", values
    else:
        yield from kimi_change(c, name, values)


def _k3_vocab(c: Config) -> Vocabulary:
    """Texts end with the token that config.json names, not the tokenizer's."""
    end = c.get("eos_token_id")
    for key, value in bpe(c):
        own = key == "tokenizer.ggml.eos_token_id" and isinstance(end, int)
        yield key, end if own else value


FAMILIES = {
    "qwen3next": Family(
        "qwen3next", _keys, common=_common, names=NORM_BEHIND, change=_change, defaults=_DEFAULTS,
        norm_topk=True,
    ),
    "qwen35": Family(
        "qwen35", keys35, common=_common, names=NORM_BEHIND, change=in_turns, defaults=_DEFAULTS,
    ),
    "qwen35moe": Family(
        "qwen35moe", keys35, common=_common, names=NORM_BEHIND, change=in_turns,
        defaults=_DEFAULTS,
    ),
    "kimi-k3": Family(
        "kimi-k3", _k3_keys, common=_kimi_common, join=_k3_join, change=_k3_change,
        vocab=_k3_vocab, activation="situ", experts=("w1", "w2", "w3"),
        defaults={"moe_router_activation_func": "sigmoid"}, names={
            f"block_sparse_moe.routed_expert_{name}": f"ffn_routed_{name.removesuffix('_proj')}"
            for name in ("down_proj", "up_proj", "norm")
        },
    ),
    "kimi-linear": Family(
        "kimi-linear", _kimi_keys, common=_kimi_common, change=kimi_change, variant=_of_k3,
        defaults={"moe_router_activation_func": "sigmoid"}, experts=("w1", "w2", "w3"),
    ),
    "bailingmoe3": Family(
        "bailingmoe3", _ling_keys, common=_ling_common, change=_ling_change,
        names={"self_attn.f_proj": "ssm_f_a"},
        defaults={"rope_theta": 6e6, "short_conv_kernel_size": 4, "kda_lower_bound": -5.0},
    ),
}  # fmt: skip
