"""Nemotron and Nemotron-H."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.hybrid import mamba2_tensors, sized, ssm_keys
from weft.frontends.hf.families.llama import granite_keys
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, pieces_or_llama

__all__ = ["FAMILIES"]


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


def _common(c: Config) -> Pairs:
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
    yield (
        "attention.head_count_kv",
        [kv if kind == "*" else 0 for kind in pattern] + [kv] * draft,
    )
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
    yield (
        "feed_forward_length",
        [widths.get(kind, 0) for kind in pattern] + [widths["E"]] * draft,
    )
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


def _vocab(c: Config) -> Vocabulary:
    return bpe(c, unit=8)


_DRAFT = {("1", "norm"): "post_attention_norm", ("1", "final_layernorm"): "shared_head.norm"}
_FAMILY = Family(
    "nemotron_h",
    _keys,
    _common,
    change=_change,
    vocab=_vocab,
    adjacent=True,
    activation="relu2",
)


FAMILIES = {
    "nemotron": Family(
        "nemotron",
        _nemotron_keys,
        change=_shifted,
        vocab=_nemotron_vocab,
        defaults={**ROTARY, "partial_rotary_factor": 0.5, "norm_eps": 1e-5, "head_dim": 0},
        activation="relu2",
    ),
    "nemotron_h": replace(_FAMILY, variant=_variant),
    "nemotron_h_moe": replace(_FAMILY, arch="nemotron_h_moe", experts=("down_proj", "up_proj")),
}
