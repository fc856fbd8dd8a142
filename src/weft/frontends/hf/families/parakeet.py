"""Parakeet in folders: tensors of the encoder are named as in LFM2-Audio's towers for sound."""

from __future__ import annotations

import re
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values

_DECODERS = {"ParakeetForCTC": "ctc", "ParakeetForRNNT": "rnnt", "ParakeetForTDT": "tdt"}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+?)(\.weight|\.bias)?")
_NAMES = {
    "norm_feed_forward1": "ffn_norm", "norm_feed_forward2": "ffn_norm_1", "norm_self_att": "ln1",
    "norm_conv": "norm_conv", "norm_out": "ln2",
    "feed_forward1.linear1": "ffn_up", "feed_forward1.linear2": "ffn_down",
    "feed_forward2.linear1": "ffn_up_1", "feed_forward2.linear2": "ffn_down_1",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "self_attn.relative_k_proj": "linear_pos",
    "self_attn.bias_u": "pos_bias_u", "self_attn.bias_v": "pos_bias_v",
    "conv.pointwise_conv1": "conv_pw1", "conv.depthwise_conv": "conv_dw",
    "conv.pointwise_conv2": "conv_pw2", "conv.norm": "conv_norm",
    "conv.norm.running_mean": "conv_norm_mean", "conv.norm.running_var": "conv_norm_var",
}  # fmt: skip
_OUTER = {
    "encoder.subsampling.linear.": "a.pre_encode.out.", "ctc_head.": "ctc.output.",
    "encoder_projector.": "enc.output.", "decoder.embedding.": "token_embd.",
    "decoder.decoder_projector.": "dec.output.", "joint.head.": "joint.output.",
}  # fmt: skip
_FOLD = re.compile(r"encoder\.subsampling\.layers\.(\d+)\.(weight|bias)")
_LSTM = re.compile(r"decoder\.lstm\.(weight|bias)_(i|h)h_l(\d+)")
_KNOWN = {
    "hidden_act": "silu", "subsampling_factor": 8, "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
}  # fmt: skip


def _encoder(c: Config) -> Config:
    own = c["encoder_config"]
    if not isinstance(own, dict):
        raise c.bad("encoder_config", "must be an object with the sizes of the encoder")
    defaults = {"num_mel_bins": 80, "scale_input": True, **_KNOWN}
    found = Config(c.folder, own, defaults)
    for key, value in _KNOWN.items():
        if found[key] != value:
            raise c.bad(f"encoder_config.{key}", f"is {found[key]!r}; weft knows {value!r} only")
    return found


def _common(c: Config) -> Pairs:
    encoder = _encoder(c)
    yield "embedding_length", encoder.count("hidden_size")
    yield "feed_forward_length", encoder.count("intermediate_size")
    yield "block_count", encoder.n_layer
    yield "attention.head_count", encoder.count("num_attention_heads")
    yield "num_mel_bins", encoder.count("num_mel_bins")
    yield "scale_input", bool(encoder["scale_input"])
    yield "vocab_size", c.count("vocab_size")
    yield "general.file_type", None


def _keys(c: Config) -> Pairs:
    decoder = _DECODERS[c.cls]
    yield "decoder.type", decoder
    if decoder == "ctc":
        yield "blank_token_id", c.count("pad_token_id")
        return
    yield "blank_token_id", c.count("blank_token_id")
    yield "decoder.embedding_length", c.count("decoder_hidden_size")
    yield "decoder.block_count", c.count("num_decoder_layers")
    yield "decoder.max_symbols", c.count("max_symbols_per_step")
    if decoder == "tdt":
        yield "decoder.durations", _durations(c)


def _durations(c: Config) -> list[int]:
    given: Any = c["durations"]
    if not isinstance(given, list | tuple) or not all(type(n) is int and n >= 0 for n in given):
        raise c.bad("durations", f"is {given!r}; it must be a list of counts of rows")
    return list(given)


def _change(c: Config, name: str, values: Values) -> Named:
    if name.endswith(".num_batches_tracked"):
        return
    layer, fold, lstm = (pattern.fullmatch(name) for pattern in (_LAYER, _FOLD, _LSTM))
    if layer is not None and layer[2] in _NAMES:
        new = f"a.blk.{layer[1]}.{_NAMES[layer[2]]}{layer[3] or ''}"
        if len(values.shape) == 3:  # kernels of one channel, or of one row
            n, n_in, size = values.shape
            values = values.reshaped(n, size if "conv_dw" in new else n_in)
        yield f"={new}", values
    elif fold is not None:
        if fold[2] == "bias":  # it is added to planes
            values = values.reshaped(*values.shape, 1, 1)
        yield f"=a.conv1d.{fold[1]}.{fold[2]}", values
    elif lstm is not None:
        kind, side, number = lstm.groups()
        side = "input" if side == "i" else "hidden"
        yield f"=dec.blk.{number}.{side}.{kind}", values
    else:
        start = next((start for start in _OUTER if name.startswith(start)), None)
        if start is None:
            raise FormatError(f"{c.folder}: tensor {name} has no place in a model of Parakeet")
        if name == "ctc_head.weight":
            values = values.reshaped(*values.shape[:2])
        yield f"={_OUTER[start]}{name.removeprefix(start)}", values


FAMILIES = {
    "parakeet": Family(
        "parakeet", _keys, common=_common, change=_change, activation="relu",
        f32=(".conv1d.", ".conv_dw."),
        defaults={
            "num_hidden_layers": 0, "decoder_hidden_size": 640, "num_decoder_layers": 2,
            "max_symbols_per_step": 10, "durations": [0, 1, 2, 3, 4],
        },
    ),
}  # fmt: skip
