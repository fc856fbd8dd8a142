"""Towers for sound with Whisper's blocks in folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.towers.family import TowerFamily, count_of, has_part, part_of
from weft.frontends.hf.values import Values

PART = "audio_config"
STARTS = ("audio_tower.", "multi_modal_projector.")
LAYERS = {"audio_tower.layers": "a.blk"}
NAMES = {
    "audio_tower.conv1": "a.conv1d.1", "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.embed_positions": "a.position_embd", "audio_tower.layer_norm": "a.post_ln",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2",
    "fc1": "ffn_up", "fc2": "ffn_down",
    "multi_modal_projector.linear": "mm.a.fc", "multi_modal_projector.linear_1": "mm.a.mlp.1",
    "multi_modal_projector.linear_2": "mm.a.mlp.2",
}  # fmt: skip
"""Names of the tensors of Whisper's encoder and of projectors."""


def whisper_keys(c: Config, projector: str) -> Pairs:
    """The keys of all towers with Whisper's blocks."""
    yield "general.file_type", 0
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", count_of(c, PART, "hidden_size", "d_model")
    yield "audio.feed_forward_length", count_of(c, PART, "intermediate_size", "encoder_ffn_dim")
    yield "audio.block_count", count_of(c, PART, "num_hidden_layers", "encoder_layers")
    heads = count_of(c, PART, "num_attention_heads", "encoder_attention_heads")
    yield "audio.attention.head_count", heads
    yield "projector_type", projector
    yield "audio.num_mel_bins", count_of(c, PART, "num_mel_bins", default=128)
    yield "audio.attention.layer_norm_epsilon", 1e-5


def require_known(c: Config, known: Mapping[str, object]) -> Mapping[str, Any]:
    """`audio_config`. Raises FormatError for a value that differs from the one that files cannot
    state."""
    audio = part_of(c, PART)
    for key, value in known.items():
        if audio.get(key, value) != value:
            raise c.bad(f"{PART}.{key}", f"is {audio[key]!r}; files hold towers of {value!r} only")
    return audio


def change(c: Config, name: str, values: Values) -> Named:
    """A convolution adds its bias to columns."""
    if ".conv1d." in name and name.endswith(".bias"):
        values = values.reshaped(*values.shape, 1)
    return ((name, values),)


def whisper_family(keys: Callable[[Config], Pairs]) -> TowerFamily:
    return TowerFamily(keys, STARTS, LAYERS, NAMES, change, kernels=(".conv1d.",))


def voxtral_keys(c: Config) -> Pairs:
    yield from whisper_keys(c, "voxtral")
    yield "audio.projector.stack_factor", 4


# -- Ultravox --------------------------------------------------------------------------------------

_ULTRAVOX_NAMES = NAMES | {
    "multi_modal_projector.ln_pre": "mm.a.norm_pre",
    "multi_modal_projector.ln_mid": "mm.a.norm_mid",
}
_ULTRAVOX_KNOWN = {
    "projector_act": "swiglu", "projector_ln_mid": True, "audio_latency_block_size": None,
}  # fmt: skip
_ULTRAVOX_USUAL = {"projector_act": "swiglu", "projector_ln_mid": False}
_WHISPER_HEAD = 64
"""Elements of a head of every published Whisper, for folders that only name one."""


class _Ultravox(TowerFamily):
    """Encoders may be saved in the part of Whisper that they are."""

    def gguf_name(self, c: Config, name: str) -> str:
        """The name in a file."""
        return super().gguf_name(c, name.replace("audio_tower.model.encoder.", "audio_tower."))


def _ultravox_keys(c: Config) -> Pairs:
    """The keys. Folders that name a Whisper, and have its tensors, leave its sizes to these."""
    for key, value in _ULTRAVOX_KNOWN.items():
        given = c.get(key, _ULTRAVOX_USUAL.get(key))
        if given != value:
            raise c.bad(key, f"is {given!r}; files hold towers of {value!r} only")
    shapes = {
        name.removeprefix("model.").replace("audio_tower.model.encoder.", "audio_tower."): t.shape
        for name, t in open_shards(c.folder).items()
    }
    wanted = ("audio_tower.conv1.weight", "audio_tower.layers.0.fc1.weight",
              "multi_modal_projector.linear_2.weight")  # fmt: skip
    if missing := [name for name in wanted if len(shapes.get(name, ())) < 2]:
        raise FormatError(
            f"{c.folder}: there is no matrix {missing[0]}: weft reads towers of Ultravox whose "
            "folder has the encoder; one that leaves it to the folder of "
            f"{str(c.get('audio_model_id'))[:60]!r} must be saved with it"
        )
    conv, up, out = (shapes[name] for name in wanted)
    n_embd = conv[0]
    yield "general.file_type", 0
    yield "has_audio_encoder", True
    yield "audio.projection_dim", out[0]
    yield "audio.embedding_length", n_embd
    yield "audio.feed_forward_length", up[0]
    found = (_ENCODER_LAYER.match(name) for name in shapes)
    yield "audio.block_count", max(int(layer[1]) for layer in found if layer) + 1
    if has_part(c, PART):
        require_known(c, {"activation_function": "gelu", "scale_embedding": False})
        n_head = count_of(c, PART, "encoder_attention_heads", "num_attention_heads")
    else:
        n_head = max(n_embd // _WHISPER_HEAD, 1)
    yield "audio.attention.head_count", n_head
    yield "projector_type", "ultravox"
    yield "audio.num_mel_bins", conv[1]
    yield "audio.attention.layer_norm_epsilon", 1e-5
    yield "audio.projector.stack_factor", c.count("stack_factor") if "stack_factor" in c else 8


_ENCODER_LAYER = re.compile(r"audio_tower\.layers\.(\d{1,4})\.")
ULTRAVOX = _Ultravox(_ultravox_keys, STARTS, LAYERS, _ULTRAVOX_NAMES, change, kernels=(".conv1d.",))
