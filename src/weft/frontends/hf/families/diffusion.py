"""LLaDA, Dream and RND1: models that write by diffusion."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.families.qwen import expert_keys, split_experts
from weft.frontends.hf.family import ROTARY, Family, never
from weft.frontends.hf.keys import Pairs, pooling_keys
from weft.frontends.hf.vocab import Vocabulary, bpe, pieces_or_bpe

_LLADA_NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "attn_out": "attn_output",
    "ff_norm": "ffn_norm", "ff_proj": "ffn_gate", "up_proj": "ffn_up", "ff_out": "ffn_down",
}  # fmt: skip
_LLADA_USUAL: dict[str, object] = {
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True,
    "alibi": False, "attention_layer_norm": False, "scale_logits": False, "input_emb_norm": False,
    "clip_qkv": None,
}  # fmt: skip
"""Settings of LLaDA that GGUF files have no keys for."""
_LLADA_MOE_MASK = 156895
"""The mask of LLaDA-MoE, which its config.json does not name."""


def _both_sides(c: Config, shifts: bool) -> Pairs:
    yield "attention.causal", False
    if not shifts:
        yield "diffusion.shift_logits", False
    elif c.get("mask_token_id") is not None:
        yield "tokenizer.ggml.mask_token_id", c["mask_token_id"]


def _llada_keys(c: Config) -> Pairs:
    for key, value in _LLADA_USUAL.items():
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, which must be {value!r} here")
    yield from pooling_keys(c)
    yield from llama_keys(c)
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c.count("mlp_hidden_size")
    yield from _both_sides(c, shifts=False)


def _llada_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    yield "tokenizer.ggml.add_bos_token", True


def _llada_moe_keys(c: Config) -> Pairs:
    for key, value in (("moe_router_score_function", "softmax"), ("qk_layernorm", True)):
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, which must be {value!r} here")
    width = c.get("expert_intermediate_size")
    if width is not None:
        yield "expert_feed_forward_length", width
    yield "tokenizer.ggml.mask_token_id", c.get("mask_token_id", _LLADA_MOE_MASK)
    yield from _both_sides(c, shifts=False)


def _dream_keys(c: Config) -> Pairs:
    yield from pooling_keys(c)
    yield from _both_sides(c, shifts=True)


def _rnd1_keys(c: Config) -> Pairs:
    yield from expert_keys(c)
    yield from _both_sides(c, shifts=True)


_ROTARY = {**ROTARY, "use_sliding_window": False}

FAMILIES = {
    "llada": Family(
        "llada", _llada_keys, names=_LLADA_NAMES, outer={"ff_out": "output"}, vocab=_llada_vocab,
        adjacent=True, defaults=ROTARY,
    ),
    "llada-moe": Family(
        "llada-moe", _llada_moe_keys, change=split_experts, defaults=ROTARY, norm_topk=False,
    ),
    "dream": Family("dream", _dream_keys, vocab=pieces_or_bpe, defaults=_ROTARY, windows=never),
    "rnd1": Family(
        "rnd1", _rnd1_keys, change=split_experts, defaults=_ROTARY, norm_topk=True, windows=never,
    ),
}  # fmt: skip
