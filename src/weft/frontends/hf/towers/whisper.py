"""Voxtral's and Qwen2-Audio's towers in folders."""

from __future__ import annotations

from collections.abc import Callable

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import TowerFamily, audio_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]

_NAMES = {
    "audio_tower.conv1": "a.conv1d.1", "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.embed_positions": "a.position_embd", "audio_tower.layer_norm": "a.post_ln",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2",
    "fc1": "ffn_up", "fc2": "ffn_down",
    "multi_modal_projector.linear": "mm.a.fc", "multi_modal_projector.linear_1": "mm.a.mlp.1",
    "multi_modal_projector.linear_2": "mm.a.mlp.2",
}  # fmt: skip


def _voxtral_keys(c: Config) -> Pairs:
    yield from audio_keys(c, "voxtral")
    yield "audio.projector.stack_factor", 4


def _change(c: Config, name: str, values: Values) -> Named:
    """A convolution adds its bias to columns."""
    if ".conv1d." in name and name.endswith(".bias"):
        values = values.reshaped(*values.shape, 1)
    return ((name, values),)


def _family(keys: Callable[[Config], Pairs]) -> TowerFamily:
    starts = ("audio_tower.", "multi_modal_projector.")
    return TowerFamily(keys, starts, {"audio_tower.layers": "a.blk"}, _NAMES, _change)


FAMILIES = {
    "VoxtralForConditionalGeneration": _family(_voxtral_keys),
    "Qwen2AudioForConditionalGeneration": _family(lambda c: audio_keys(c, "qwen2a")),
}
