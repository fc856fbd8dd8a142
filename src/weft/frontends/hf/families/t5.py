"""T5 and its relatives mT5 and UMT5: encoder and decoder, or the encoder alone."""

from __future__ import annotations

import re
from functools import partial

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.encoders import dense_keys, dense_tensors
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, pooling_keys
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.unigrams import unigrams
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, has

_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_OUTER = {
    "lm_head.weight": "output.weight",
    "encoder.final_layer_norm.weight": "enc.output_norm.weight",
    "decoder.final_layer_norm.weight": "dec.output_norm.weight",
}
_LAYER = re.compile(r"(enc|dec)oder\.block\.(\d+)\.layer\.\d\.(?:(\w+)\.)?(\w+)\.weight")
_PARTS = {"SelfAttention": "attn_", "EncDecAttention": "cross_attn_", "DenseReluDense": "ffn_"}
_FEED_FORWARD = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
_BIAS = "relative_attention_bias"
_UMT5 = f"decoder.block.1.layer.0.SelfAttention.{_BIAS}.weight"


def _common(c: Config, *, decoder: bool) -> Pairs:
    yield "context_length", c.get("n_positions", 512)
    yield "embedding_length", c["d_model"]
    yield "feed_forward_length", c["d_ff"]
    yield "block_count", c.n_layer
    if decoder and c.get("num_decoder_layers") is not None:
        yield "decoder_block_count", c["num_decoder_layers"]
    yield "attention.head_count", c["num_heads"]
    yield "attention.key_length", c["d_kv"]
    yield "attention.value_length", c["d_kv"]
    epsilon = float(c["layer_norm_epsilon"])
    yield "attention.layer_norm_epsilon", epsilon
    yield "attention.relative_buckets_count", c["relative_attention_num_buckets"]
    yield "attention.layer_norm_rms_epsilon", epsilon
    if decoder:
        yield "decoder_start_token_id", c["decoder_start_token_id"]
    yield "general.file_type", None


def _own_keys(c: Config) -> Pairs:
    """Checks a setting that GGUF has no key for: an activation other than GELU in a gate."""
    farthest = c["relative_attention_max_distance"]
    if farthest != 128:
        raise c.bad("relative_attention_max_distance", f"is {farthest}; weft computes 128 only")
    act = c["feed_forward_proj"]
    if act == "gated-silu":
        yield "hidden_activation", "silu"
    elif act not in ("relu", "gated-gelu", "gated-gelu_new"):
        known = "relu, gated-gelu and gated-silu"
        raise c.bad("feed_forward_proj", f"is {act!r}; weft computes {known} only")


def _decoder_keys(c: Config) -> Pairs:
    """Also the scale of logits, where it is not that which a file without it has."""
    yield from _own_keys(c)
    tied = c.get("tie_word_embeddings", True)
    scaled = bool(c.get("scale_decoder_outputs", tied)) and not c.cls.startswith("MT5")
    names = open_shards(c.folder)
    first = c["feed_forward_proj"] == "relu" or _UMT5 in names
    if scaled != (first and "lm_head.weight" not in names):
        yield "logit_scale", float(c["d_model"] ** -0.5) if scaled else 1.0


def _encoder_keys(c: Config) -> Pairs:
    """Also pooling and dense layers of sentence-transformers, where they are not the mean alone."""
    yield from _own_keys(c)
    dense = list(dense_keys(c))
    pooling = list(pooling_keys(c))
    yield from dense
    if pooling != [("pooling_type", 1)]:
        yield from pooling


def _change(c: Config, name: str, values: Values) -> Named:
    """Gives names of GGUF. The embedding is the same for all, and may be stored several times."""
    if name in _EMBEDDINGS:
        if name == next(n for n in open_shards(c.folder) if n in _EMBEDDINGS):
            yield "=token_embd.weight", values
        return
    layer = _LAYER.fullmatch(name)
    if layer is None:
        yield f"={_OUTER[name]}" if name in _OUTER else name, values
        return
    side, number, part, kind = layer.groups()
    if part is None:  # the norm in front of a part, which is known by its place in the layer
        part = _part_of_norm(name)
        kind = "norm"
    elif part == "DenseReluDense":
        kind = _FEED_FORWARD.get(kind, kind)
    elif kind == _BIAS:
        kind = "rel_b"
    yield f"={side}.blk.{number}.{_PARTS.get(part, part)}{kind}.weight", values


def _part_of_norm(name: str) -> str:
    place = int(name.split(".")[4])
    parts = ("SelfAttention", "EncDecAttention", "DenseReluDense")
    return parts[2 * place if name.startswith("encoder") else place]


def _vocab(c: Config) -> Vocabulary:
    for name in ("tokenizer.model", "spiece.model"):
        if has(c, name):
            return unigrams(c, model=name, types=False)
    return unigrams(c, types=False)


_DEFAULTS = {
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "decoder_start_token_id": 0,
    "feed_forward_proj": "relu",
}

FAMILIES = {
    "t5": Family(
        "t5", _decoder_keys, common=partial(_common, decoder=True), change=_change, vocab=_vocab,
        defaults=_DEFAULTS, activation="",
    ),
    "mt5": Family(
        "t5", _decoder_keys, common=partial(_common, decoder=True), change=_change, vocab=_vocab,
        defaults=_DEFAULTS | {"feed_forward_proj": "gated-gelu"}, activation="",
    ),
    "t5encoder": Family(
        "t5encoder", _encoder_keys, common=partial(_common, decoder=False), change=_change,
        extra=dense_tensors, vocab=_vocab, defaults=_DEFAULTS, activation="",
    ),
}  # fmt: skip
