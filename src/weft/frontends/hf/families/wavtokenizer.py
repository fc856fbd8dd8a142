"""The decoder of WavTokenizer in folders, with the codebook; what hears is left out."""

from __future__ import annotations

import re
from math import prod

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary

_BLOCK = re.compile(r"backbone\.(pos_?net|convnext)\.(\d+)\.(.+)")
_PARTS = {
    "dwconv.weight": "dw.weight", "dwconv.bias": "dw.bias", "norm.scale.weight": "norm.weight",
    "norm.shift.weight": "norm.bias", "pwconv1.weight": "pw1.weight", "pwconv1.bias": "pw1.bias",
    "pwconv2.weight": "pw2.weight", "pwconv2.bias": "pw2.bias", "gamma": "gamma.weight",
    "q.weight": "attn_q.weight", "q.bias": "attn_q.bias", "k.weight": "attn_k.weight",
    "k.bias": "attn_k.bias", "v.weight": "attn_v.weight", "v.bias": "attn_v.bias",
    "proj_out.weight": "attn_output.weight", "proj_out.bias": "attn_output.bias",
    "norm.weight": "attn_norm.weight", "norm.bias": "attn_norm.bias", "weight": "attn_norm.weight",
    "bias": "attn_norm.bias",
}  # fmt: skip
_OUTER = {
    "encoder_model.quantizer.codebook.embed": "token_embd.weight",
    "backbone.embed.weight": "conv1d.weight", "backbone.embed.bias": "conv1d.bias",
    "backbone.norm.scale.weight": "token_embd_norm.weight",
    "backbone.norm.shift.weight": "token_embd_norm.bias",
    "backbone.final_layer_norm.weight": "output_norm.weight",
    "backbone.final_layer_norm.bias": "output_norm.bias",
    "head.linear.weight": "output.weight", "head.linear.bias": "output.bias",
}  # fmt: skip
_POSNET = 6
"""Blocks in front of the ConvNeXt blocks: two residual ones, attention, two more, and a norm."""


def _common(c: Config) -> Pairs:
    ratios = c.get("upsampling_ratios")
    if not isinstance(ratios, list) or not all(type(r) is int and r > 0 for r in ratios):
        raise c.bad("upsampling_ratios", f"is {ratios!r}; it is a list of counts")
    width, eps = c.count("decoder_hidden_size"), float(c["norm_eps"])
    yield "block_count", max(_POSNET, c.count("decoder_num_layers"))
    yield "context_length", 8192  # other programs ask for it
    yield "embedding_length", 4 * prod(ratios) + 2
    yield "features_length", c.count("hidden_size")
    yield "feed_forward_length", c.count("decoder_intermediate_size")
    yield "vocab_size", c.count("codebook_size")
    yield "attention.layer_norm_epsilon", eps
    yield "attention.group_norm_epsilon", eps
    yield "attention.group_norm_groups", c.count("decoder_attention_num_groups")
    yield "attention.causal", False
    yield "posnet.embedding_length", width
    yield "posnet.block_count", _POSNET
    yield "convnext.embedding_length", width
    yield "convnext.block_count", c.count("decoder_num_layers")
    if c.get("sampling_rate", 24000) != 24000:
        yield "sample_rate", c.count("sampling_rate")
    yield "general.file_type", None


def _change(c: Config, name: str, values: Values) -> Named:
    block = _BLOCK.fullmatch(name)
    if name in _OUTER:
        new = _OUTER[name]
    elif block is not None:
        kind, number, part = block.groups()
        part = _PARTS.get(part, part if kind.startswith("pos") else "")
        if not re.fullmatch(r"[a-z0-9_]+\.(weight|bias)", part):
            raise FormatError(f"{c.folder}: tensor {name} has no place in WavTokenizer's decoder")
        new = f"{'posnet' if kind.startswith('pos') else kind}.{number}.{part}"
    elif name.startswith(("backbone.", "head.")) and not name.endswith(".window"):
        raise FormatError(f"{c.folder}: tensor {name} has no place in WavTokenizer's decoder")
    else:
        return
    if name.endswith((".scale.weight", ".shift.weight")):  # the first row is the one in use
        values = values.taken(0, shape=values.shape[1:])
    column = new.startswith("posnet.") or new == "conv1d.bias" or new.endswith(".dw.bias")
    if column and len(values.shape) == 1:  # norms and biases of convolutions
        values = values.reshaped(*values.shape, 1)
    yield f"={new}", values


def _no_vocabulary(c: Config) -> Vocabulary:
    yield "tokenizer.ggml.model", "none"


FAMILIES = {
    "wavtokenizer-dec": Family(
        "wavtokenizer-dec", common=_common, change=_change, vocab=_no_vocabulary, activation="",
        kernels=(".conv1.", ".conv2.", "conv1d.", ".dw."), f32=(".norm1.", ".norm2.", "attn_norm"),
        defaults={
            "num_hidden_layers": 12, "upsampling_ratios": [6, 5, 5, 4], "hidden_size": 512,
            "codebook_size": 4096, "decoder_hidden_size": 768, "decoder_intermediate_size": 2304,
            "decoder_num_layers": 12, "decoder_attention_num_groups": 32, "norm_eps": 1e-6,
        },
    ),
}  # fmt: skip
