"""Whisper in folders: tensors of the encoder are named as in towers for sound, tensors of the
decoder as in T5."""

from __future__ import annotations

import re

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values

_LAYER = re.compile(r"(en|de)coder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v"}
_NAMES = {
    "en": {
        **{f"self_attn.{name}": file for name, file in _ATTENTION.items()},
        "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "fc1": "ffn_up",
        "fc2": "ffn_down", "final_layer_norm": "ln2",
    },
    "de": {
        **{f"self_attn.{name}": file for name, file in _ATTENTION.items()},
        **{f"encoder_attn.{name}": f"cross_{file}" for name, file in _ATTENTION.items()},
        "self_attn.out_proj": "attn_o", "encoder_attn.out_proj": "cross_attn_o",
        "self_attn_layer_norm": "attn_norm", "encoder_attn_layer_norm": "cross_attn_norm",
        "fc1": "ffn_up", "fc2": "ffn_down", "final_layer_norm": "ffn_norm",
    },
}  # fmt: skip
_OUTER = {
    "encoder.conv1.": "a.conv1d.1.", "encoder.conv2.": "a.conv1d.2.",
    "encoder.embed_positions.": "a.position_embd.", "encoder.layer_norm.": "a.post_ln.",
    "decoder.embed_tokens.": "token_embd.", "decoder.embed_positions.": "position_embd.",
    "decoder.layer_norm.": "dec.output_norm.",
}  # fmt: skip


def _common(c: Config) -> Pairs:
    yield "context_length", c.count("max_target_positions")
    yield "embedding_length", c.count("d_model")
    yield "feed_forward_length", c.count("decoder_ffn_dim")
    yield "block_count", c.count("decoder_layers")
    yield "attention.head_count", c.count("decoder_attention_heads")
    yield "vocab_size", c.count("vocab_size")
    yield "audio.context_length", c.count("max_source_positions")
    yield "audio.feed_forward_length", c.count("encoder_ffn_dim")
    yield "audio.block_count", c.count("encoder_layers")
    yield "audio.attention.head_count", c.count("encoder_attention_heads")
    yield "audio.num_mel_bins", c.count("num_mel_bins")
    yield "general.file_type", None


def _keys(c: Config) -> Pairs:
    """The rules of tokens in generation_config.json. Raises FormatError for another decoder than
    Whisper's."""
    if c.get("scale_embedding"):
        raise c.bad("scale_embedding", "is true, which no Whisper has")
    written = c.json("generation_config.json")
    for key in ("suppress_tokens", "begin_suppress_tokens"):
        ids = written.get(key, c.get(key))
        if ids:
            if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
                raise c.bad(key, "must be a list of ids of tokens")
            yield key, [id_ for id_ in ids if id_ >= 0]
    index = written.get("max_initial_timestamp_index")
    if index is not None:
        yield "max_initial_timestamp_index", index


def _change(c: Config, name: str, values: Values) -> Named:
    name = name.removeprefix("model.")
    if name == "proj_out.weight":  # the embeddings
        return
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        side, number, part, kind = layer.groups()
        new = _NAMES[side].get(part)
        if new is not None:
            yield f"={'a' if side == 'en' else 'dec'}.blk.{number}.{new}.{kind}", values
            return
    start = next((start for start in _OUTER if name.startswith(start)), None)
    if start is None:
        raise FormatError(f"{c.folder}: tensor {name} has no place in a model of Whisper")
    if ".conv" in name and name.endswith(".bias"):  # it is added to columns
        values = values.reshaped(*values.shape, 1)
    yield f"={_OUTER[start]}{name.removeprefix(start)}", values


FAMILIES = {
    "whisper": Family(
        "whisper", _keys, common=_common, change=_change, activation="gelu",
        kernels=(".conv1d.",), f32=("position_embd",),
        defaults={"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448},
    ),
}  # fmt: skip
