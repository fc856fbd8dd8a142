"""Granite, with experts or a sliding window, and MiniCPM."""

from __future__ import annotations

from dataclasses import replace

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, window_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import llama

__all__ = ["FAMILIES", "granite_keys", "granite_parts"]


def _minicpm_keys(c: Config) -> Pairs:
    yield "embedding_scale", float(c["scale_emb"])
    yield "residual_scale", c["scale_depth"] / c.n_layer**0.5
    yield "logit_scale", c.n_embd / c["dim_model_base"]


def granite_keys(c: Config) -> Pairs:
    """Granite's factors, and the width of its shared experts."""
    yield from llama_keys(c)
    for key, name in (
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_shared_feed_forward_length", "shared_intermediate_size"),
    ):
        value = c.get(name)
        if value:
            yield key, value if isinstance(c.get(name), int) and "length" in key else float(value)
    if c.get("shared_intermediate_size") and not c.n_expert:
        yield "feed_forward_length", c["shared_intermediate_size"]


def _granite_swa_keys(c: Config) -> Pairs:
    yield from granite_keys(c)
    yield from window_keys(c, lambda il: il % 4 != 0)
    rotates = c.get("no_rope_layers")
    if rotates:
        yield "attention.rope_pattern", [bool(r) for r in rotates]


def _named_sinks(c: Config, name: str, values: Values) -> Named:
    yield (f"{name}.weight" if name.endswith("sinks") else name), values


def granite_parts(c: Config, name: str, values: Values) -> Named:
    """Takes gate and up apart, which Granite's mixtures have as one matrix."""
    kind = ("shexp" if c.n_expert else "") if "shared_mlp." in name else "exps"
    layer = f"model.layers.{name.split('.layers.')[-1].split('.')[0]}"
    blk = layer.replace("model.layers", "=blk")
    if name.endswith("input_linear.weight"):
        n = values.shape[-2] // 2
        for part, start in (("gate", 0), ("up", n)):
            shape = (*values.shape[:-2], n, values.shape[-1])
            cut = values.taken(..., slice(start, start + n), slice(None), shape=shape)
            yield f"{blk}.ffn_{part}{'_' if kind else ''}{kind}.weight", cut
    elif name.endswith("output_linear.weight"):
        yield f"{blk}.ffn_down{'_' if kind else ''}{kind}.weight", values
    else:
        yield name, values


_GRANITE = Family(
    "granite", granite_keys, extra=llama3_factors, vocab=llama, defaults=ROTARY, adjacent=True
)

FAMILIES = {
    "granite": _GRANITE,
    "granitemoe": replace(_GRANITE, arch="granitemoe", change=granite_parts),
    "minicpm": Family("minicpm", _minicpm_keys, vocab=llama, defaults=ROTARY, adjacent=True),
    "granite_swa": replace(
        _GRANITE,
        arch="granite_swa",
        keys=_granite_swa_keys,
        change=_named_sinks,
        defaults={**ROTARY, "sliding_window": 128},
    ),
}
