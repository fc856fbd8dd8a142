"""GLM-5.3 (glm5-next) and Qwen4-Exp, whose indexers choose blocks of positions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import glm_moe_vocab
from weft.frontends.hf.families.delta import (
    delta_size,
    in_turns,
    keys35,
    kimi_change,
    latent_sizes,
    n_dense,
)
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, drafting, n_draft
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values, beside


def _n_all(c: Config) -> int:
    return c.n_layer + n_draft(c)


def _attends(c: Config) -> list[bool]:
    kinds = c.get("layer_types")
    if kinds is None:
        return [il % 4 == 3 for il in range(c.n_layer)]
    return [kind != "linear_attention" for kind in kinds]


def _chooses(c: Config) -> list[bool]:
    """For each layer, whether it has an indexer of its own."""
    kinds = c.get("indexer_types")
    if kinds is None:
        kinds = c.get("index_topk_pattern")
    if kinds is not None:
        return [kind in ("full", "F") for kind in kinds]
    every, first = max(c.get("index_topk_freq", 1), 1), c.get("index_skip_topk_offset", 2)
    return [max(il - first + 1, 0) % every == 0 for il in range(c.n_layer)]


def _bound(c: Config) -> float | None:
    """The lower bound of the logarithms of decays; None: there is none."""
    own = c.get("linear_attn_config") or {}
    if "gate_lower_bound" in own or "linear_lower_bound" not in c:
        bound = own.get("gate_lower_bound", None if c.is_null("linear_lower_bound") else -5.0)
    else:
        bound = c["linear_lower_bound"]
    if bound is None and own.get("safe_gate", bool(own)):
        return -5.0
    return bound if bound is None else float(bound)


def _glm5_common(c: Config) -> Pairs:
    for key, value in drafting(c):
        if key == "attention.head_count_kv":
            value = [int(it) for it in _attends(c)] + [1] * n_draft(c)
        elif key in ("attention.key_length", "attention.value_length"):
            continue
        yield key, value


def _glm5_keys(c: Config) -> Pairs:
    if c["qk_rope_head_dim"] or not c.get("mla_use_nope", True) or not c.get("mhc", True):
        raise c.bad("qk_rope_head_dim", "must be 0, with mla_use_nope and mhc true; weft knows "
                    "these models without rotation, and with several streams")  # fmt: skip
    if delta_size(c, "num_heads", "linear_num_heads") != c.n_head:
        raise c.bad("linear_num_heads", f"must be num_attention_heads, {c.n_head}; files have one "
                    "number of heads for both kinds of layers")  # fmt: skip
    dense = n_dense(c)
    if "dense" in (c.get("mlp_layer_types") or [])[dense:]:
        raise c.bad("mlp_layer_types", "has dense layers behind mixtures; they must be first")
    yield "vocab_size", c.count("vocab_size")
    yield "attention.layer_norm_epsilon", 1e-6
    if n_draft(c):
        yield "nextn_predict_layers", n_draft(c)
    yield "ssm.conv_kernel", delta_size(c, "short_conv_kernel_size", "linear_conv_kernel_dim")
    yield "kda.head_dim", delta_size(c, "head_dim", "linear_head_dim")
    bound = _bound(c)
    if bound is not None:
        yield "kda.gate_lower_bound", bound
    for key, value in latent_sizes(c):
        yield key, value
        if key == "attention.key_length":
            yield "attention.value_length", c["kv_lora_rank"]
    yield "attention.indexer.head_count", c["index_n_heads"]
    yield "attention.indexer.key_length", c["index_head_dim"]
    yield "attention.indexer.top_k", c["index_topk"]
    yield "attention.indexer.kpool", c["index_kpool"]
    tail = c.get("index_kpool_always_select_tail", True)
    if not tail:
        raise c.bad("index_kpool_always_select_tail", "is false; weft knows only true")
    yield "attention.indexer.kpool_select_tail", True
    yield "attention.indexer.types", _chooses(c)
    yield "hyper_connection.count", c["hc_mult"]
    yield "hyper_connection.sinkhorn_iterations", c["hc_sinkhorn_iters"]
    yield "hyper_connection.epsilon", float(c["hc_eps"])
    yield "leading_dense_block_count", dense
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c["norm_topk_prob"])
    limit = c.get("swiglu_limit")
    if limit is not None:
        yield "swiglu_clamp_exp", [float(limit)] * _n_all(c)
        yield "swiglu_clamp_shexp", [float(limit)] * _n_all(c)


def _glm5_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith(".A_log"):
        yield name, values.reshaped(c.n_head)
        return
    if name.endswith(("_base", "_fn", "_scale", "_ape", "_gate")):
        name = f"{name}.weight"
    yield from kimi_change(c, name, values)


_GLM5_NAMES = {
    "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape",
    "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate",
    **{f"hc_{part}_{what}": f"hc_{part}_{what}" for part in ("attn", "ffn")
       for what in ("fn", "base", "scale")},
}  # fmt: skip

# Qwen4-Exp: Qwen3.5's layers, and a table of embeddings of n-grams in many shards. The factors of
# its hashes are integers of the checkpoint, of 64 bits.

_NEEDED = ("indexer_n_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")
_SHARD = re.compile(r"(.*)\.ple_embedding\.ngram_embedding\.shard_(\d+)\.weight")
_HASHES = {"layer_multipliers": "ple.layer_multipliers", "ngram_heads_offsets": "ple.head_offsets",
           "ngram_heads_vocab_sizes": "ple.head_vocab_sizes"}  # fmt: skip


def _qwen4_keys(c: Config) -> Pairs:
    for name in _NEEDED:
        if c.get(name) is None:
            raise c.bad(name, "is missing; weft knows these models with an indexer")
    if c.get("indexer_kv_heads", 1) != 1:
        raise c.bad("indexer_kv_heads", f"is {c['indexer_kv_heads']}, which must be 1")
    gate = c.get("output_gate_type") or c.get("hidden_act", "silu")
    if gate != "sigmoid":
        raise c.bad("output_gate_type", f"is {gate!r}; files of these models imply 'sigmoid'")
    yield from keys35(c, drafts=False)
    yield "hyper_connection.count", c["hc_count"]
    yield "hyper_connection.low_rank", c["hc_lowrank"]
    yield "attention.indexer.head_count", c["indexer_n_heads"]
    yield "attention.indexer.key_length", c["indexer_head_dim"]
    yield "attention.indexer.top_k", c["indexer_budget"]
    every = c.get("full_attention_interval", 4)
    usual = ["linear_attention" if (il + 1) % every else "" for il in range(c.n_layer)]
    kinds = c.get("layer_types") or usual
    ratio = c["indexer_compress_ratio"]
    yield (
        "attention.compress_ratios",
        [0 if kind == "linear_attention" else ratio for kind in kinds],
    )
    yield from _ngram_keys(c)


def _ngram_keys(c: Config) -> Pairs:
    layers = c.get("ple_layer_ids") or []
    if not layers:
        return
    if len(set(layers)) > 1:
        raise c.bad("ple_layer_ids", f"is {layers}; files have embeddings of n-grams in one layer")
    ends = c.get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends
    if end is None:
        raise c.bad("eos_token_id", "is missing, which embeddings of n-grams need")
    yield "ple.layers", [layers[0] - 1]
    yield "ple.ngram_size", c["ngram_size"]
    yield "ple.heads_per_ngram", c["heads_per_ngram"]
    yield "ple.conv_kernel", c["ple_conv_kernel_size"]
    yield "ple.eos_token_id", end
    if c.get("image_token_id") is not None:
        yield "ple.image_token_id", c["image_token_id"]
    n = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    yield "embedding_length_per_layer_input", c.get("ple_embed_dim", c.n_embd) // max(n, 1)
    found = open_shards(c.folder)
    for theirs, ours in _HASHES.items():
        stored = [t for name, t in found.items() if name.endswith(f".ple_embedding.{theirs}")]
        if len(stored) != 1 or stored[0].kind != "I64":
            raise FormatError(
                f"{c.folder}: there must be one tensor ple_embedding.{theirs} of 64-bit integers; "
                "download the whole folder"
            )
        yield ours, stored[0].data.view("<i8").reshape(-1).astype(np.uint64)


def _qwen4_join(c: Config, tensors: Named) -> Iterator[tuple[str, Values]]:
    """Joins the shards of the table of n-grams, in the place of the last of them."""
    shards: dict[int, Values] = {}
    for name, values in tensors:
        found = _SHARD.fullmatch(name)
        if found is None:
            yield name, values
            continue
        shards[int(found[2])] = values
        if len(shards) == c["split_ngram_parts"]:
            yield _TABLE, beside([shards[i] for i in sorted(shards)])
    if shards and sorted(shards) != list(range(c["split_ngram_parts"])):
        raise FormatError(
            f"{c.folder}: there are {len(shards)} shards of the embeddings of n-grams, and "
            f"config.json says {c['split_ngram_parts']}; download the whole folder"
        )


_TABLE = "=per_layer_token_embd.weight"


def _qwen4_change(c: Config, name: str, values: Values) -> Named:
    if name.startswith(("mtp.", "model.mtp.")) or name.endswith(tuple(_HASHES)):
        return
    if name.endswith("ple_embedding.ngram_embedding.weight"):
        name = _TABLE
    if name.endswith("self_attn.indexer.index_qk_proj.weight"):
        il = int(name.split("layers.")[1].split(".")[0])
        d = c["indexer_head_dim"]
        parts = values.split(c["indexer_n_heads"] * d, d)
        for part, cut in zip("qk", parts, strict=True):
            yield f"=blk.{il}.indexer.{part}_proj.weight", cut
        return
    if name.endswith(("ple.norm_key.weight", "ple.norm_query.weight", "ple.norm_conv.weight")):
        values = values.through(lambda x: x + 1)
    yield from in_turns(c, name, values)


_PARTS = {"hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
          "block_inject_weight": "inject"}  # fmt: skip
_QWEN4_NAMES = {
    **{f"{theirs}_hyper_connection.{old}": f"hc_{ours}_{new}"
       for theirs, ours in (("attn", "attn"), ("mlp", "ffn")) for old, new in _PARTS.items()},
    **{f"ple.{part}_proj": f"ple_{part}" for part in ("key", "value")},
    **{f"ple.norm_{part}": f"ple_norm_{part}" for part in ("key", "query", "conv")},
    "ple.conv1d": "ple_conv1d", "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
}  # fmt: skip

FAMILIES = {
    "glm5-next": Family(
        "glm5-next", _glm5_keys, common=_glm5_common, change=_glm5_change, names=_GLM5_NAMES,
        vocab=glm_moe_vocab, latent_eps=0.0, f32=("hc_", "indexer_compressor"),
        defaults={
            "rms_norm_eps": 1e-5, "qk_rope_head_dim": 0, "routed_scaling_factor": 2.5,
            "norm_topk_prob": True, "n_shared_experts": 1, "index_topk": 2048, "index_kpool": 16,
            "index_head_dim": 128, "index_n_heads": 32, "hc_mult": 4, "hc_eps": 1e-6,
            "hc_sinkhorn_iters": 20, "linear_conv_kernel_dim": 4, "linear_head_dim": 128,
            "linear_num_heads": 64, "swiglu_limit": 10.0, "first_k_dense_replace": 3,
        },
    ),
    "qwen4exp": Family(
        "qwen4exp", _qwen4_keys, join=_qwen4_join, change=_qwen4_change, names=_QWEN4_NAMES,
        outer={f"hyper_connection_mixer.{old}": f"output_hc_{new}" for old, new in _PARTS.items()},
        norm_topk=True,
        defaults={
            "rms_norm_eps": 1e-6, "head_dim": 256, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "hc_count": 4, "hc_lowrank": 320,
            "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
            "split_ngram_parts": 512, "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
        },
    ),
}  # fmt: skip
