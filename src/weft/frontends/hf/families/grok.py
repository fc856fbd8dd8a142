"""Muse Glimmer and Talkie."""

from __future__ import annotations

import re

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, window_keys
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values, stored_values
from weft.frontends.hf.vocab import Vocabulary, bpe, token_id


def _muse_keys(c: Config) -> Pairs:
    yield "final_logit_softcapping", float(c["final_logit_softcapping"])
    yield "logit_scale", float(c["output_multiplier"])
    yield from window_keys(c)
    kinds, bases = c.get("layer_types") or (), c.get("layer_rope_theta") or ()
    rotates = [bool(base) for base in bases]
    if rotates and rotates != [kind == "sliding_attention" for kind in kinds]:
        yield "attention.rope_pattern", rotates


def _muse_change(c: Config, name: str, values: Values) -> Named:
    """The gains of queries and keys, which are a number, stand in front of the queries."""
    layer = re.fullmatch(r".*layers\.(\d+)\.self_attn\.q_proj\.weight", name)
    if layer:
        for part, gain in (("q", float(c["qk_scale_factor"])), ("k", 1.0)):
            array = np.full(c.head_dim, gain, np.float32)
            norm = f"=blk.{layer[1]}.attn_{part}_norm.weight"
            yield norm, Values(array.shape, "f32", array.copy)
    if name.endswith("layernorm.weight"):
        values = values.through(lambda x: x + 1)
    yield name, values


def _muse_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    end = token_id(c, "<|eot|>")
    if end is not None:
        yield "tokenizer.ggml.eot_token_id", end


_TALKIE = {
    "attn_gain.a_g": "attn_output.scale", "mlp_gain.a_g": "ffn_down.scale",
    "attn.head_gain.head_g": "attn_q_norm.weight", "embed_skip.a_g": "layer_output_scale.weight",
}  # fmt: skip


def _talkie_keys(c: Config) -> Pairs:
    yield "attention.layer_norm_rms_epsilon", float(np.finfo(np.float32).eps)
    gain = open_shards(c.folder).get("lm_head_gain.w_g")
    if gain is None:
        raise FormatError(f"{c.folder}: tensor lm_head_gain.w_g is missing")
    yield "logit_scale", stored_values(gain).load().item()


def _talkie_change(c: Config, name: str, values: Values) -> Named:
    layer = re.fullmatch(r"model\.blocks\.(\d+)\.(.+)", name)
    if name == "lm_head_gain.w_g":
        return
    if layer and layer[2] in _TALKIE:
        head_gain = layer[2].endswith("head_g")  # one for each head
        values = values.reshaped(values.size, 1) if head_gain else values
        yield f"=blk.{layer[1]}.{_TALKIE[layer[2]]}", values
        return
    if layer and layer[2] in ("attn.attn_query.weight", "attn.attn_key.weight"):
        # heads rotate the other way round, which a sign of their second halves does
        sign = np.repeat(np.array([1, -1], np.float32), c.head_dim // 2)[:, None]
        shape = values.shape
        values = values.through(
            lambda x: (x.reshape(-1, c.head_dim, shape[-1]) * sign).reshape(shape)
        )
    yield (name if name.endswith(".weight") else f"{name}.weight"), values


FAMILIES = {
    "muse-glimmer": Family(
        "muse-glimmer", _muse_keys, change=_muse_change, vocab=_muse_vocab,
        defaults=ROTARY, adjacent=True, names={
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
    "talkie": Family(
        "talkie", _talkie_keys, change=_talkie_change, defaults=ROTARY,
        outer={"embed": "token_embd"}, names={
            "attn.attn_query": "attn_q", "attn.attn_key": "attn_k", "attn.attn_value": "attn_v",
            "attn.attn_resid": "attn_output", "mlp.mlp_gate": "ffn_gate",
            "mlp.mlp_linear": "ffn_up", "mlp.mlp_resid": "ffn_down",
        },
    ),
}  # fmt: skip
