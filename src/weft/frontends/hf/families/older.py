"""Models of 2023 and 2024 whose folders are not LLaMA's: Baichuan, BailingMoE, CodeShell, DeepSeek,
EXAONE 3, InternLM 2, MiniCPM3, Orion, Refact, XVERSE."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import LATENT_NAMES
from weft.frontends.hf.families.llama import ROTARY
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.rope import llama3_factors, long_factors
from weft.frontends.hf.sentencepiece import read_normalizer
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, base_tokens, bpe, has, sentencepiece

__all__ = ["FAMILIES"]

_LAYOUT = "Meta AI original pth"


def _layout(c: Config) -> Pairs:
    yield "tensor_data_layout", _LAYOUT
    yield "rope.dimension_count", c.n_embd // c.n_head


def _pieces_or_bytes(c: Config) -> Vocabulary:
    return sentencepiece(c) if has(c, "tokenizer.model") else bpe(c)


def _plain_pieces(c: Config) -> Vocabulary:
    """XVERSE's vocabulary, whose pieces have no scores."""
    tokens, kinds = base_tokens(c, ())
    yield "tokenizer.ggml.model", "llama"
    yield "tokenizer.ggml.pre", "default"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from SpecialTokens(c, n_vocab=len(tokens)).keys()


def _internlm_vocab(c: Config) -> Vocabulary:
    """Chat models end a text where their turn ends."""
    pairs = dict(sentencepiece(c))
    tokens, kinds = pairs["tokenizer.ggml.tokens"], pairs["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(kinds, np.ndarray)
    for i, text in enumerate(tokens):
        if text == "\0":  # an empty text in C
            tokens[i] = "\U0001f409"
        elif text.startswith("[UNUSED"):
            kinds[i] = 5
    end, added = "tokenizer.ggml.eos_token_id", c.json("tokenizer_config.json")
    for id_, row in (added.get("added_tokens_decoder") or {}).items():
        if end in pairs and row["content"] == "<|im_end|>":
            pairs[end] = int(id_)
    for key, value in pairs.items():
        yield key, value
        if key == "tokenizer.ggml.token_type":
            prefix = read_normalizer(c.folder / "tokenizer.model").get(3, 1)
            yield "tokenizer.ggml.add_space_prefix", bool(prefix)


# **** Projections that are fused ****


def _packed(c: Config, name: str, values: Values) -> Named:
    """Baichuan's W_pack."""
    stem, found, kind = name.partition("W_pack")
    if not found:
        yield name, values
        return
    n = values.shape[0] // 3
    for part, cut in zip("qkv", values.split(n, n, n), strict=True):
        yield f"{stem}{part}_proj{kind}", cut


def _grouped(c: Config, name: str, values: Values) -> Named:
    """InternLM 2's wqkv: for each key head, its query heads, the key and the value."""
    stem, found, kind = name.partition("attention.wqkv")
    if not found:
        yield name, values
        return
    n, per = c.n_head_kv, c.n_head // c.n_head_kv
    d, rest = c.n_embd // c.n_head, values.shape[1:]

    def of(start: int, stop: int) -> Values:
        rows = n * (stop - start) * d
        return values.through(
            lambda x: x.reshape(n, per + 2, d, *rest)[:, start:stop].reshape(rows, *rest),
            (rows, *rest),
        )

    for part, start, stop in (("q", 0, per), ("k", per, per + 1), ("v", per + 1, per + 2)):
        yield f"{stem}self_attn.{part}_proj{kind}", of(start, stop)


def _bailing_parts(c: Config, name: str, values: Values) -> Named:
    stem, found, kind = name.partition("attention.query_key_value")
    if name == "lm_head.weight" and c.get("norm_head"):
        # the matrix of the head is normed column by column
        values = values.through(
            lambda x: x / np.maximum(np.sqrt((x * x).sum(0, keepdims=True)), np.float32(1e-7))
        )
    if not found:
        yield name, values
        return
    q, kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    for part, cut in zip("qkv", values.split(q, kv, kv), strict=True):
        yield f"{stem}self_attn.{part}_proj{kind}", cut


def _refact_parts(c: Config, name: str, values: Values) -> Named:
    for fused, parts in (("attn.kv.", "kv"), ("mlp.gate_up_proj.", ("gate", "up"))):
        stem, found, kind = name.partition(fused)
        if found:
            n = c.n_embd // c.n_head if parts == "kv" else values.shape[0] // 2
            head = f"{stem}self_attn." if parts == "kv" else f"{stem}mlp."
            for part, cut in zip(parts, values.split(n, values.shape[0] - n), strict=True):
                yield f"{head}{part}_proj.{kind}", cut
            return
    yield name, values


# **** Metadata ****


def _orion_keys(c: Config) -> Pairs:
    yield "general.file_type", None
    yield "tensor_data_layout", _LAYOUT
    longest = c.first("max_sequence_length", "max_position_embeddings", "model_max_length")
    yield "context_length", longest
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_epsilon", float(c["rms_norm_eps"])  # norms are LayerNorms


def _codeshell_keys(c: Config) -> Pairs:
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", 4 * c.n_embd
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c["num_query_groups"]
    yield "attention.layer_norm_epsilon", float(c["layer_norm_epsilon"])
    yield "general.file_type", None
    yield "rope.freq_base", 10000.0
    yield "rope.scaling.type", "linear"
    yield "rope.scaling.factor", 1.0


def _refact_keys(c: Config) -> Pairs:
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", -(-int(8 * c.n_embd / 3) // 256) * 256
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", 1
    yield "attention.layer_norm_rms_epsilon", float(c["layer_norm_epsilon"])
    yield "general.file_type", None


def _refact_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    for kind, id_ in (("prefix", 1), ("suffix", 3), ("middle", 2)):
        yield f"tokenizer.ggml.{kind}_token_id", id_


def _exaone_keys(c: Config) -> Pairs:
    part = c.rope.get("partial_rotary_factor", 1.0)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))


def _deepseek_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim
    yield "rope.scaling.type", "none"
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_weights_scale", 1.0
    yield "expert_count", c["n_routed_experts"]
    yield "expert_shared_count", c["n_shared_experts"]


def _bailing_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_weights_scale", 1.0
    yield "expert_shared_count", c["num_shared_experts"]
    yield "expert_weights_norm", bool(c["norm_topk_prob"])


def _minicpm3_keys(c: Config) -> Pairs:
    for key, value in (("scale_emb", 12), ("scale_depth", 1.4), ("dim_model_base", 256)):
        if c.get(key, value) != value:  # files have no keys for them
            raise c.bad(key, f"is {c[key]}, and weft knows only {value}")
    yield "general.file_type", None
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "vocab_size", c.count("vocab_size")
    if c.get("q_lora_rank") is not None:
        yield "attention.q_lora_rank", c["q_lora_rank"]
    yield "attention.kv_lora_rank", c["kv_lora_rank"]
    yield "attention.key_length", c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    yield "rope.dimension_count", c["qk_rope_head_dim"]


_GPT_LAYER = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
}  # fmt: skip

FAMILIES = {
    "baichuan": Family(
        "baichuan", _layout, change=_packed, vocab=sentencepiece, defaults=ROTARY, adjacent=True
    ),
    "bailingmoe": Family(
        "bailingmoe",
        _bailing_keys,
        change=_bailing_parts,
        names={"attention.dense": "attn_output"},
        defaults=ROTARY,
        adjacent=True,
    ),
    "codeshell": Family(
        "codeshell",
        common=_codeshell_keys,
        names=_GPT_LAYER | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        activation="gelu",
    ),
    "deepseek": Family(
        "deepseek", _deepseek_keys, vocab=_pieces_or_bytes, defaults=ROTARY, adjacent=True
    ),
    "exaone": Family(
        "exaone",
        _exaone_keys,
        extra=llama3_factors,
        names={
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
            "attn.attention.q_proj": "attn_q",
            "attn.attention.k_proj": "attn_k",
            "attn.attention.v_proj": "attn_v",
            "attn.attention.out_proj": "attn_output",
            "mlp.c_fc_0": "ffn_gate",
            "mlp.c_fc_1": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
        defaults=ROTARY,
    ),
    "internlm2": Family(
        "internlm2",
        change=_grouped,
        names={
            "attention_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            "attention.wo": "attn_output",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
        },
        outer={"tok_embeddings": "token_embd", "output": "output"},
        vocab=_internlm_vocab,
        defaults=ROTARY,
        adjacent=True,
    ),
    "minicpm3": Family(
        "minicpm3",
        common=_minicpm3_keys,
        names=LATENT_NAMES,
        extra=long_factors,
        vocab=sentencepiece,
        defaults=ROTARY,
    ),
    "orion": Family("orion", common=_orion_keys, vocab=sentencepiece, defaults=ROTARY),
    "refact": Family(
        "refact",
        common=_refact_keys,
        change=_refact_parts,
        names=_GPT_LAYER | {"attn.q": "attn_q", "mlp.c_proj": "ffn_down"},
        vocab=_refact_vocab,
        activation="",
    ),
    "xverse": Family("xverse", _layout, vocab=_plain_pieces, defaults=ROTARY, adjacent=True),
}
