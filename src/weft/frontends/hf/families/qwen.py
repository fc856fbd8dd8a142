"""Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE, openPangu and Mellum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import DERIVED, ROTARY, Family, Named, never
from weft.frontends.hf.keys import Pairs, pooling_keys, window_keys
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, pieces_or_bpe, pieces_or_llama, token_id


def expert_keys(c: Config) -> Pairs:
    """Widths of experts."""
    for key, name in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        if c.get(name) is not None:
            yield key, c[name]


def _vision_keys(c: Config) -> Pairs:
    yield from pooling_keys(c)
    yield from expert_keys(c)
    vision = c.get("vision_config") or {}
    yield "n_deepstack_layers", len(vision.get("deepstack_visual_indexes", ()))


def _split_transposed(c: Config, name: str, values: Values) -> Named:
    """Qwen3-VL's experts, whose matrices are transposed in the files of the makers, not in those
    that transformers saves today."""
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        n, rows, columns = values.shape
        width = c["moe_intermediate_size"]
        today = rows == columns and str(c.get("transformers_version", "")).startswith("5")
        if (rows, columns) in ((c.n_embd, 2 * width), (width, c.n_embd)) and not today:
            values = values.through(lambda x: x.swapaxes(-1, -2), (n, columns, rows))
    yield from split_experts(c, name, values)


def split_experts(c: Config, name: str, values: Values) -> Named:
    """Takes gate and up apart where the folder has the experts of a layer as one tensor each."""
    stem = name.removesuffix(".weight")
    if stem.endswith("mlp.experts.gate_up_proj"):
        n = values.shape[-2] // 2
        shape = (*values.shape[:-2], n, values.shape[-1])
        base = stem.removesuffix("gate_up_proj")
        yield f"{base}gate_proj.weight", values.taken(..., slice(0, n), slice(None), shape=shape)
        yield f"{base}up_proj.weight", values.taken(..., slice(n, None), slice(None), shape=shape)
    elif stem.endswith("mlp.experts.down_proj"):
        yield f"{stem}.weight", values
    else:
        yield name, values


# **** Qwen3's rerankers ****

_RERANK = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def _ranks(c: Config) -> bool:
    """True for a reranker, which config.json does not tell; its name or its card does."""
    names = (c.folder.resolve().name, str(c.get("_name_or_path", "")))
    card = c.text("README.md") or ""
    return any("qwen3-reranker" in text.lower() for text in names) or (
        "# qwen3-reranker" in card.lower()
    )


def _qwen3_keys(c: Config) -> Pairs:
    yield from pooling_keys(c)
    if _ranks(c):
        yield "pooling_type", 4
        yield "classifier.output_labels", ["yes", "no"]
        yield "tokenizer.chat_template.rerank", _RERANK
        yield "tokenizer.chat_templates", ["rerank"]


def _qwen3_change(c: Config, name: str, values: Values) -> Named:
    """Keeps the rows of "yes" and "no" of a reranker's output matrix."""
    tied = bool(c.get("tie_word_embeddings"))
    if name.endswith("embed_tokens.weight" if tied else "lm_head.weight") and _ranks(c):
        ids = [token_id(c, word) for word in ("yes", "no")]
        if None in ids:
            raise FormatError(f"{c.folder}: a reranker whose vocabulary lacks yes or no")
        yield "=cls.output.weight", values.taken(ids, shape=(2, *values.shape[1:]))
        if not tied:
            return
    yield name, values


def _qwen3moe_keys(c: Config) -> Pairs:
    yield from expert_keys(c)
    window = c.get("sliding_window")
    if c["use_sliding_window"] and window:  # in all layers
        yield "attention.sliding_window", window
        yield "attention.sliding_window_pattern", [True] * c.n_layer


def _of_internvl(config: Mapping[str, Any]) -> str:
    """InternVL's text model, where config.json does not name its class."""
    kind = str((config.get("text_config") or {}).get("model_type", ""))
    return {"qwen3": "qwen3", "qwen3_moe": "qwen3moe"}.get(kind, "")


_ROTARY = {**ROTARY, "use_sliding_window": False}
_AUDIO_DEFAULTS = {
    **_ROTARY, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 22016, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
}  # fmt: skip


def _pangu_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim
    yield "attention.key_length", c.head_dim
    yield "attention.value_length", c.head_dim


def _mellum_keys(c: Config) -> Pairs:
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    if c.get("use_sliding_window", True):
        yield from window_keys(c)


# OpenELM, and Qwen's models that hear.


def _openelm_sizes(c: Config) -> list[int]:
    """Widths of feed-forward layers: multiples of a divisor, not below 90%."""
    n, widths = c["ffn_dim_divisor"], []
    for multiplier in c["ffn_multipliers"]:
        size = multiplier * c["model_dim"]
        near = max(n, int(size + n / 2) // n * n)
        widths.append(near + n if near < 0.9 * size else near)
    return widths


def _openelm_keys(c: Config) -> Pairs:
    yield "block_count", c["num_transformer_layers"]
    yield "context_length", c["max_context_length"]
    yield "embedding_length", c["model_dim"]
    yield "feed_forward_length", _openelm_sizes(c)
    yield "attention.head_count", c["num_query_heads"]
    yield "attention.head_count_kv", c["num_kv_heads"]
    yield "rope.freq_base", float(c["rope_freq_constant"])
    yield "attention.layer_norm_rms_epsilon", 1e-6
    yield "rope.dimension_count", c.head_dim
    yield "attention.key_length", c.head_dim
    yield "attention.value_length", c.head_dim
    yield "general.file_type", None


def _openelm_change(c: Config, name: str, values: Values) -> Named:
    stem, found, kind = name.partition("ffn.proj_1")
    if not found:
        yield name, values
        return
    n = values.shape[0] // 2
    for part, cut in zip(("gate", "up"), values.split(n, n), strict=True):
        yield f"{stem}mlp.{part}_proj{kind}", cut


def _heard_keys(c: Config) -> Pairs:
    """Rows of sound have no parts for deeper layers; rows of images of these models neither."""
    yield from expert_keys(c)
    yield "n_deepstack_layers", 0


def _heard_vocab(c: Config) -> Vocabulary:
    yield from pieces_or_bpe(c)
    end = token_id(c, "<|im_end|>")
    for kind in ("bos", "eos") if end is not None else ():
        yield f"tokenizer.ggml.{kind}_token_id", end


# Qwen's first models, whose code stands in their folders.


def _first_keys(c: Config) -> Pairs:
    if c.get("kv_channels", c.head_dim) != c.head_dim:
        raise c.bad("kv_channels", f"is {c['kv_channels']}, and must be {c.head_dim} here")
    yield "attention.layer_norm_rms_epsilon", float(c["layer_norm_epsilon"])
    part = float(c.get("rotary_pct", 1.0))
    if part != 1.0:
        yield "rope.dimension_count", int(c.head_dim * part)
    trained = c.get("seq_length")
    bends = c.get("use_dynamic_ntk") or c.get("use_logn_attn")
    if bends and isinstance(trained, int) and trained < c.get("max_position_embeddings", trained):
        # beyond the length of training, angles and scores change
        yield "context_length", trained
        yield "rope.scaling.dynamic", True


def _first_vocab(c: Config) -> Vocabulary:
    """Texts of a vocabulary of ranks begin and end with <|endoftext|>."""
    special = SpecialTokens(c, merges=True)
    end = token_id(c, "<|endoftext|>")
    if not special.ids:
        special.set("bos", end)
        special.set("eos", end)
    special.set("unk", end)
    plain = ("model", "pre", "tokens", "token_type")
    kept = {f"tokenizer.ggml.{name}" for name in plain}
    yield from (pair for pair in bpe(c) if pair[0] in kept)
    yield from special.keys()


FAMILIES = {
    "qwen": Family(
        "qwen", _first_keys, vocab=_first_vocab, defaults={"rotary_emb_base": 10000.0},
        names={"mlp.w1": "ffn_up", "mlp.w2": "ffn_gate"},
    ),
    "openelm": Family(
        "openelm", common=_openelm_keys, change=_openelm_change, vocab=pieces_or_llama,
        names={"attn.qkv_proj": "attn_qkv", "attn.q_norm": "attn_q_norm",
               "attn.k_norm": "attn_k_norm", "ffn.proj_2": "ffn_down"},
        outer={"token_embeddings": "token_embd"}, activation="",
    ),
    "qwen3 heard": Family(
        "qwen3vl", _heard_keys, vocab=_heard_vocab, defaults={**_ROTARY, "head_dim": 128},
    ),
    "qwen3moe heard": Family(
        "qwen3vlmoe", _heard_keys, change=split_experts, vocab=_heard_vocab, defaults=_ROTARY,
        norm_topk=True,
    ),
    "qwen2": Family("qwen2", pooling_keys, vocab=pieces_or_bpe, defaults=_ROTARY, windows=never),
    "internvl": Family(
        "qwen2", vocab=pieces_or_bpe, defaults=_ROTARY, windows=never, variant=_of_internvl,
    ),
    "qwen2audio": Family("qwen2", vocab=pieces_or_bpe, defaults=_AUDIO_DEFAULTS, windows=never),
    "qwen2moe": Family(
        "qwen2moe", expert_keys, change=split_experts, defaults=_ROTARY, windows=never,
        norm_topk=False,
    ),
    "qwen2vl": Family("qwen2vl", vocab=pieces_or_bpe, defaults=_ROTARY, windows=never),
    "qwen3vl": Family(
        "qwen3vl", _vision_keys, vocab=pieces_or_bpe, defaults={**_ROTARY, "head_dim": 128},
    ),
    "qwen3vlmoe": Family(
        "qwen3vlmoe", _vision_keys, change=_split_transposed, vocab=pieces_or_bpe, defaults=_ROTARY,
        norm_topk=True,
    ),
    "qwen3": Family(
        "qwen3", _qwen3_keys, change=_qwen3_change, vocab=pieces_or_bpe,
        defaults={**_ROTARY, "head_dim": 128}, windows=never,
    ),
    "qwen3moe": Family(
        "qwen3moe", _qwen3moe_keys, change=split_experts, defaults=_ROTARY, norm_topk=True,
    ),
    "pangu-embedded": Family(
        "pangu-embedded", _pangu_keys, vocab=pieces_or_llama, defaults=DERIVED,
    ),
    "mellum": Family("mellum", _mellum_keys, change=split_experts, defaults=ROTARY, norm_topk=True),
}  # fmt: skip
