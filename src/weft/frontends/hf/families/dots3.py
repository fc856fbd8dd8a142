"""dots.3 Note, whose layers with a window have latents of other sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import (
    is_special,
    latent_change,
    latent_keys,
    n_dense,
    split_latent,
)
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, token_id

_SIZES = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
          "qk_rope_head_dim", "v_head_dim")  # fmt: skip
_FIXED = {"use_dsa": True, "normalization": "RMSNorm", "final_norm": "RMSNorm",
          "k_rope_only_layernorm": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
          "use_dynamic_rsf": False, "moe_gating_fp32": False, "attention_gate_type": "headwise",
          "swa_attention_gate_type": "headwise"}  # fmt: skip
"""Settings of published folders with the only value that there is a graph for."""


def _windows(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"][: c.n_layer]]


def _small(c: Config) -> Mapping[str, Any]:
    """The sizes of layers with a window."""
    each = c.get("per_layer_config")
    if not isinstance(each, dict):
        return {name: c[f"swa_{name}"] for name in _SIZES}
    own = [each.get(str(il), {}) for il, window in enumerate(_windows(c)) if window]
    if any(sizes != own[0] for sizes in own):
        raise c.bad("per_layer_config", "must be the same for all layers with a window here")
    return {name: (own[0] if own else {}).get(name, c[name]) for name in _SIZES}


def _common(c: Config) -> Pairs:
    heads = c.n_head, _small(c)["num_attention_heads"]
    changed = {"attention.head_count": [heads[window] for window in _windows(c)],
               "attention.head_count_kv": 1}  # fmt: skip
    for key, value in common_keys(c):
        if key not in ("attention.key_length", "attention.value_length"):
            yield key, changed.get(key, value)


def _keys(c: Config) -> Pairs:
    for key, value in _FIXED.items():
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, and must be {value!r} here")
    windows, small = _windows(c), _small(c)
    for kind in ("full_attention", "sliding_attention"):
        if c.rope_of(kind).get("rope_type", "default") != "default":
            raise c.bad("rope_parameters", "must be without a scaling here")
    if len(windows) < c.n_layer or not any(windows):
        raise c.bad("layer_types", "must have a layer with sliding_attention here")
    if "full_attention" in c["layer_types"] and "per_layer_config" in c:
        raise c.bad("layer_types", "has full_attention, where layers without a window must have "
                    "indexed_attention here")  # fmt: skip
    for name in ("q_lora_rank", "qk_rope_head_dim"):
        if small[name] != c[name]:
            raise c.bad(name, "must be the same in layers with a window here")
    yield from latent_keys(c)
    yield "leading_dense_block_count", n_dense(c)
    yield "expert_gating_func", 2
    width, n_shared = c["moe_intermediate_size"], c["n_shared_experts"]
    shared = c.first("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")
    if shared not in (None, width):
        yield "expert_shared_feed_forward_length", shared * n_shared
    rank, rotated = small["kv_lora_rank"], small["qk_rope_head_dim"]
    yield "attention.sliding_window", c.first("sliding_window_size", "sliding_window")
    yield "attention.sliding_window_pattern", windows
    yield "attention.kv_lora_rank_swa", rank
    yield "attention.key_length_swa", rank + rotated
    yield "attention.value_length_swa", rank
    yield "attention.key_length_mla_swa", small["qk_nope_head_dim"] + rotated
    yield "attention.value_length_mla_swa", small["v_head_dim"]
    yield "attention.indexer.head_count", c["index_n_heads"]
    yield "attention.indexer.key_length", c["index_head_dim"]
    yield "attention.indexer.top_k", c["index_topk"]
    yield "attention.indexer.types", [not window for window in windows]


def _change(c: Config, name: str, values: Values) -> Named:
    """Norms get the factors behind them, and the indexer's rows the order in which halves rotate;
    layers that draft, which transformers leaves out, are left out."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if name.startswith("model.mtp.") or (layer and int(layer[1]) >= c.n_layer):
        return
    windowed = layer is not None and _windows(c)[int(layer[1])]
    sizes = _small(c) if windowed else c
    scaled = re.search(r"\.(q|kv)_a_layernorm\.weight$", name)
    if scaled and c.get("apply_mla_qkv_lora_rescale", True):
        factor = np.float32((c.n_embd / sizes[f"{scaled[1]}_lora_rank"]) ** 0.5)
        values = values.through(lambda x: x * factor)
    if re.search(r"\.indexer\.(wq_b|wk|k_norm)\.", name):
        d, n_rot = c["index_head_dim"], c["qk_rope_head_dim"]
        order = np.arange(d)
        order[:n_rot] = order[:n_rot].reshape(-1, 2).T.reshape(-1)
        n = values.shape[0] // d
        rows = (np.arange(n)[:, None] * d + order).reshape(-1)
        values = values.taken(rows, shape=values.shape)
    if windowed and name.endswith("kv_b_proj.weight"):
        yield from split_latent(c, name, values, sizes)
    else:
        yield from latent_change(c, name, values)


def _vocab(c: Config) -> Vocabulary:
    special = SpecialTokens(c, merges=True)
    yield from (pair for pair in bpe(c) if not is_special(pair[0]))
    special.set("eot", token_id(c, "<|endofassistant|>"))
    yield from special.keys()


FAMILIES = {
    "dots3note": Family(
        "dots3note", _keys, common=_common, change=_change, vocab=_vocab, latent_eps=0.0,
        names={"self_attn.k_rope_only_layernorm": "attn_k_norm"},
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 8e7, "swa_rope_theta": 5e4,
                  "sliding_window": 512},
    ),
}  # fmt: skip
