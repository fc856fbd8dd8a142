"""OLMo, OLMo 2, OLMo 3 and OLMoE."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import NORM_BEHIND, ROTARY, Family
from weft.frontends.hf.keys import Pairs, window_keys

__all__ = ["FAMILIES"]


def _keys(c: Config) -> Pairs:
    yield "attention.layer_norm_epsilon", 1e-5
    if c.get("clip_qkv") is not None:
        yield "attention.clamp_kqv", float(c["clip_qkv"])


def _keys2(c: Config) -> Pairs:
    return window_keys(c, lambda il: (il + 1) % 4 != 0)


def _keys_moe(c: Config) -> Pairs:
    if c.get("clip_qkv") is not None:  # files have no key for it
        raise c.bad("clip_qkv", f"is {c['clip_qkv']}, which weft does not know here")
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-5))


FAMILIES = {
    "olmo": Family("olmo", _keys, defaults=ROTARY, adjacent=True),
    "olmo2": Family("olmo2", _keys2, names=NORM_BEHIND, defaults=ROTARY),
    "olmo3": Family(
        "olmo2",
        _keys2,
        names=NORM_BEHIND,
        defaults={"rope_theta": 500000.0, "sliding_window": 4096},
    ),
    "olmoe": Family(
        "olmoe",
        _keys_moe,
        change=split_experts,
        defaults=ROTARY,
        norm_topk=False,
    ),
}
