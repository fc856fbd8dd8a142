"""Models of a few kilobytes, written by the tests themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.frontends.gguf.writer import write_gguf

__all__ = ["PIECES", "metadata", "tokens", "weights", "write_model", "write_wide_model"]

PIECES = ["▁", "a", "b", "c", "t", "h", "e", "▁t", "he", "▁the", "ab", "abc", "▁a", "▁▁", "<tool>"]
"""Pieces behind the special tokens and bytes; earlier merges score higher."""

USER_DEFINED = "<tool>"


def tokens() -> tuple[list[str], NDArray[np.float32], NDArray[np.int32]]:
    """Tokens, scores and types of a small SentencePiece vocabulary."""
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + PIECES
    types = [2, 3, 3] + [6] * 256 + [4 if p == USER_DEFINED else 1 for p in PIECES]
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES))]
    return names, np.array(scores, np.float32), np.array(types, np.int32)


def metadata(**changes: object) -> dict[str, object]:
    """Metadata of a llama with 16 wide rows, 2 layers, 4 heads over 2; None removes a key."""
    names, scores, types = tokens()
    meta: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": 64,
        "llama.embedding_length": 16,
        "llama.block_count": 2,
        "llama.feed_forward_length": 24,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1000.0,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for key, value in changes.items():
        meta[key] = value
    return {key: value for key, value in meta.items() if value is not None}


def weights(meta: dict[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights for `metadata`, shapes outermost first."""
    random = np.random.default_rng(seed)
    n_embd, n_ff = meta["llama.embedding_length"], meta["llama.feed_forward_length"]
    n_head, n_kv = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    d = meta.get("llama.attention.key_length", n_embd // n_head)
    n_vocab = len(meta["tokenizer.ggml.tokens"])
    n_expert = meta.get("llama.expert_count", 0)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])).astype(np.float32)

    def gain(n: int) -> NDArray[np.float32]:
        return (1 + 0.2 * random.standard_normal(n)).astype(np.float32)

    tensors = {"token_embd.weight": matrix(n_vocab, n_embd) * 4, "output_norm.weight": gain(n_embd)}
    tensors["output.weight"] = matrix(n_vocab, n_embd)
    for il in range(meta["llama.block_count"]):
        layer = {
            "attn_norm": gain(n_embd),
            "attn_q": matrix(n_head * d, n_embd),
            "attn_k": matrix(n_kv * d, n_embd),
            "attn_v": matrix(n_kv * d, n_embd),
            "attn_output": matrix(n_embd, n_head * d),
            "ffn_norm": gain(n_embd),
        }
        if n_expert:
            layer["ffn_gate_inp"] = matrix(n_expert, n_embd)
            for name in ("gate", "up"):
                layer[f"ffn_{name}_exps"] = matrix(n_expert, n_ff, n_embd)
            layer["ffn_down_exps"] = matrix(n_expert, n_embd, n_ff)
        else:
            for name in ("gate", "up"):
                layer[f"ffn_{name}"] = matrix(n_ff, n_embd)
            layer["ffn_down"] = matrix(n_embd, n_ff)
        tensors |= {f"blk.{il}.{name}.weight": array for name, array in layer.items()}
    return tensors


def write_model(
    path: Path,
    meta: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[Any]] | None = None,
) -> Path:
    """Writes a GGUF file with tensors of float32 or int32; returns its path."""
    meta = metadata() if meta is None else meta
    tensors = weights(meta) if tensors is None else tensors
    types = {name: "i32" if a.dtype == np.int32 else "f32" for name, a in tensors.items()}
    write_gguf(
        path, meta, [(name, types[name], a.shape[::-1], a.tobytes()) for name, a in tensors.items()]
    )
    return path


def write_wide_model(path: Path) -> Path:
    """A llama of 4 layers, 512 wide, for texts of up to 512 tokens; returns the path."""
    meta = metadata(**{
        "llama.embedding_length": 512, "llama.block_count": 4, "llama.feed_forward_length": 640,
        "llama.attention.head_count": 8, "llama.attention.head_count_kv": 4,
        "llama.context_length": 512,
    })  # fmt: skip
    return write_model(path, meta, weights(meta))
