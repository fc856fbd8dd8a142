"""Texts of grammars: drawn from them, and held to them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import metadata, tokens, write_model
from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer

__all__ = ["answer", "follow", "with_controls"]


def with_controls(folder: Path) -> Tokenizer:
    """A small vocabulary with the control tokens of calls."""
    names, scores, types = tokens()
    meta = metadata(**{
        "tokenizer.ggml.tokens": [*names, "[TOOL_CALLS]", "[ARGS]"],
        "tokenizer.ggml.scores": np.append(scores, [0, 0]).astype(np.float32),
        "tokenizer.ggml.token_type": np.append(types, [3, 3]).astype(np.int32),
    })  # fmt: skip
    path = write_model(folder / "m.gguf", meta)
    return Tokenizer.from_gguf(open_gguf(path))


def answer(tokenizer: Tokenizer, grammar: str, seed: int) -> str:
    """Text of a model that knows nothing."""
    params = SamplingParams(temperature=1.0, top_k=0, seed=seed, grammar=grammar)
    sampler = Sampler(params, tokenizer)
    rng, ids = np.random.default_rng(seed), []
    while not sampler.done and len(ids) < 2000:
        id_ = sampler.sample(rng.normal(0, 1, tokenizer.n_vocab).astype(np.float32))
        if id_ in tokenizer.vocab.eog:
            break
        sampler.accept(id_)
        ids.append(id_)
    return b"".join(tokenizer.piece(id_, special=True) for id_ in ids).decode()


def follow(tokenizer: Tokenizer, grammar: str, text: str) -> None:
    """Holds `text` to a grammar; fails with the rest of the text that it does not allow."""
    sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
    n = tokenizer.n_vocab
    control = {"[TOOL_CALLS]": n - 2, "[ARGS]": n - 1}
    pieces = [piece for piece in re.split(r"(\[TOOL_CALLS\]|\[ARGS\])", text) if piece]
    for i, piece in enumerate(pieces):
        ids = [control[piece]] if piece in control else [3 + byte for byte in piece.encode()]
        for at, id_ in enumerate(ids):
            try:
                sampler.accept(id_)
            except ContextError:
                rest = piece.encode()[at:].decode(errors="replace")
                pytest.fail(f"{rest + ''.join(pieces[i + 1 :])!r} of {text!r}")
