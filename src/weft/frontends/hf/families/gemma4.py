"""Gemma 3n and Gemma 4: inputs of each layer, shared keys and values."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.cohere import tied
from weft.frontends.hf.families.gemma import NORMS, gemma3_keys, gemma3_vocab
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values, stacked
from weft.frontends.hf.vocab import (
    Vocabulary,
    base_tokens,
    has,
    require_vocabulary,
    sentencepiece,
)

__all__ = ["FAMILIES"]

_SEEN = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
         "<tool_response|>", '<|"|>'}  # fmt: skip
"""Control tokens that answers are taken apart by, so that files have them as text."""


def _windowed(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"]]


# **** Gemma 3n ****


def _keys3n(c: Config) -> Pairs:
    yield from gemma3_keys(c)
    yield "altup.active_idx", c["altup_active_idx"]
    yield "altup.num_inputs", c["altup_num_inputs"]
    yield "embedding_length_per_layer_input", c["hidden_size_per_layer_input"]
    yield "attention.shared_kv_layers", c["num_kv_shared_layers"]
    scales = [_deviations(part) for part in c["activation_sparsity_pattern"]]
    yield "activation_sparsity_scale", np.array(scales, np.float32)
    yield "attention.sliding_window_pattern", _windowed(c)


def _deviations(part: float) -> np.float32:
    """The standard deviations below which a normal value is with the probability `part`, in the
    steps in which the reference's converter rounds."""
    root = np.float32(np.sqrt(2))
    centred = np.float32(2) * np.float32(part) - np.float32(1)
    if centred <= -1:
        return np.float32(-np.inf)
    return np.float32(NormalDist().inv_cdf((float(centred) + 1) / 2) / np.sqrt(2)) * root


def _change3n(c: Config, name: str, values: Values) -> Named:
    if name.endswith("_scale"):
        name += ".weight"
    if "embed_tokens" in name and values.shape[0] < c["vocab_size"]:
        rows, n = values.shape[0], c["vocab_size"]  # ids of images and sound have no rows
        require_vocabulary(c, n, rows)
        values = values.through(
            lambda x: np.pad(x, ((0, n - rows), (0, 0))), (n, *values.shape[1:])
        )
    yield from tied(c, name, values)


def _streams3n(c: Config, tensors: Named) -> Named:
    """Joins the matrices of the streams."""
    parts: dict[str, list[Values]] = {"altup_proj": [], "altup_unembd_proj": []}
    for name, values in tensors:
        if ".altup_" not in name:
            yield name, values
            continue
        together = "altup_unembd_proj" if "unembed" in name else "altup_proj"
        parts[together].append(values)
        if len(parts[together]) == c["altup_num_inputs"] - 1:
            yield f"={together}.weight", stacked(parts[together])


def _vocab3n(c: Config) -> Vocabulary:
    if not has(c, "tokenizer.model"):
        yield from gemma3_vocab(c)
    else:
        yield from sentencepiece(c, n_vocab=c["vocab_size"])
        yield "tokenizer.ggml.add_space_prefix", False


# **** Gemma 4 ****


def _of_full(c: Config, key: str, name: str) -> object:
    """A value of layers that see everything, by its own key or by that of the first of them."""
    if c.get(key) is not None:
        return c[key]
    each = c.get("per_layer_config") or {}
    for il, kind in enumerate(c["layer_types"]):
        found = each.get(str(il), {}).get(name)
        if kind == "full_attention" and found is not None:
            return found
    return None


def _head_dim(c: Config) -> int:
    found = _of_full(c, "global_head_dim", "head_dim")
    if found is None and c.get("per_layer_config") is not None:
        return c.head_dim  # transformers writes nothing where both are equal
    if not isinstance(found, int):
        raise c.bad("global_head_dim", "is missing")
    return found


def _keys4(c: Config) -> Pairs:
    yield from gemma3_keys(c)
    n_shared, windowed = c["num_kv_shared_layers"], _windowed(c)
    yield "attention.shared_kv_layers", n_shared
    yield "embedding_length_per_layer_input", c.get("hidden_size_per_layer_input", 0)
    yield "attention.sliding_window_pattern", windowed
    full = _head_dim(c)
    yield "attention.key_length", full
    yield "attention.value_length", full
    yield "attention.key_length_swa", c.head_dim
    yield "attention.value_length_swa", c.head_dim
    width = c.first("expert_intermediate_size", "moe_intermediate_size")
    if width is not None:
        yield "expert_feed_forward_length", width
    if c.get("use_double_wide_mlp"):
        n, own = c["intermediate_size"], c.n_layer - n_shared
        yield "feed_forward_length", [n if il < own else 2 * n for il in range(c.n_layer)]
    n_full = _of_full(c, "num_global_key_value_heads", "num_key_value_heads")
    if n_full is not None:
        yield "attention.head_count_kv", [c.n_head_kv if w else n_full for w in windowed]
    yield "rope.dimension_count", full
    yield "rope.dimension_count_swa", int(c.head_dim * c.rope.get("partial_rotary_factor", 1.0))


def _factors4(c: Config) -> Named:
    """Pairs of layers that see everything rotate only in part, by divisors."""
    rope, half = c.rope_of("full_attention"), _head_dim(c) // 2
    if rope.get("rope_type") != "proportional":
        raise c.bad("rope_parameters", "of full attention must be proportional")
    n = int(_head_dim(c) * rope["partial_rotary_factor"] / 2)
    factors = np.array([1.0] * n + [1e30] * (half - n), np.float32)
    yield "=rope_freqs.weight", Values(factors.shape, "f32", factors.copy)


def _change4(c: Config, name: str, values: Values) -> Named:
    if name.endswith(("per_dim_scale", "layer_scalar")):
        name += ".weight"
    elif ".experts." in name and not name.endswith(".weight"):
        name += ".weight"
    blk = f"=blk.{name.partition('.layers.')[2].partition('.')[0]}"
    if name.endswith("router.scale"):
        name = f"{blk}.ffn_gate_inp.scale"
    elif name.endswith("router.per_expert_scale"):
        name = f"{blk}.ffn_down_exps.scale"
    yield from tied(c, name, values)


def _vocab4(c: Config) -> Vocabulary:
    special = SpecialTokens(c, merges=True)
    tokens, kinds = base_tokens(c, _SEEN)
    yield "tokenizer.ggml.model", "gemma4"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.scores", np.full(len(tokens), -1000.0, np.float32)
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from special.keys()
    yield "tokenizer.ggml.add_space_prefix", False
    yield "tokenizer.ggml.add_bos_token", True


_LAYER_INPUTS = NORMS | {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
}
_OUTER = {
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}

FAMILIES = {
    "gemma3n": Family(
        "gemma3n",
        _keys3n,
        names=_LAYER_INPUTS
        | {
            "post_per_layer_input_norm": "post_norm",
            "altup.correct_output_scale": "altup_correct_scale",
            "altup.correction_coefs": "altup_correct_coef",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.modality_router": "altup_router",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
        },
        outer=_OUTER,
        join=_streams3n,
        change=_change3n,
        vocab=_vocab3n,
        defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0},
        activation="gelu",
    ),
    "gemma4": Family(
        "gemma4",
        _keys4,
        names=_LAYER_INPUTS
        | {
            "layer_scalar": "layer_output_scale",
            "post_per_layer_input_norm": "post_norm",
            "post_feedforward_layernorm_1": "post_ffw_norm_1",
            "post_feedforward_layernorm_2": "post_ffw_norm_2",
            "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            "router.proj": "ffn_gate_inp",
            "experts.gate_up_proj": "ffn_gate_up_exps",
            "experts.down_proj": "ffn_down_exps",
        },
        outer=_OUTER,
        extra=_factors4,
        change=_change4,
        vocab=_vocab4,
        defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "num_kv_shared_layers": 0},
        activation="gelu",
    ),
}
