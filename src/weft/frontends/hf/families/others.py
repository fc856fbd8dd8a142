"""Families with a difference or two: ERNIE 4.5, EXAONE 4, GLM 4, Nemotron, Seed-OSS, StableLM."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, window_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, has, llama, sentencepiece, token_id

__all__ = ["FAMILIES", "ernie_parts", "ernie_vocab", "exaone_keys", "glm_vocab"]

_BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


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


def exaone_keys(c: Config) -> Pairs:
    """The vocabulary's size and the windows."""
    yield "vocab_size", c.count("vocab_size")
    pattern = c.get("sliding_window_pattern")
    default = None
    if isinstance(pattern, str) and pattern:

        def default(il: int) -> bool:
            return pattern[il % len(pattern)] == "L"
    elif isinstance(pattern, int):

        def default(il: int) -> bool:
            return (il + 1) % pattern != 0

    yield from window_keys(c, default)


def glm_vocab(c: Config) -> Vocabulary:
    """The vocabulary of GLM 4, whose texts end with <|endoftext|> and turns with <|user|>."""
    special = SpecialTokens(c, merges=True)
    yield from (pair for pair in bpe(c) if not pair[0].startswith(_SPECIAL_KEYS))
    for kind, text in (("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"),
                       ("bos", "<|endoftext|>")):  # fmt: skip
        special.set(kind, token_id(c, text))
    yield from special.keys()


_SPECIAL_KEYS = ("tokenizer.ggml.merges", "tokenizer.ggml.add_", "tokenizer.chat_template",
                 "tokenizer.ggml.normalizer", *(f"tokenizer.ggml.{k}_token_id" for k in (
                     "bos", "eos", "unknown", "seperator", "padding", "cls", "mask")))  # fmt: skip


def _glm_keys(c: Config) -> Pairs:
    part = c.rope.get("partial_rotary_factor", 0.5)
    yield "rope.dimension_count", int(c.head_dim * part)


def _chat_vocab(c: Config) -> Vocabulary:
    """The same without a BOS of its own."""
    special = SpecialTokens(c, merges=True)
    yield from (pair for pair in bpe(c) if not pair[0].startswith(_SPECIAL_KEYS))
    for kind, text in (("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>")):
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
    yield "attention.layer_norm_rms_epsilon", float(c.get("layernorm_epsilon", 1e-5))
    yield "general.file_type", None
    dim = c.get("attention_dim", width // c.n_head)
    yield "rope.dimension_count", int(dim * c.rope.get("partial_rotary_factor", 0.5))
    yield "tokenizer.ggml.add_bos_token", False
    yield "rope.freq_base", float(10000 * c.get("rope_ratio", 1))


def _glm_halves(c: Config, name: str, values: Values) -> Named:
    """Puts the rows of queries and keys of GLM-4.1V in the order in which halves rotate, as files
    with sections have them."""
    if c.rope.get("mrope_section") and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        n_rot = int(c.head_dim * c.rope.get("partial_rotary_factor", 0.5))
        order = [*range(0, n_rot, 2), *range(1, n_rot, 2), *range(n_rot, c.head_dim)]
        values = values.through(
            lambda x: x.reshape(-1, c.head_dim, *x.shape[1:])[:, order].reshape(x.shape)
        )
    yield name, values


def _nemotron_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    eps = c.first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    yield "attention.layer_norm_epsilon", float(eps)
    part = c.rope.get("partial_rotary_factor", 0.5)
    yield "rope.dimension_count", int(part * c.n_embd) // c.n_head
    factor = c.get("factor") or c.rope.get("factor")
    yield "rope.scaling.type", "none" if factor is None else "linear"
    if factor is not None:
        yield "rope.scaling.factor", float(factor)


def _nemotron_vocab(c: Config) -> Vocabulary:
    yield from sentencepiece(c) if has(c, "tokenizer.model") else llama(c)
    yield "tokenizer.ggml.padding_token_id", 0
    yield "tokenizer.ggml.unknown_token_id", 1


def _shifted(c: Config, name: str, values: Values) -> Named:
    """Nemotron's norms multiply by 1 + weight."""
    yield name, values.through(lambda x: x + 1) if name.endswith("norm.weight") else values


def _stablelm_keys(c: Config) -> Pairs:
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    part = c.rope.get("partial_rotary_factor", 0.25)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "use_parallel_residual", bool(c.get("use_parallel_residual", False))
    yield "attention.layer_norm_epsilon", float(c.first("layer_norm_eps", "norm_eps"))
    yield "general.file_type", None


_ROTARY = {"rope_theta": 10000.0}
_PARTIAL = {**_ROTARY, "partial_rotary_factor": 0.5}
_GLM_NAMES = {
    "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}

FAMILIES = {
    "ernie4_5": Family(
        "ernie4_5",
        change=ernie_parts,
        vocab=ernie_vocab,
        defaults={"rope_theta": 500000.0, "head_dim": 128},
    ),
    "exaone4": Family(
        "exaone4", exaone_keys, names=_BEHIND, extra=llama3_factors, defaults=_ROTARY
    ),
    "chatglm": Family(
        "chatglm",
        common=_chat_keys,
        vocab=_chat_vocab,
        defaults=_PARTIAL,
    ),
    "glm4": Family(
        "glm4", _glm_keys, vocab=glm_vocab, names=_GLM_NAMES, defaults={**_PARTIAL, "head_dim": 128}
    ),
    "glm4v": Family(
        "glm4",
        _glm_keys,
        vocab=glm_vocab,
        change=_glm_halves,
        names=_GLM_NAMES,
        defaults=_PARTIAL,
    ),
    "nemotron": Family(
        "nemotron",
        _nemotron_keys,
        change=_shifted,
        vocab=_nemotron_vocab,
        defaults={**_ROTARY, "partial_rotary_factor": 0.5, "norm_eps": 1e-5, "head_dim": 0},
        activation="relu2",
    ),
    "seed_oss": Family(
        "seed_oss",
        names={"post_attention_layernorm": "post_attention_norm"},
        defaults={**_ROTARY, "head_dim": 128},
    ),
    "stablelm": Family(
        "stablelm",
        common=_stablelm_keys,
        names={"self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm"},
        defaults={**_ROTARY, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    ),
}
