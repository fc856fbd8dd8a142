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

__all__ = ["DERIVED", "ROTARY", "Change", "Family", "Named", "as_is", "experts_together",
           "family_tensors", "in_order", "is_f32", "never", "text_tensors"]  # fmt: skip

Named = Iterable[tuple[str, Values]]
Change = Callable[[Config, str, Values], Named]
"""Maps a tensor's name in the folder and its values to new names and values. A result whose name
begins with `=` has its GGUF name already."""

NAMES = {
    "embed_tokens": "token_embd", "wte": "token_embd", "word_embeddings": "token_embd",
    "norm": "output_norm", "ln_f": "output_norm", "final_layernorm": "output_norm",
    "lm_head": "output",
}  # fmt: skip
"""GGUF names of tensors outside the layers, without `.weight` and `.bias`."""

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.gate.e_score_correction": "exp_probs_b", "mlp.e_score_correction": "exp_probs_b",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps", "block_sparse_moe.experts.w3": "ffn_up_exps",
}  # fmt: skip
"""GGUF names of a layer's tensors, without `blk.N.` in front and the kind behind."""

_IGNORED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq",
            ".attn.masked_bias", ".attn.bias")  # fmt: skip
# Towers for pictures and sound; the text model does without them.
_TOWER_STARTS = ("mlp", "vit.", "vpm.", "siglip2.", "conformer.", "merger.", "resampler.",
                 "sound_encoder.", "sound_projection.", "speech_embeddings.")  # fmt: skip
_TOWER_PARTS = ("visual.", "vision.", "audio.", "talker.", "vision_", "audio_", "token2wav.",
                "code2wav.", "projector.", "pre_mm_projector_norm", "image_newline",
                "view_seperator", "patch_embed", "patch_merger.", "patch_merge_mlp.",
                "model.connector.")  # fmt: skip
_LAYER = re.compile(r"(?:layers|layer|h|blocks)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_ROOTS = ("model.", "transformer.", "gpt_neox.", "backbone.", "decoder.", "encoder.", "bert.",
          "language_model.")  # fmt: skip

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
    activation: str = "silu"
    """The activation of feed-forward layers; empty: config.json may have any, and `keys` says which
    or refuses it."""
    windows: Callable[[int], bool] | None = None
    """Whether a layer, by number, has the sliding window if the file does not say so; for classes
    that have a window beside the one in `keys`. None: other classes."""
    norm_topk: bool | None = None
    """Whether the weights of chosen experts have the sum 1 if the file does not say so, for classes
    with `norm_topk_prob`. None: other classes, and classes whose `keys` write it."""
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
        or not name.endswith(".weight")
        or any(part in name for part in family.f32)
        or (stem.removesuffix(".weight") in _F32 and family.f32_routers)
    )


def family_tensors(
    family: Family, c: Config, stored: Mapping[str, Values], n_rotated: int | None = None
) -> Iterator[tuple[str, Values]]:
    """GGUF names and values of the folder's tensors, in the order in which converters write them.

    With `n_rotated`, the elements of a head that rotate, queries and keys are put in the order in
    which adjacent pairs rotate, if the family's files have them so."""
    for name, values in family.join(c, experts_together(family, c, text_tensors(stored))):
        for new, changed in family.change(c, name, values):
            if n_rotated is not None and family.adjacent:
                changed = in_order(c, new, changed, n_rotated)
            yield family.gguf_name(c, new), changed


def text_tensors(stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    """The tensors of the text model, without the tensors of towers."""
    for full, values in stored.items():
        name = full.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace("language_model.", "").replace("text_model.", "")
        tower = name.startswith(_TOWER_STARTS) or any(part in name for part in _TOWER_PARTS)
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
    if not stem.endswith(("q_proj", "k_proj")):
        return values
    rows = adjacent_rows(c, values.shape[0], n_rotated)
    return values.through(lambda x: x[rows])


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
