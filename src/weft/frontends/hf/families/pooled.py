"""GLM-5.3 (glm5-next), whose indexer chooses blocks of positions."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import glm_moe_vocab
from weft.frontends.hf.families.delta import delta_size, kimi_change, latent_sizes, n_dense
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, drafting, n_draft
from weft.frontends.hf.values import Values


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
    if name == "lm_head.weight" and c.get("tie_word_embeddings"):
        return
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
}  # fmt: skip
