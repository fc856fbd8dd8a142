"""Tiny encoders and rerankers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.llm.made_models import Tensors, configure, keys_of, made_up
from tests.llm.tiny import write_model

__all__ = ["DOCUMENTS", "ENCODER", "SEPARATED", "make_encoder", "make_reranker"]

ENCODER = {"attention.causal": False, "attention.head_count_kv": 4, "pooling_type": 1}
DOCUMENTS = ["the abc", "b", "the b the abc", "abc a a a", "teh"]
"""Documents that rerankers sort."""
SEPARATED = {
    "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_sep_token": True,
    "tokenizer.ggml.seperator_token_id": 3,
}  # fmt: skip
"""Metadata that puts a token between a query and a document."""


def make_encoder(tmp_path: Path, arch: str = "bert", **changes: object) -> tuple[Path, Tensors]:
    """Writes an encoder; returns its path and weights."""
    meta = keys_of(arch, ENCODER | changes) | {"tokenizer.ggml.token_type_count": 2}
    tensors = made_up(configure(tmp_path, meta))
    return write_model(tmp_path / f"{arch}.gguf", meta, tensors), tensors


def make_reranker(path: Path, arch: str = "bert", **keys: object) -> Path:
    """A BERT that sees both sides and scores by its first token, or a Qwen3 that says yes or no."""
    random = np.random.default_rng(5)
    changes = ENCODER if arch == "bert" else {"attention.key_length": 8, "rope.freq_base": 1e3}
    meta = keys_of(arch, changes | {"pooling_type": 4}) | SEPARATED | keys
    meta["tokenizer.ggml.token_type_count"] = 2
    tensors = made_up(configure(path.parent, meta))
    tensors.pop("output.weight", None)
    n_scores = 1 if arch == "bert" else 2
    tensors["cls.output.weight"] = random.standard_normal((n_scores, 16)).astype(np.float32)
    return write_model(path, meta, tensors)
