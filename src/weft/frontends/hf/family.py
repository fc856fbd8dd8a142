"""`Family`: how a kind of model in a Hugging Face folder becomes the tensors and keys of GGUF.

A family says how it differs from LLaMA: keys beside the common ones, names beside `NAMES`, and what
happens to the values of a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values, stacked
from weft.frontends.hf.vocab import Vocabulary, bpe
from weft.records import dataclass

Named = Iterable[tuple[str, Values]]
Change = Callable[[Config, str, Values], Named]
"""Maps a tensor's name in the folder and its values to new names and values. A result whose name
begins with `=` has its GGUF name already."""

_OUTER_NAMES = {
    "token_embd": "embed_tokens wte word_embeddings embeddings.word_embeddings "
    "embeddings.tok_embeddings embed_in tok_embeddings embeddings embedding",
    "output_norm": "norm ln_f final_layernorm final_norm final_layer_norm norm_f",
    "output": "lm_head embed_out output",
    "token_embd_norm": "embeddings.LayerNorm emb_ln embeddings.norm word_embeddings_layernorm "
    "embedding_norm",
    "position_embd": "embeddings.position_embeddings wpe",
    "cls": "pooler.dense pre_classifier classifier.dense head.dense dense",
    "cls.output": "classifier.out_proj classifier",
    "token_types": "embeddings.token_type_embeddings", "cls.norm": "head.norm",
    "enc.output_norm": "layer_norm", "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}  # fmt: skip
"""The names that folders have for tensors outside the layers, by the name in GGUF files, without
`.weight` and `.bias`."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm attn_norm attention_norm ln_1 norm_1 ln_mlp operator_norm "
    "attention_layernorm norm norm_attn_norm.norm_1",
    "attn_q": "self_attn.q_proj attention.self.query attention.q_lin attn.attention.q_proj attn.q "
    "mixer.q_proj",
    "attn_k": "self_attn.k_proj attention.self.key attention.k_lin attn.attention.k_proj "
    "mixer.k_proj",
    "attn_v": "self_attn.v_proj attention.self.value attention.v_lin attn.attention.v_proj "
    "mixer.v_proj",
    "attn_output": "self_attn.o_proj attention.output.dense attention.out_lin attn.out_proj "
    "attention.dense attn.Wo wo attn.attention.out_proj attn.c_proj self_attention.dense "
    "self_attn.out_proj attention.wo norm_attn_norm.attn.out_proj mixer.o_proj self_attn.dense",
    "attn_qkv": "self_attn.qkv_proj attn.Wqkv mixer.Wqkv attention.query_key_value "
    "linear_attn.in_proj_qkv qkv attn.c_attn self_attention.query_key_value "
    "norm_attn_norm.attn.Wqkv",
    "attn_q_norm": "self_attn.q_norm attention.self.layer_norm_q attention.query_layernorm "
    "attn.q_ln self_attn.q_layernorm self_attn.query_layernorm",
    "attn_k_norm": "self_attn.k_norm attention.self.layer_norm_k attention.key_layernorm "
    "attn.k_ln self_attn.k_layernorm self_attn.key_layernorm",
    "ffn_norm": "post_attention_layernorm mlp_norm ffn_norm pre_feedforward_layernorm ln_2 norm_2 "
    "pre_ff_layernorm feedforward_layernorm pre_mlp_layernorm",
    "ffn_gate": "mlp.gate_proj mlp.fc12 mlp.c_fc_0 feed_forward.gate_proj "
    "block_sparse_moe.gate_proj feed_forward.w1",
    "ffn_up": "mlp.up_proj mlp.gate_up_proj intermediate.dense ffn.lin1 mlp.fc11 mlp.fc1 "
    "mlp.gated_layers mlp.up_gated_layer mlp.Wi ffn.w12 mlp.c_fc_1 mlp.c_fc mlp.dense_h_to_4h "
    "ffn.up_proj feed_forward.up_proj block_sparse_moe.up_proj feed_forward.w3 mixer.up_proj",
    "ffn_down": "mlp.down_proj output.dense ffn.lin2 mlp.fc2 mlp.wo mlp.down_layer mlp.Wo ffn.w3 "
    "mlp.c_proj mlp.dense_4h_to_h ffn.down_proj feed_forward.down_proj "
    "block_sparse_moe.down_proj feed_forward.w2 mixer.down_proj",
    "ffn_gate_inp": "mlp.gate mlp.router block_sparse_moe.gate mlp.router.layer router.proj "
    "block_sparse_moe.router.layer feed_forward.router feed_forward.gate mlp.gate.wg "
    "mlp.router.gate ffn.router.layer mixer.gate block_sparse_moe.router",
    "ffn_gate_exps": "mlp.experts.gate_proj block_sparse_moe.experts.w1 "
    "feed_forward.experts.gate_proj feed_forward.experts.w1 ffn.experts.mlp.w1 "
    "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj block_sparse_moe.experts.w3 mlp.experts.mlp.w1 "
    "feed_forward.experts.up_proj feed_forward.experts.w3 ffn.experts.mlp.v1 "
    "mixer.experts.up_proj mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj block_sparse_moe.experts.w2 mlp.experts.mlp.w2 "
    "experts.down_proj feed_forward.experts.down_proj feed_forward.experts.w2 ffn.experts.mlp.w2 "
    "mixer.experts.down_proj mlp.switch_mlp.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj "
    "block_sparse_moe.shared_experts.gate_proj feed_forward.shared_expert.gate_proj "
    "mlp.shared_mlp.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj mlp.shared_experts.up_proj "
    "block_sparse_moe.shared_experts.up_proj feed_forward.shared_expert.up_proj "
    "mlp.shared_mlp.up_proj mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj mlp.shared_experts.down_proj "
    "block_sparse_moe.shared_experts.down_proj feed_forward.shared_expert.down_proj "
    "mlp.shared_mlp.down_proj mixer.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction mlp.e_score_correction mlp.gate.expert_bias "
    "block_sparse_moe.gate.e_score_correction feed_forward.expert_bias mlp.expert_bias "
    "block_sparse_moe.e_score_correction mixer.gate.e_score_correction "
    "mlp.experts.e_score_correction",
    "attn_output_norm": "attention.output.LayerNorm sa_layer_norm norm1 norm_attn_norm.norm_2",
    "layer_output_norm": "output.LayerNorm output_layer_norm norm2 mlp.layernorm layer_norm_2 "
    "final_layernorm",
    "attn_norm_2": "layer_norm_1 ln_attn",
    "attn_gate": "linear_attn.in_proj_z self_attn.g_proj self_attn.gate_proj",
    "ssm_beta": "linear_attn.in_proj_b self_attn.b_proj",
    "ssm_conv1d": "linear_attn.conv1d mamba.conv1d mixer.conv1d",
    "ssm_dt": "linear_attn.dt_proj mamba.dt_proj self_attn.dt_proj mixer.dt_proj",
    "ssm_dt.bias": "linear_attn.dt_bias mamba.dt_bias self_attn.dt_bias mixer.dt_bias",
    "ssm_a": "linear_attn.A_log mamba.A_log self_attn.A_log mixer.A_log",
    "ssm_norm": "linear_attn.norm mamba.norm self_attn.o_norm mixer.norm",
    "ssm_out": "linear_attn.out_proj mamba.out_proj mixer.out_proj",
    "post_ffw_norm": "post_feedforward_layernorm post_mlp_layernorm",
    "ssm_in": "mamba.in_proj mixer.in_proj",
    "ssm_x": "mamba.x_proj mixer.x_proj",
    "ssm_d": "mamba.D mixer.D",
    "attn_sub_norm": "self_attn.attn_sub_norm self_attn.inner_attn_ln",
    "ffn_sub_norm": "mlp.ffn_sub_norm mlp.ffn_layernorm",
    "post_attention_norm": "post_self_attn_layernorm post_attention_norm",
    "attn_sinks": "self_attn.sinks", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens", "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm", "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj", "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk", "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj", "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a", "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
    "altup_correct_scale": "altup.correct_output_scale",
    "altup_correct_coef": "altup.correction_coefs", "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm", "layer_output_scale": "layer_scalar",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn.act": "ffn.act", "ssm_dt_norm": "mamba.dt_layernorm", "ssm_b_norm": "mamba.b_layernorm",
    "ssm_c_norm": "mamba.c_layernorm", "ssm_conv1d_q": "self_attn.q_conv1d",
    "ssm_conv1d_k": "self_attn.k_conv1d", "ssm_conv1d_v": "self_attn.v_conv1d",
    "ssm_f_a": "self_attn.f_a_proj", "ssm_f_b": "self_attn.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj", "ssm_g_b": "self_attn.g_b_proj", "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj", "ffn_latent_up": "mixer.fc2_latent_proj",
}  # fmt: skip
"""The same for the tensors of a layer, without `blk.N.` in front."""

NAMES, LAYER_NAMES = (
    {name: new for new, names in table.items() for name in names.split()}
    for table in (_OUTER_NAMES, _LAYER_NAMES)
)
"""GGUF names by names in folders. A family in which one of them means something else says so in
`Family.names`."""

NORM_BEHIND = {"post_attention_layernorm": "post_attention_norm"}
"""Names of families in which this norm follows attention."""

_IGNORED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq",
            ".attn.masked_bias", ".attn.bias")  # fmt: skip
# Towers for pictures and sound; the text model does without them.
_TOWER_STARTS = ("mlp", "vit.", "vpm.", "siglip2.", "conformer.", "merger.", "resampler.",
                 "sound_encoder.", "sound_projection.", "speech_embeddings.", "depthformer.",
                 "depth_linear.", "depth_embeddings.", "codebook_offsets")  # fmt: skip
_TOWER_PARTS = ("visual.", "vision.", "audio.", "talker.", "vision_", "audio_", "token2wav.",
                "code2wav.", "projector.", "_projectors.", "pre_mm_projector_norm", "image_newline",
                "view_seperator", "patch_embed", "patch_merger.", "patch_merge_mlp.",
                "model.connector.", "vqmodel.", "aligner.", "generation_", "model.merger.",
                "vit_merger.", "sam_model.", "qwen2_model.")  # fmt: skip
# Matrices of the model for the rows of images (CogVLM) and of sounds (Parakeet), whose names look
# like a tower's.
_NO_TOWER = ("self_attn.vision_expert_", "mlp.vision_mlp.", "encoder_projector.",
             "decoder.decoder_projector.")  # fmt: skip
_LAYER = re.compile(r"(?:layers|layer|h|blocks)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_ROOTS = ("model.", "transformer.", "gpt_neox.", "backbone.", "decoder.", "encoder.", "bert.",
          "language_model.", "lfm.")  # fmt: skip

# Matrices that stay float32 in a file of any type: routers, and small ones that kernels read so.
_F32 = frozenset(
    (
        "ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd", "token_types", "ssm_conv1d",
        "shortconv.conv", "time_mix_first", "time_mix_w1", "time_mix_w2", "time_mix_decay_w1",
        "time_mix_decay_w2", "time_mix_lerp_fused", "altup_correct_coef", "altup_predict_coef",
        "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "indexer.proj",
        "v.position_embd",
    )
)  # fmt: skip

# Matrices that every model multiplies by the number in their tensor `.scale`.
_SCALED = frozenset(
    (
        "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
        "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_exps", "ffn_up_exps",
        "ffn_down_exps", "output",
    )
)  # fmt: skip


ROTARY = {"rope_theta": 10000.0}
DERIVED = {**ROTARY, "head_dim": 0}
"""Defaults of families; a `head_dim` of 0 stands for the width divided by the number of heads."""


def as_is(c: Config, name: str, values: Values) -> Named:
    """The change that changes nothing."""
    return ((name, values),)


def no_keys(c: Config) -> Pairs:
    """No metadata beside the common."""
    return ()


def apart(c: Config, tensors: Named) -> Named:
    """Joins no tensors."""
    return tensors


def no_tensors(c: Config) -> Named:
    """No tensors that the folder lacks."""
    return ()


def never(il: int) -> bool:
    """No layer has a window."""
    return False


def no_variant(config: Mapping[str, Any]) -> str:
    """Selects this family for every folder."""
    return ""


@dataclass(frozen=True)
class Family:
    """A kind of model: what `general.architecture` calls it, and how its folder differs."""

    arch: str
    keys: Callable[[Config], Pairs] = no_keys
    """Metadata behind the common; a key that is there already changes its value. Keys with a known
    beginning (`general.`, `tokenizer.`) are whole, the others get the architecture in front."""
    common: Callable[[Config], Pairs] = common_keys
    """Metadata in front of `keys`."""
    first: Callable[[Config], Pairs] = no_keys
    """Metadata in front of the model's name."""
    names: Mapping[str, str] | None = None
    """Names of a layer's tensors beside `LAYER_NAMES`."""
    outer: Mapping[str, str] | None = None
    """Names of other tensors beside `NAMES`."""
    join: Callable[[Config, Named], Named] = apart
    """Joins tensors of which GGUF files have one, before they are changed."""
    change: Change = as_is
    extra: Callable[[Config], Named] = no_tensors
    """Tensors in front of the folder's, such as the factors of scaled rotary embeddings."""
    vocab: Callable[[Config], Vocabulary] = bpe
    defaults: Mapping[str, object] | None = None
    """Values that config.json may leave out, as transformers has them."""
    adjacent: bool = False
    """True if converters put the rows of queries and keys in the order in which adjacent pairs
    rotate. Loaded straight, they stay as they are, and halves rotate."""
    halves: bool = False
    """True if halves rotate, though other programs rotate adjacent pairs in files of the
    architecture; files that are made here say so."""
    activation: str = "silu"
    """The activation of feed-forward layers; empty: config.json may have any, and `keys` says which
    or refuses it."""
    fixed: Mapping[str, tuple[object, ...]] | None = None
    """Settings, and the values that the architecture knows beside null; others are refused."""
    windows: Callable[[int], bool] | None = None
    """Whether a layer, by number, has the sliding window if the file does not say so; for classes
    that have a window beside the one in `keys`. None: other classes."""
    norm_topk: bool | None = None
    """Whether the weights of chosen experts have the sum 1 if the file does not say so, for classes
    with `norm_topk_prob`. None: other classes, and classes whose `keys` write it."""
    latent_eps: float = 1e-6
    """The epsilon of norms in latent attention, whatever config.json says of other norms; 0: they
    have the epsilon of other norms."""
    f32_routers: bool = True
    """False if routers have the type of other matrices."""
    variant: Callable[[Mapping[str, Any]], str] = no_variant
    """Name of the family in the same table that config.json selects for a folder; "" for this
    family."""
    experts: tuple[str, ...] = ("down_proj", "gate_proj", "up_proj")
    """The matrices of an expert, in the order in which converters write them."""

    f32: tuple[str, ...] = ()
    """Parts of names of matrices that are float32 in a file of any type."""
    kernels: tuple[str, ...] = ()
    """Parts of names of kernels of convolutions, which are float16 in a file of any type."""

    def is_kernel(self, name: str) -> bool:
        """True for the kernel of a convolution, by its name in a file."""
        return name.endswith(".weight") and any(part in name for part in self.kernels)

    def gguf_name(self, c: Config, name: str) -> str:
        """The name of the folder's tensor `name` in a GGUF file. Raises FormatError if the
        architecture has no such tensor."""
        if name.startswith("="):
            return name[1:]
        bare = name
        while bare.startswith(_ROOTS):
            bare = bare.partition(".")[2]
        layer = _LAYER.fullmatch(bare)
        stem, kind = _suffix(layer[2] if layer else bare)
        own, table = (self.names, LAYER_NAMES) if layer else (self.outer, NAMES)
        found = (own or {}).get(stem) or table.get(stem)
        if found is None:
            raise FormatError(
                f"{c.folder}: tensor {name} has no place in a model of the architecture "
                f"{self.arch}; leaving it out would give wrong results"
            )
        return f"blk.{layer[1]}.{found}{kind}" if layer else f"{found}{kind}"


def _suffix(name: str) -> tuple[str, str]:
    for kind in (".weight", ".bias"):
        if name.endswith(kind):
            return name.removesuffix(kind), kind
    return name, ""


def is_f32(family: Family, name: str, n_dims: int) -> bool:
    """True if the tensor of that GGUF name is float32 in a file of any type."""
    stem = re.sub(r"^blk\.\d+\.", "", name)
    return (
        n_dims <= 1
        or name.endswith("_norm.weight")
        # a kernel of a second frame ends in .weight.1
        or not name.removesuffix(".1").endswith((".weight", ".lora_a", ".lora_b"))
        or any(part in f"^{name}" for part in family.f32)
        or (stem.removesuffix(".weight") in _F32 and family.f32_routers)
    )


def family_tensors(
    family: Family, c: Config, stored: Mapping[str, Values], n_rotated: int | None = None
) -> Iterator[tuple[str, Values]]:
    """GGUF names and values of the folder's tensors, in the order in which converters write them.

    With `n_rotated`, the elements of a head that rotate, queries and keys are put in the order in
    which adjacent pairs rotate, if the family's files have them so."""
    for name, values in family.join(c, experts_together(family, c, text_tensors(stored))):
        if name.endswith(".A_log"):  # decays are kept as logarithms
            values = values.through(lambda x: -np.exp(x.astype(np.float64)).astype(np.float32))
        for new, changed in family.change(c, name, values):
            if n_rotated is not None and family.adjacent:
                changed = in_order(c, new, changed, n_rotated)
            yield from _with_factor(family.gguf_name(c, new), changed)


def _with_factor(name: str, values: Values) -> Iterator[tuple[str, Values]]:
    """A tensor, and the tensor with the number that the values of its blocks are multiplied by."""
    stem = name.removesuffix(".weight")
    factor, parts = values.factor, stem.split(".")
    if factor is None:
        yield name, values
    elif name == stem or len(parts) not in (1, 3) or parts[-1] not in _SCALED:
        yield name, values.unpacked()
    else:
        yield name, values
        yield f"{stem}.scale", Values(factor.shape, "f32", factor.copy)


def text_tensors(stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    """The tensors of the text model, without the tensors of towers."""
    for full, values in stored.items():
        name = full.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace("language_model.", "").replace("text_model.", "")
        name = name.removeprefix("thinker.")
        tower = name.startswith(_TOWER_STARTS) or any(part in name for part in _TOWER_PARTS)
        tower = tower and not any(part in name for part in _NO_TOWER)
        if not tower and not name.endswith(_IGNORED):
            yield name, values


def experts_together(family: Family, c: Config, tensors: Named) -> Iterator[tuple[str, Values]]:
    """Joins the matrices of the experts of a layer, where the folder has a tensor for each."""
    waiting: dict[str, dict[tuple[str, int], Values]] = {}
    for name, values in tensors:
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            yield name, values
            continue
        layer = waiting.setdefault(expert[1], {})
        layer[expert[3], int(expert[2])] = values
        if len(layer) < c.n_expert * len(family.experts):
            continue
        del waiting[expert[1]]
        for kind in family.experts:
            parts = [layer.get((kind, i)) for i in range(c.n_expert)]
            whole = [part for part in parts if part is not None]
            if len(whole) < c.n_expert or len({part.shape for part in whole}) > 1:
                raise FormatError(f"{c.folder}: the experts {expert[1]} are not all there")
            yield f"{expert[1]}.{kind}.weight", stacked(whole)
    if waiting:
        raise FormatError(
            f"{c.folder}: {next(iter(waiting))} has fewer experts than the {c.n_expert} that "
            "config.json says; download the whole folder"
        )


def in_order(c: Config, name: str, values: Values, n_rotated: int) -> Values:
    """Rows of queries and keys in the order in which adjacent pairs rotate; others as they are."""
    stem = name.rpartition(".")[0]
    if stem.endswith(("q_norm", "k_norm")) and values.shape[-1] == c.head_dim:
        order = adjacent_rows(c, c.head_dim, n_rotated)
        return values.through(lambda x: x[..., order])
    if not stem.endswith(("q_proj", "k_proj")):
        return values
    rows = adjacent_rows(c, values.shape[0], n_rotated)
    return values.taken(rows, shape=values.shape)


def adjacent_rows(c: Config, n_rows: int, n_rotated: int) -> NDArray[np.intp]:
    """For each row of queries or keys, in the order in which adjacent pairs rotate, its number in
    the order in which halves do; `n_rotated` elements of a head rotate."""
    d = c.head_dim
    n = n_rows // d
    half = min(n_rotated, d) // 2
    order = np.concatenate(
        [np.arange(2 * half).reshape(2, half).T.reshape(-1), np.arange(2 * half, d)]
    )
    rows: NDArray[np.intp] = (np.arange(n)[:, None] * d + order).reshape(-1)
    return rows
