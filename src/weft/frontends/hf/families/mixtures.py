"""Mixtures of experts with a difference or two, and dense models of the same makers: DBRX,
ERNIE 4.5, GLM 4, gpt-oss, Hunyuan, Llama 4, MiniMax-M2, Solar Open."""

from __future__ import annotations

import re
from collections.abc import Iterator

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import SPECIAL_KEYS, glm_moe_vocab, glm_vocab, weight_keys
from weft.frontends.hf.families.llama import head_keys, llama_keys
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import DERIVED, NORM_BEHIND, ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys, drafting, llama3_factors, n_draft
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values, stacked
from weft.frontends.hf.vocab import Vocabulary, bpe, has, llama, sentencepiece, token_id


def _ernie_keys(c: Config) -> Pairs:
    yield "expert_count", c["moe_num_experts"]
    yield "expert_used_count", c["moe_k"]
    yield "interleave_moe_layer_step", c["moe_layer_interval"]
    yield "leading_dense_block_count", c["moe_layer_start_index"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    n_shared = c["moe_num_shared_experts"]
    yield "expert_shared_count", n_shared
    if n_shared:  # as converters write it; the count is what is right
        yield "expert_shared_feed_forward_length", c["intermediate_size"] // c.n_head_kv


def _ernie_change(c: Config, name: str, values: Values) -> Named:
    if name.startswith("model.mtp_"):
        return
    name = name.replace("moe_statics.e_score", "e_score")
    for new, changed in ernie_parts(c, name, values):
        yield from split_experts(c, new, changed)


def glm_keys(c: Config) -> Pairs:
    """GLM-4.5's metadata."""
    yield "rope.dimension_count", int(c.head_dim * c.rope.get("partial_rotary_factor", 0.5))
    yield "expert_count", c["n_routed_experts"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_gating_func", 2
    yield from weight_keys(c)
    if "num_nextn_predict_layers" in c:
        yield "nextn_predict_layers", n_draft(c)


def _hunyuan_keys(c: Config) -> Pairs:
    yield "expert_shared_feed_forward_length", c["intermediate_size"]
    for key, names in (
        ("expert_feed_forward_length", ("moe_intermediate_size", "intermediate_size")),
        ("expert_used_count", ("moe_topk",)),
        ("expert_shared_count", ("num_shared_expert",)),
    ):
        value = c.first(*names)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise c.bad(names[0], "differs between layers, which weft does not know")
            value = value[0]
        yield key, 1 if value is None else value
    yield from _stretched(c)


_LONG = 256 * 1024
"""The context of Hunyuan's models, whose config.json may say an eighth of it."""


def _stretched(c: Config) -> Pairs:
    """The base of the rotary embedding, stretched by a fixed `alpha`."""
    alpha, d, base = c.rope.get("alpha"), c.head_dim, float(c.rope.get("rope_theta", 10000.0))
    if c.rope.get("rope_type") not in ("dynamic", "xdrope") or not alpha:
        return
    if d < 4:
        raise c.bad("head_dim", f"is {d}; a head that rotates has 4 elements or more")
    if not isinstance(alpha, (int, float)) or not 0 < alpha < 1e9:
        raise c.bad("alpha", f"of the rotary embedding is {alpha!r}; it is a number above 0 and "
                    "below 1e9")  # fmt: skip
    yield "rope.freq_base", base * float(alpha) ** (d / (d - 2))
    yield "rope.scaling.type", "none"
    yield "rope.scaling.factor", 1.0
    if c.get("max_position_embeddings") in (_LONG // 8, _LONG):
        yield "rope.scaling.original_context_length", _LONG
        yield "context_length", _LONG


_AXES = ("xdrope_section", "mrope_section")


def _hunyuan_common(c: Config) -> Pairs:
    """The common metadata; a mixture of one expert is a dense model."""
    for key, value in common_keys(c):
        if c.n_expert > 1 or not key.startswith("expert_"):
            yield key, value


def _hunyuan_images(c: Config) -> Pairs:
    """The sections of rotation by place in the text, place and line in an image, and its number,
    and the factor that stretches the base. Raises FormatError for other sections."""
    sections = next((c.rope[key] for key in _AXES if c.rope.get(key)), None)
    if not isinstance(sections, list) or len(sections) != 4:
        raise c.bad("rope_scaling", f"has the sections {sections!r}; weft computes four of them")
    yield "rope.dimension_sections", [int(n) for n in sections]
    yield "rope.scaling.type", "none"
    yield "rope.scaling.factor", float(c.rope.get("factor") or 1.0)
    yield "rope.scaling.alpha", float(c.rope.get("alpha") or 0.0)
    yield "rope.scaling.original_context_length", c["max_position_embeddings"]


def _untied(c: Config, name: str, values: Values) -> Named:
    if name != "lm_head.weight" or not c.get("tie_word_embeddings"):
        yield from split_experts(c, name, values)


def _hy_keys(c: Config) -> Pairs:
    width = c["moe_intermediate_size"]
    yield "expert_feed_forward_length", width
    yield "expert_shared_feed_forward_length", width * c.get("num_shared_experts", 1)
    yield "expert_weights_norm", bool(c.get("route_norm", True))
    yield "expert_weights_scale", float(c.get("router_scaling_factor", 1.0))
    yield "expert_gating_func", 2
    if n_draft(c):
        yield "nextn_predict_layers", n_draft(c)


def _minimax_keys(c: Config) -> Pairs:
    yield "expert_feed_forward_length", c["intermediate_size"]
    part = c.rope.get("partial_rotary_factor", 1.0)
    yield "rope.dimension_count", c.get("rotary_dim", int(c.head_dim * part))


def _lightning_keys(c: Config) -> Pairs:
    alphas = [
        c.first(f"layernorm_{kind}_alpha", f"{own}_alpha_factor") or 1.0 for kind, own in _SUMS
    ]
    betas = [c.first(f"layernorm_{kind}_beta", f"{own}_beta_factor") or 1.0 for kind, own in _SUMS]
    if len(set(alphas)) > 1 or set(betas) != {1.0}:
        raise c.bad("layernorm_mlp_alpha", "must be the same for all parts, with betas of 1")
    yield "residual_scale", float(alphas[0])
    yield "rope.dimension_count", c.get("rotary_dim", c.head_dim)
    flags, kinds = c.get("attn_type_list"), c.get("layer_types")  # 0: lightning attention
    if flags or kinds:
        lightning = [not flag for flag in flags or ()] or [k == "linear_attention" for k in kinds]
        if lightning != [(il + 1) % 8 != 0 for il in range(c.n_layer)]:
            yield "attention.recurrent_layers", lightning


def _lightning_change(c: Config, name: str, values: Values) -> Named:
    """Leaves out what is computed from the numbers of heads and layers."""
    if not name.endswith(("slope_rate", "query_decay", "key_decay", "diagonal_decay")):
        yield from split_experts(c, name, values)


_SUMS = (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp"))
_LIGHTNING = {"self_attn.qkv_proj": "attn_qkv", "self_attn.output_gate": "attn_gate",
              "self_attn.norm": "attn_norm_2"}  # fmt: skip


def _grove_keys(c: Config) -> Pairs:
    if c.get("moe_intermediate_size") is not None:
        yield "expert_feed_forward_length", c["moe_intermediate_size"]
    # as the model's own code has it
    yield "expert_chunk_feed_forward_length", c.get("head_dim") or 128
    yield "experts_per_group", 2
    yield "expert_group_scale", 0.05


def _grove_join(c: Config, tensors: Named) -> Iterator[tuple[str, Values]]:
    """Joins the small experts, and leaves out biases that the model does not use."""
    waiting: dict[tuple[str, str], dict[int, Values]] = {}
    for name, values in tensors:
        found = re.fullmatch(r"(.*\.mlp\.chunk_experts)\.(\d+)\.(\w+)\.weight", name)
        if found is None:
            if not name.endswith(".expert_bias"):
                yield name, values
            continue
        each = waiting.setdefault((found[1], found[3]), {})
        each[int(found[2])] = values
        if sorted(each) == list(range(c.n_expert // 2)):
            yield f"{found[1]}.{found[3]}.weight", stacked([each[i] for i in sorted(each)])
            del waiting[found[1], found[3]]
    if waiting:
        raise FormatError(f"{c.folder}: the experts {next(iter(waiting))[0]} are not all there")


_ARCTIC = {
    "residual_layernorm": "ffn_norm", "post_attention_layernorm": "ffn_norm_exps",
    "residual_mlp.w1": "ffn_gate", "residual_mlp.w2": "ffn_down", "residual_mlp.w3": "ffn_up",
}  # fmt: skip


def _hunyuan_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    if has(c, "hy.tiktoken"):  # config.json has another id
        yield "tokenizer.ggml.bos_token_id", token_id(c, "<|bos|>")
    if c.get("eod_token_id") is not None:
        yield "tokenizer.ggml.eos_token_id", c["eod_token_id"]
    ends = c.json("generation_config.json").get("eos_token_id")
    if isinstance(ends, list) and len(ends) >= 2:
        yield "tokenizer.ggml.eot_token_id", ends[0]


def _dbrx_keys(c: Config) -> Pairs:
    attention, layer = c["attn_config"], c["ffn_config"]
    yield "block_count", c.n_layer
    yield "context_length", c["max_seq_len"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", layer["ffn_hidden_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", attention["kv_n_heads"]
    base = attention["rope_theta"]
    if c.rope.get("rope_theta", base) != base:
        raise c.bad("rope_theta", f"is {c.rope['rope_theta']}, and {base} in attn_config")
    yield "rope.freq_base", float(base)
    yield "attention.clamp_kqv", float(attention["clip_qkv"])
    yield "expert_count", layer["moe_num_experts"]
    yield "expert_used_count", layer["moe_top_k"]
    yield "attention.layer_norm_epsilon", 1e-5
    yield "general.file_type", None


def _dbrx_change(c: Config, name: str, values: Values) -> Named:
    """Experts are stacked along the rows."""
    part = name.rpartition(".")[2]
    if ".experts.mlp." not in name or part not in ("w1", "v1", "w2"):
        yield name, values
        return
    n, width = c["ffn_config"]["moe_num_experts"], c.n_embd
    stack = values.reshaped(n, values.shape[0] // n, width)
    if part == "w2":
        shape = (n, width, stack.shape[1])
        stack = stack.through(lambda x: x.swapaxes(1, 2), shape)
    yield f"{name}.weight", stack


def ernie_vocab(c: Config) -> Vocabulary:
    """The vocabulary of ERNIE 4.5."""
    if not has(c, "tokenizer.model"):
        yield from llama(c)
        return
    yield from sentencepiece(c)
    settings = c.json("tokenizer_config.json")
    if "add_prefix_space" in settings:
        yield "tokenizer.ggml.add_space_prefix", settings["add_prefix_space"]


def ernie_parts(c: Config, name: str, values: Values) -> Named:
    """Takes fused projections apart."""
    name = name.replace("ernie.", "model.")
    if "qkv_proj" in name:
        q, kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        for part, cut in zip("qkv", values.split(q, kv, kv), strict=True):
            yield name.replace("qkv_proj", f"{part}_proj"), cut
    elif "up_gate_proj" in name:
        n = values.shape[0] // 2
        for part, cut in zip(("gate", "up"), values.split(n, n), strict=True):
            yield name.replace("up_gate_proj", f"{part}_proj"), cut
    else:
        yield name, values


def _glm_keys(c: Config) -> Pairs:
    part = c.rope.get("partial_rotary_factor", 0.5)
    yield "rope.dimension_count", int(c.head_dim * part)
    if n_draft(c):  # GLM-OCR
        yield "nextn_predict_layers", n_draft(c)


def _chat_vocab(c: Config) -> Vocabulary:
    """The same without a BOS of its own."""
    yield from _named(c, eos="<|endoftext|>", eot="<|user|>", unk="<|endoftext|>")


def _solar_vocab(c: Config) -> Vocabulary:
    ends = dict.fromkeys(("eos", "eot"), "<|endoftext|>")
    yield from _named(c, **ends, unk="<unk>", bos="<|startoftext|>")


def _named(c: Config, **tokens: str) -> Vocabulary:
    """A vocabulary of bytes whose special tokens of these kinds are known by their texts."""
    special = SpecialTokens(c, merges=True)
    yield from (pair for pair in bpe(c) if not pair[0].startswith(SPECIAL_KEYS))
    for kind, text in tokens.items():
        special.set(kind, token_id(c, text))
    yield from special.keys()


def _chat_keys(c: Config) -> Pairs:
    width = c.n_embd
    yield "context_length", c.get("seq_length", width)
    yield "embedding_length", width
    yield "feed_forward_length", c.first("ffn_hidden_size", "intermediate_size") or 4 * width
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.get("multi_query_group_num", c.n_head_kv)
    eps = c.first("layernorm_epsilon", "rms_norm_eps")
    yield "attention.layer_norm_rms_epsilon", float(eps or 1e-5)
    yield "general.file_type", None
    dim = c.get("attention_dim", c.head_dim)
    if dim != width // c.n_head:
        yield "attention.key_length", dim
        yield "attention.value_length", dim
    yield "rope.dimension_count", int(dim * c.rope.get("partial_rotary_factor", 0.5))
    yield "tokenizer.ggml.add_bos_token", False
    yield "rope.freq_base", float(c.rope.get("rope_theta", 10000) * c.get("rope_ratio", 1))


def _glm_halves(c: Config, name: str, values: Values) -> Named:
    """Puts the rows of queries and keys of GLM-4.1V in the order in which halves rotate, as files
    with sections have them. Layers behind the last of GLM-OCR, which draft tokens, are left out."""
    layer = name.partition("layers.")[2].partition(".")[0]
    if layer.isdigit() and int(layer) >= c.n_layer:
        return
    if c.rope.get("mrope_section") and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        n_rot = int(c.head_dim * c.rope.get("partial_rotary_factor", 0.5))
        order = [*range(0, n_rot, 2), *range(1, n_rot, 2), *range(n_rot, c.head_dim)]
        values = values.through(
            lambda x: x.reshape(-1, c.head_dim, *x.shape[1:])[:, order].reshape(x.shape)
        )
    yield name, values


_PARTIAL = {**ROTARY, "partial_rotary_factor": 0.5}


def _solar_keys(c: Config) -> Pairs:
    for key, value in glm_keys(c):
        whole = key == "rope.dimension_count" and "partial_rotary_factor" not in c.rope
        yield key, c.head_dim if whole else value


# gpt-oss: experts with biases and MXFP4 weights, attention sinks.


def _keys(c: Config) -> Pairs:
    yield "attention.sliding_window", c["sliding_window"]
    yield "expert_feed_forward_length", c["intermediate_size"]


def _change(c: Config, name: str, values: Values) -> Named:
    """Rows of gate and up take turns in the folder."""
    if name.endswith("sinks"):
        yield f"{name}.weight", values
    elif name.endswith("gate_up_proj_bias"):
        n = values.shape[-1] // 2
        for part, start in (("gate", 0), ("up", 1)):
            new = name.replace("gate_up_proj_bias", f"{part}_proj.bias")
            yield new, values.taken(..., slice(start, None, 2), shape=(values.shape[0], n))
    elif name.endswith("down_proj_bias"):
        yield name.replace("_bias", ".bias"), values
    elif name.endswith("gate_up_proj_mxfp4"):
        for part, start in (("gate", 0), ("up", 1)):
            shape = (values.shape[0], values.shape[1] // 2, values.shape[2])
            rows = values.taken(slice(None), slice(start, None, 2), shape=shape)
            yield name.replace("gate_up_proj_mxfp4", f"{part}_proj.weight"), rows
    elif name.endswith("down_proj_mxfp4"):
        yield name.replace("_mxfp4", ".weight"), values
    elif name.endswith("gate_up_proj"):
        n_expert, width, n = values.shape
        for part, start in (("gate", 0), ("up", 1)):
            columns = values.taken(..., slice(start, None, 2), shape=(n_expert, width, n // 2))
            yield name.replace("gate_up_proj", f"{part}_proj.weight"), _transposed(columns)
    elif name.endswith("down_proj"):
        yield f"{name}.weight", _transposed(values)
    else:
        yield name, values


def _transposed(values: Values) -> Values:
    n, rows, columns = values.shape
    return values.through(lambda x: x.swapaxes(-1, -2), (n, columns, rows))


# Llama 4: chunks, layers that do not rotate, and experts behind every layer or every second.


def _common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        yield key, c["intermediate_size_mlp"] if key == "feed_forward_length" else value


def _llama4_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield "interleave_moe_layer_step", c["interleave_moe_layer_step"]
    yield "expert_feed_forward_length", c["intermediate_size"]
    usual = [il % 4 != 3 for il in range(c.n_layer)]
    rotates = [bool(r) for r in c.get("no_rope_layers") or usual]  # 1: it rotates
    size, kinds = c.get("attention_chunk_size", 8192), c.get("layer_types")
    chunked = [kind == "chunked_attention" for kind in kinds] if kinds else rotates
    if not size or not any(chunked):
        size, chunked = 0, [True] * c.n_layer  # all layers rotate, for files without a pattern
    if size != 8192:
        yield "attention.sliding_window", size
    if size and chunked != usual:
        yield "attention.sliding_window_pattern", chunked
    if rotates != chunked:
        yield "attention.rope_pattern", rotates
    for key, value in (
        ("use_qk_norm", c.n_expert != 128),  # Maverick's heads have no norm
        ("attn_temperature_tuning", True),
        ("floor_scale", 8192),
        ("attn_scale", 0.1),
    ):  # files have no keys for them
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]}, which must be {value} here")


def _llama4_change(c: Config, name: str, values: Values) -> Named:
    """Experts are transposed."""
    base, found, _ = name.partition("experts.gate_up_proj")
    if not found and not name.endswith("experts.down_proj"):
        yield name, values
        return
    n, width, rows = values.shape
    turned = values.through(lambda x: x.swapaxes(-1, -2), (n, rows, width))
    if not found:
        yield f"{name}.weight", turned
        return
    half = rows // 2
    for part, start in (("gate", 0), ("up", half)):
        cut = turned.taken(slice(None), slice(start, start + half), shape=(n, half, width))
        yield f"{base}experts.{part}_proj.weight", cut


FAMILIES = {
    "minimax-01": Family(
        "minimax-01", _lightning_keys, change=_lightning_change, names=_LIGHTNING,
        defaults={"rope_theta": 1e6}, experts=("w1", "w2", "w3"), fixed={"sliding_window": ()},
    ),
    "grovemoe": Family(
        "grovemoe", _grove_keys, join=_grove_join, defaults=ROTARY, names={
            f"mlp.chunk_experts.{part}_proj": f"ffn_{part}_chexps"
            for part in ("gate", "up", "down")
        },
    ),
    "arctic": Family(
        "arctic", llama_keys, vocab=sentencepiece, names=_ARCTIC, defaults=DERIVED, adjacent=True,
        experts=("w1", "w2", "w3"),
    ),
    "ernie4_5-moe": Family(
        "ernie4_5-moe", _ernie_keys, change=_ernie_change, vocab=ernie_vocab,
        defaults={"rope_theta": 500000.0}, experts=("gate_proj", "up_proj", "down_proj"),
    ),
    "glm4moe": Family(
        "glm4moe", glm_keys, common=drafting, names=NORM_BEHIND, change=split_experts,
        vocab=glm_moe_vocab, defaults={**ROTARY, "head_dim": 128},
    ),
    "hunyuan-dense": Family(
        "hunyuan-dense", _stretched, vocab=_hunyuan_vocab, change=_untied, defaults=ROTARY,
    ),
    "hunyuan-moe": Family(
        "hunyuan-moe", _hunyuan_keys, vocab=_hunyuan_vocab, change=_untied, defaults=ROTARY,
    ),
    "hunyuan_vl": Family(
        "hunyuan_vl", _hunyuan_images, common=_hunyuan_common, vocab=_hunyuan_vocab, change=_untied,
        defaults=ROTARY,
    ),
    "hy_v3": Family("hy_v3", _hy_keys, common=drafting, change=split_experts, defaults=ROTARY),
    "minimax-m2": Family("minimax-m2", _minimax_keys, defaults=ROTARY, experts=("w1", "w2", "w3")),
    "dbrx": Family("dbrx", common=_dbrx_keys, f32_routers=False, change=_dbrx_change),
    "ernie4_5": Family(
        "ernie4_5", change=ernie_parts, vocab=ernie_vocab,
        defaults={"rope_theta": 500000.0, "head_dim": 128},
    ),
    "paddleocr": Family(
        "paddleocr", change=ernie_parts, vocab=ernie_vocab,
        defaults={"rope_theta": 500000.0, "head_dim": 128},
    ),
    "chatglm": Family("chatglm", common=_chat_keys, vocab=_chat_vocab, defaults=_PARTIAL),
    "glm4": Family("glm4", _glm_keys, vocab=glm_vocab, defaults={**_PARTIAL, "head_dim": 128}),
    "glm4v": Family(
        "glm4", _glm_keys, common=drafting, vocab=glm_vocab, change=_glm_halves,
        defaults={**ROTARY, "partial_rotary_factor": 1.0},
    ),
    "solar_open": Family(
        "glm4moe", _solar_keys, common=drafting, names=NORM_BEHIND, change=split_experts,
        vocab=_solar_vocab,
        defaults={"rope_theta": 1e6, "head_dim": 128, "first_k_dense_replace": 0},
    ),
    "maincoder": Family("maincoder", head_keys, defaults=DERIVED),
    "gpt-oss": Family(
        "gpt-oss", _keys, change=_change, names=NORM_BEHIND,
        defaults={"rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128},
        windows=lambda il: il % 2 != 1, fixed={"swiglu_alpha": (1.702,), "swiglu_limit": (7.0,)},
    ),
    "llama4": Family(
        "llama4", _llama4_keys, common=_common, change=_llama4_change, extra=llama3_factors,
        defaults={"rope_theta": 500000.0, "head_dim": 128},
    ),
}  # fmt: skip
