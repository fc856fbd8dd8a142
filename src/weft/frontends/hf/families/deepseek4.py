"""DeepSeek-V4's folders, with the names of the published checkpoints or of transformers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import latent_change, latent_common, latent_keys
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

_KINDS = {
    "sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
}  # fmt: skip
"""Positions of a block, by the kinds of layers, where config.json does not say it."""


def _rope(c: Config) -> Mapping[str, Any]:
    """The rotation of layers with compressed keys, with the base of the others."""
    compressed = c.rope_of("compress")
    base = c.rope_of("main").get("rope_theta", c.rope.get("rope_theta", 10000.0))
    return {**(compressed or c.rope), "rope_theta": base}


def _common(c: Config) -> Pairs:
    flat = copy.copy(c)
    flat.rope = _rope(c)
    if flat.rope.get("attention_factor") not in (None, 1, 1.0):
        raise c.bad("rope_scaling", "has an attention_factor, and must have none or 1 here")
    flat.rope = {key: value for key, value in flat.rope.items() if key != "attention_factor"}
    yield from common_keys(flat)


def _ratios(c: Config) -> list[int]:
    """The number of positions in a block of compressed keys of each layer; 0: there are none."""
    ratios = c.get("compress_ratios")
    if isinstance(ratios, list):
        return [int(ratio) for ratio in ratios]
    known: dict[str, int] = _KINDS | (c.get("compress_rates") or {})
    for kind in ("csa", "hca"):
        name = {"csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}[kind]
        known[name] = c.get(f"compress_rate_{kind}", known[name])
    kinds = c.get("layer_types")
    if kinds is None:
        pair = ("heavily_compressed_attention", "compressed_sparse_attention")
        kinds = [pair[il >= 2 and il % 2] for il in range(c.n_layer)]
    return [int(known[kind]) for kind in kinds]


def _n_hashed(c: Config) -> int:
    """The number of first layers in which a table gives the experts of each token."""
    kinds = c.get("mlp_layer_types")
    if kinds is None:
        return min(int(c.get("num_hash_layers", 3)), c.n_layer)
    n = kinds.count("hash_moe")
    if kinds[:n] != ["hash_moe"] * n:
        raise c.bad("mlp_layer_types", "has hash_moe behind other layers; it must be first")
    return int(n)


def _keys(c: Config) -> Pairs:
    rotated = c.get("qk_rope_head_dim")
    for kind in ("main", "compress"):
        scaled = c.rope_of(kind).get("rope_type")
        if scaled not in (None, "default", "yarn"):
            raise c.bad("rope_parameters", f"of {kind} is {scaled!r}; known are default and yarn")
    if rotated is None:
        rotated = int(c["head_dim"] * c.get("partial_rotary_factor", 64 / 512))
    yield "rope.dimension_count", rotated
    yield "attention.q_lora_rank", c["q_lora_rank"]
    yield "attention.sliding_window", c["sliding_window"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c["norm_topk_prob"])
    limits = [float(c["swiglu_limit"])] * c.n_layer
    yield "swiglu_clamp_exp", limits
    yield "swiglu_clamp_shexp", limits
    yield "attention.indexer.head_count", c["index_n_heads"]
    yield "attention.indexer.key_length", c["index_head_dim"]
    yield "attention.indexer.top_k", c["index_topk"]
    yield "attention.output_group_count", c["o_groups"]
    yield "attention.output_lora_rank", c["o_lora_rank"]
    yield "attention.compress_ratios", _ratios(c)
    base = c.rope_of("compress").get("rope_theta", c["compress_rope_theta"])
    yield "attention.compress_rope_freq_base", float(base)
    yield "hyper_connection.count", c["hc_mult"]
    yield "hyper_connection.sinkhorn_iterations", c["hc_sinkhorn_iters"]
    yield "hyper_connection.epsilon", float(c["hc_eps"])
    yield "hash_layer_count", _n_hashed(c)
    yield "embedding_length_out", c.n_embd * c["hc_mult"]


_UNUSED = ("mtp.", "model.mtp.", "aligner.", "image_")
"""Layers that draft tokens, whose files are apart, and parts that turn images into rows."""


def _change(c: Config, name: str, values: Values) -> Named:
    if name.startswith(_UNUSED) or name.endswith("ffn.gate.bias_vl"):
        return
    if not name.endswith((".weight", ".bias")):
        name = f"{name}.weight"
    if name.endswith("ffn.gate.tid2eid.weight"):
        table = Values(values.shape, "i32", values.load, packed=lambda: _numbers(values))
        yield name, table
    elif name.endswith("ffn.gate.bias"):
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= _n_hashed(c):
            yield f"=blk.{layer[1]}.exp_probs_b.bias", values
    else:
        yield name, values


def _numbers(values: Values) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(values.load().astype("<i4")).view(np.uint8)


_NAMES = {
    "attn.wq_a": "attn_q_a", "attn.wq_b": "attn_q_b", "attn.q_norm": "attn_q_a_norm",
    "attn.wkv": "attn_kv", "attn.kv_norm": "attn_kv_a_norm", "attn.norm": "attn_kv_a_norm",
    "attn.wo_a": "attn_output_a", "attn.wo_b": "attn_output_b", "attn.attn_sink": "attn_sinks",
    "attn.indexer.wq_b": "indexer.attn_q_b", "attn.indexer.weights_proj": "indexer.proj",
    "ffn.gate": "ffn_gate_inp", "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    "hc_attn_fn": "hc_attn_fn", "hc_attn_base": "hc_attn_base", "hc_attn_scale": "hc_attn_scale",
    "hc_ffn_fn": "hc_ffn_fn", "hc_ffn_base": "hc_ffn_base", "hc_ffn_scale": "hc_ffn_scale",
    **{
        f"attn.{theirs}.{part}": f"{ours}_{new}"
        for theirs, ours in (
            ("compressor", "attn_compressor"), ("indexer.compressor", "indexer_compressor"),
        )
        for part, new in (("ape", "ape"), ("norm", "norm"), ("wgate", "gate"), ("wkv", "kv"))
    },
    **{
        f"ffn.{theirs}.{part}": f"ffn_{new}_{ours}"
        for theirs, ours in (("experts", "exps"), ("shared_experts", "shexp"))
        for part, new in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
}  # fmt: skip
_OUTER = {
    "embed": "token_embd", "head": "output",
    **{f"hc_head_{part}": f"output_hc_{part}" for part in ("fn", "base", "scale")},
    **{f"hc_head.hc_{part}": f"output_hc_{part}" for part in ("fn", "base", "scale")},
}  # fmt: skip
_DEFAULTS = {
    **ROTARY, "rms_norm_eps": 1e-6, "n_shared_experts": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "compress_rope_theta": 160000.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024,
    "head_dim": 512, "num_key_value_heads": 1, "scoring_func": "sqrtsoftplus",
}  # fmt: skip

# Hy4. In the class of transformers halves rotate, and in the reference's graph adjacent pairs,
# with the same rows.


def _hy4_common(c: Config) -> Pairs:
    for key, value in latent_common(c):
        if not key.startswith("expert_group") or c.get("n_group", 1) > 1:
            yield key, value


def _hy4_keys(c: Config) -> Pairs:
    kinds = c.get("mlp_layer_types") or ["dense"] * c.get("first_k_dense_replace", 1)
    n = len([kind for kind in kinds if kind == "dense"])
    if "dense" in kinds[n:]:
        raise c.bad("mlp_layer_types", "has dense layers behind mixtures; they must be first")
    for key, value in latent_keys(c):
        yield key, n if key == "leading_dense_block_count" else value
    yield "expert_gating_func", 2
    limit = float(c.get("swiglu_limit") or 0.0)
    if limit > 0:
        yield "swiglu_clamp_exp", [limit] * c.n_layer
    yield "hyper_connection.count", c["hc_mult"]
    yield "hyper_connection.epsilon", float(c["hc_eps"])
    yield "hyper_connection.magnitude", float(c["hc_magnitude"])
    yield "attention.indexer.head_count", c["index_n_heads"]
    yield "attention.indexer.key_length", c["index_head_dim"]
    yield "attention.indexer.top_k", c["index_topk"]
    usual = ["full" if il == 0 or il % 4 == 1 else "shared" for il in range(c.n_layer)]
    full = [kind == "full" for kind in c.get("indexer_types") or usual]
    yield "attention.indexer.types", full


def _hy4_change(c: Config, name: str, values: Values) -> Named:
    if ".mtp_layers." in name:
        return
    # these parts are elsewhere in folders that transformers saves
    name = name.replace(".hc_pre.", ".").replace(".linear_gate.", ".gate_proj.")
    if "hc_" in name or name.endswith(("learnable_sink_param", "self_attn.sinks")):
        name = f"{name}.weight"
    yield from latent_change(c, name, values)


_HY4_NAMES = {
    "self_attn.learnable_sink_param": "attn_sinks",
    **{
        f"hc_{theirs}_layer.hc_{what}": f"hc_{part}_{what}"
        for part, theirs in (("attn", "attn"), ("ffn", "mlp"))
        for what in ("fn", "base", "scale")
    },
}
_HY4_OUTER = {f"hc_head.hc_head_{what}": f"output_hc_{what}" for what in ("fn", "base", "scale")}

FAMILIES = {
    "deepseek4": Family(
        "deepseek4", _keys, common=_common, change=_change, names=_NAMES, outer=_OUTER,
        defaults=_DEFAULTS, experts=("w1", "w2", "w3"), f32=("hc_", "_ape"),
    ),
    "hy_v4": Family(
        "hy_v4", _hy4_keys, common=_hy4_common, change=_hy4_change, names=_HY4_NAMES,
        outer=_HY4_OUTER, halves=True, f32=("hc_",),
        defaults={**ROTARY, "rms_norm_eps": 1e-5, "head_dim": 64, "hc_mult": 4, "hc_eps": 1e-6,
                  "hc_magnitude": 2.0, "swiglu_limit": 10.0, "index_n_heads": 16,
                  "index_head_dim": 128, "index_topk": 2048},
    ),
}  # fmt: skip
