"""Llama 4: chunks, layers that do not rotate, and experts behind every layer or every second."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


def _common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        yield key, c["intermediate_size_mlp"] if key == "feed_forward_length" else value


def _keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield "interleave_moe_layer_step", c["interleave_moe_layer_step"]
    yield "expert_feed_forward_length", c["intermediate_size"]
    if set(c.get("layer_types") or ()) == {"full_attention"}:
        yield "attention.sliding_window", 0
    elif c.get("attention_chunk_size", 8192) != 8192:  # files have no key for it
        raise c.bad("attention_chunk_size", "is not 8192, which weft needs here")
    for key, value in (
        ("use_qk_norm", c.n_expert != 128),  # Maverick's heads have no norm
        ("attn_temperature_tuning", True),
        ("floor_scale", 8192),
        ("attn_scale", 0.1),
    ):  # files have no keys for them
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]}, which must be {value} here")


def _change(c: Config, name: str, values: Values) -> Named:
    """Experts are transposed."""
    base, found, _ = name.partition("experts.gate_up_proj")
    if not found and not name.endswith("experts.down_proj"):
        yield name, values
        return
    n, width, rows = values.shape
    turned = values.through(lambda x: x.swapaxes(-1, -2), (n, rows, width))
    if not found:
        yield f"{name}.weight", turned
        return
    half = rows // 2
    for part, start in (("gate", 0), ("up", half)):
        cut = turned.taken(slice(None), slice(start, start + half), shape=(n, half, width))
        yield f"{base}experts.{part}_proj.weight", cut


FAMILIES = {
    "llama4": Family(
        "llama4",
        _keys,
        common=_common,
        change=_change,
        extra=llama3_factors,
        defaults={"rope_theta": 500000.0, "head_dim": 128},
    ),
}
