"""Towers for sound that are conformers in folders: Gemma 4, LFM2-Audio, Granite Speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import TowerFamily, count_of, part_of
from weft.frontends.hf.towers.whisper import LAYERS, PART, require_known
from weft.frontends.hf.values import Floats, Values

# -- Gemma 4 ---------------------------------------------------------------------------------------

BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.post": "attn_out", "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down", "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1", "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
}  # fmt: skip
_PROJECTION = {"embed_audio.embedding_projection": "mm.a.input_projection"}
_FOLD = "audio_tower.subsample_conv_projection"
_GEMMA4_NAMES = {
    **{f"{_FOLD}.layer{i}.conv": f"a.conv1d.{i}" for i in range(2)},
    **{f"{_FOLD}.layer{i}.norm": f"a.conv1d.{i}.norm" for i in range(2)},
    f"{_FOLD}.input_proj_linear": "a.input_projection",
    "audio_tower.output_proj": "a.pre_encode.out",
    "feed_forward1.pre_layer_norm": "ffn_norm", "feed_forward1.post_layer_norm": "ffn_post_norm",
    "feed_forward2.pre_layer_norm": "ffn_norm_1",
    "feed_forward2.post_layer_norm": "ffn_post_norm_1",
    "norm_pre_attn": "attn_pre_norm", "norm_post_attn": "attn_post_norm", "norm_out": "ln2",
    "lconv1d.pre_layer_norm": "conv_norm", "lconv1d.conv_norm": "norm_conv",
    "lconv1d.depthwise_conv1d": "conv_dw", "self_attn.relative_k_proj": "attn_k_rel",
    "self_attn.per_dim_scale": "per_dim_scale.weight",
    **{f"{name}.linear": file for name, file in _MATRICES.items()},
    **{f"{name}.{end}": f"{file}.{end}" for name, file in _MATRICES.items() for end in BOUNDS},
    **_PROJECTION,
}  # fmt: skip
_GEMMA4_KNOWN = {
    "hidden_act": "silu", "conv_kernel_size": 5, "residual_weight": 0.5, "rms_norm_eps": 1e-6,
    "attention_chunk_size": 12, "attention_context_left": 13, "attention_context_right": 0,
    "attention_logit_cap": 50.0,
}  # fmt: skip


def _gemma4_keys(c: Config) -> Pairs:
    require_known(c, _GEMMA4_KNOWN)
    n_embd = count_of(c, PART, "hidden_size")
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", n_embd
    yield "audio.feed_forward_length", 4 * n_embd
    yield "audio.block_count", count_of(c, PART, "num_hidden_layers")
    yield "audio.attention.head_count", count_of(c, PART, "num_attention_heads")
    yield "projector_type", "gemma4a"
    yield "audio.num_mel_bins", count_of(c, PART, "input_feat_size", default=128)
    yield "audio.attention.layer_norm_epsilon", 1e-6


def _gemma4_change(c: Config, name: str, values: Values) -> Named:
    """Numbers are vectors of one; a scale is stored as its softplus; kernels of one channel lose
    it."""
    if not values.shape:
        values = values.reshaped(1)
    if name.endswith("per_dim_scale.weight"):
        values = values.through(lambda x: np.logaddexp(0, x).astype(np.float32))
    if name.endswith("conv_dw.weight"):
        values = values.reshaped(values.shape[0], values.shape[-1])
    yield name, values


GEMMA4 = TowerFamily(
    _gemma4_keys, ("audio_tower.", "embed_audio."), LAYERS, _GEMMA4_NAMES, _gemma4_change,
    f32=(".conv1d.", ".conv_dw.", "^a.input_projection."),
)  # fmt: skip


def _unified_keys(c: Config) -> Pairs:
    """The 12B model's: it has no layers, for which converters write 0."""
    n = count_of(c, PART, "audio_embed_dim", default=640)
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", n
    for key in ("feed_forward_length", "block_count", "attention.head_count"):
        yield f"audio.{key}", 0
    yield "projector_type", "gemma4ua"
    yield "audio.num_mel_bins", 128  # of no use; converters write it
    yield "audio.attention.layer_norm_epsilon", part_of(c, PART).get("rms_norm_eps", 1e-6)


GEMMA4_UNIFIED = TowerFamily(_unified_keys, ("embed_audio.",), {}, _PROJECTION)


# -- LFM2-Audio ------------------------------------------------------------------------------------

_LFM2_NAMES = {
    **{f"conformer.pre_encode.conv.{i}": f"a.conv1d.{i}" for i in (0, 2, 3, 5, 6)},
    "conformer.pre_encode.out": "a.pre_encode.out",
    "norm_feed_forward1": "ffn_norm", "norm_feed_forward2": "ffn_norm_1", "norm_self_att": "ln1",
    "norm_conv": "norm_conv", "norm_out": "ln2",
    "feed_forward1.linear1": "ffn_up", "feed_forward1.linear2": "ffn_down",
    "feed_forward2.linear1": "ffn_up_1", "feed_forward2.linear2": "ffn_down_1",
    "self_attn.linear_q": "attn_q", "self_attn.linear_k": "attn_k", "self_attn.linear_v": "attn_v",
    "self_attn.linear_out": "attn_out", "self_attn.linear_pos": "linear_pos",
    "self_attn.pos_bias_u": "pos_bias_u", "self_attn.pos_bias_v": "pos_bias_v",
    "conv.pointwise_conv1": "conv_pw1", "conv.depthwise_conv": "conv_dw",
    "conv.pointwise_conv2": "conv_pw2", "conv.batch_norm": "conv_norm",
    **{f"audio_adapter.model.{i}": f"mm.a.mlp.{i}" for i in (0, 1, 3)},
    "audio_embedding.embedding": "a.position_embd",
    "audio_embedding.embedding_norm": "a.position_embd_norm",
    "audio_embedding.to_logits": "a.embd_to_logits",
}  # fmt: skip
_MEANS = (".running_mean", ".running_var")


class _Conformer(TowerFamily):
    """A conformer whose batch norms become a factor and a sum in files."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors, without means and variances."""
        own = {
            name: _folded(name, values, stored)
            for name, values in stored.items()
            if not name.endswith((*_MEANS, ".num_batches_tracked"))
        }
        return super().tensors(c, own)


def _folded(name: str, values: Values, stored: Mapping[str, Values]) -> Values:
    """A weight or bias of a batch norm with the mean and variance beside it; others as they are."""
    stem, _, kind = name.rpartition(".")
    if not stem.endswith(".batch_norm"):
        return values
    mean, var, weight = (stored.get(f"{stem}{end}") for end in (*_MEANS, ".weight"))
    if mean is None or var is None or weight is None:
        return values

    def load() -> Floats:
        factor = weight.load() / np.sqrt(var.load() + np.float32(1e-5))
        out = factor if kind == "weight" else values.load() - mean.load() * factor
        return np.asarray(out, np.float32)

    return Values(values.shape, "f32", load)


def _lfm2_keys(c: Config) -> Pairs:
    part = "encoder"
    n_embd = count_of(c, part, "d_model")
    for key, known in (("subsampling_factor", 8), ("self_attention_model", "rel_pos")):
        if part_of(c, part).get(key, known) != known:
            raise c.bad(f"{part}.{key}", f"is {part_of(c, part)[key]!r}; weft knows {known!r} only")
    yield "general.file_type", 0
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", n_embd
    yield "audio.feed_forward_length", n_embd  # of no use; converters write it
    yield "audio.block_count", count_of(c, part, "n_layers")
    yield "audio.attention.head_count", count_of(c, part, "n_heads")
    yield "projector_type", "lfm2a"
    yield "audio.num_mel_bins", count_of(c, part, "feat_in")
    yield "audio.attention.layer_norm_epsilon", 1e-5


def _lfm2_change(c: Config, name: str, values: Values) -> Named:
    """The first convolutions add their biases to planes; kernels of one channel or row lose it."""
    if name.startswith("a.conv1d.") and name.endswith(".bias"):
        values = values.reshaped(*values.shape, 1, 1)
    if len(values.shape) == 3 and ".conv_" in name:
        n, n_in, size = values.shape
        values = values.reshaped(n, size if "conv_dw" in name else n_in)
    yield name, values


LFM2 = _Conformer(
    _lfm2_keys, ("conformer.", "audio_adapter.", "audio_embedding."),
    {"conformer.layers": "a.blk"}, _LFM2_NAMES, _lfm2_change,
    f32=(".conv1d.", ".conv_dw.", ".conv_pw"),
)  # fmt: skip


# -- Granite Speech --------------------------------------------------------------------------------

QFORMER = {
    **{
        f"{part}attention.{old}": f"{kind}_attn_{new}"
        for part, kind in (("attention.", "self"), ("crossattention.", "cross"))
        for old, new in (("query", "q"), ("key", "k"), ("value", "v"))
    },
    **{
        f"{part}.output.{old}": f"{kind}_attn_{new}"
        for part, kind in (("attention", "self"), ("crossattention", "cross"))
        for old, new in (("dense", "out"), ("LayerNorm", "norm"))
    },
    "intermediate_query.dense": "ffn_up", "output_query.dense": "ffn_down",
    "output_query.LayerNorm": "ffn_norm",
}  # fmt: skip
"""Names of the tensors of a layer of a Q-Former."""
_GRANITE_NAMES = {
    "encoder.input_linear": "a.input_projection", "encoder.out": "a.enc_ctc_out",
    "encoder.out_mid": "a.enc_ctc_out_mid", "projector.query": "a.proj_query",
    "projector.qformer.layernorm": "a.proj_norm", "projector.linear": "a.proj_linear",
    "ff1.pre_norm": "ffn_norm", "ff1.up_proj": "ffn_up", "ff1.down_proj": "ffn_down",
    "ff2.pre_norm": "ffn_norm_1", "ff2.up_proj": "ffn_up_1", "ff2.down_proj": "ffn_down_1",
    "attn.pre_norm": "ln1", "attn.to_q": "attn_q", "attn.to_kv": "attn_kv",
    "attn.to_out": "attn_out", "attn.rel_pos_emb": "attn_rel_pos_emb", "conv.norm": "norm_conv",
    "conv.up_conv": "conv_pw1", "conv.down_conv": "conv_pw2", "conv.depth_conv.conv": "conv_dw",
    "conv.batch_norm": "conv_norm", "post_norm": "ln2",
    **QFORMER,
}  # fmt: skip


def _granite_keys(c: Config) -> Pairs:
    part, projector = "encoder_config", "projector_config"
    known = {"hidden_act": "gelu", "cross_attention_frequency": 1, "layer_norm_eps": 1e-12}
    given = {"cross_attention_frequency": 2, **part_of(c, projector)}
    for key, value in known.items():
        if given.get(key, value) != value:
            raise c.bad(f"{projector}.{key}", f"is {given[key]!r}; weft knows {value!r} only")
    n_embd = count_of(c, part, "hidden_dim", default=1024)
    yield "general.file_type", 0
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", n_embd
    yield "audio.feed_forward_length", n_embd * count_of(c, part, "feedforward_mult", default=4)
    yield "audio.block_count", count_of(c, part, "num_layers", default=10)
    yield "audio.attention.head_count", count_of(c, part, "num_heads", default=8)
    yield "projector_type", "granite_speech"
    yield "audio.num_mel_bins", count_of(c, part, "input_dim", default=160)
    yield "audio.attention.layer_norm_epsilon", 1e-5
    yield "audio.chunk_size", count_of(c, part, "context_size", default=200)
    yield "audio.conv_kernel_size", count_of(c, part, "conv_kernel_size", default=15)
    yield "audio.max_pos_emb", count_of(c, part, "max_pos_emb", default=512)
    for key, usual in (("window_size", 15), ("downsample_rate", 5)):
        value = c.get(key, usual)
        if type(value) is not int or value < 1:
            raise c.bad(key, f"is {value!r}, and must be an integer of 1 or more")
        yield f"audio.projector.{key}", value
    yield "audio.projector.head_count", count_of(c, projector, "num_attention_heads", default=12)


def _granite_change(c: Config, name: str, values: Values) -> Named:
    """Keys and values are apart in files; kernels of one channel or row lose it."""
    if ".attn_kv." in name:
        half = values.shape[0] // 2
        for part, new in zip(values.split(half, half), "kv", strict=True):
            yield name.replace("attn_kv", f"attn_{new}"), part
        return
    if len(values.shape) == 3 and ".conv_" in name:
        n, n_in, size = values.shape
        values = values.reshaped(n, size if "conv_dw" in name else n_in)
    if name == "a.proj_query":
        values = values.reshaped(*values.shape[1:])
    yield name.replace("rel_pos_emb.weight", "rel_pos_emb"), values


GRANITE_SPEECH = _Conformer(
    _granite_keys, ("encoder.", "projector."),
    {"encoder.layers": "a.blk", "projector.qformer.encoder.layer": "a.proj_blk"}, _GRANITE_NAMES,
    _granite_change, f32=(".conv_dw.", ".conv_pw"),
)  # fmt: skip
