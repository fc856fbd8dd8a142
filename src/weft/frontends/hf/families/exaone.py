"""EXAONE 3 and 4, and K-EXAONE."""

from __future__ import annotations

import re

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import weight_keys
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import NORM_BEHIND, ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, drafting, n_draft, window_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


def _exaone_keys(c: Config) -> Pairs:
    part = c.rope.get("partial_rotary_factor", 1.0)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))


def exaone_keys(c: Config) -> Pairs:
    """The vocabulary's size and the windows."""
    yield "vocab_size", c.count("vocab_size")
    pattern = c.get("sliding_window_pattern")
    default = None
    if isinstance(pattern, str) and pattern:

        def default(il: int) -> bool:
            return pattern[il % len(pattern)] == "L"
    elif isinstance(pattern, int):

        def default(il: int) -> bool:
            return (il + 1) % pattern != 0

    yield from window_keys(c, default)


def _exaone_moe_keys(c: Config) -> Pairs:
    yield from exaone_keys(c)
    width, n_shared = c["moe_intermediate_size"], c["num_shared_experts"]
    yield "expert_feed_forward_length", width
    yield "expert_shared_count", n_shared
    yield "expert_shared_feed_forward_length", width * n_shared
    yield from weight_keys(c)
    yield "leading_dense_block_count", c.get("first_k_dense_replace", 0)
    yield "nextn_predict_layers", n_draft(c)
    yield "rope.scaling.type", "none"


_MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head.norm"}  # fmt: skip


def _exaone_change(c: Config, name: str, values: Values) -> Named:
    draft = re.fullmatch(r"mtp\.layers\.(\d+)\.(.+)", name)
    outer = re.fullmatch(r"mtp\.(\w+)\.weight", name)
    if draft:
        name = f"model.layers.{int(draft[1]) + c.n_layer}.{draft[2]}"
    elif outer and outer[1] in _MTP:  # all layers that draft share these
        for il in range(c.n_layer, c.n_layer + n_draft(c)):
            yield f"model.layers.{il}.{_MTP[outer[1]]}.weight", values
        return
    yield from split_experts(c, name, values)


FAMILIES = {
    "exaone": Family(
        "exaone",
        _exaone_keys,
        extra=llama3_factors,
        defaults=ROTARY,
    ),
    "exaone4": Family(
        "exaone4", exaone_keys, names=NORM_BEHIND, extra=llama3_factors, defaults=ROTARY
    ),
    "exaone-moe": Family(
        "exaone-moe",
        _exaone_moe_keys,
        common=drafting,
        change=_exaone_change,
        extra=llama3_factors,
        defaults=ROTARY,
    ),
}
