"""Vocabularies of a few tokens, written as GGUF files by the tests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.llm.tokenizers.bpe import SYMBOLS
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["BYTES", "byte_level", "make", "spell"]

BYTES = [symbol.decode() for symbol in SYMBOLS]
"""The 256 tokens that every byte-level vocabulary should have, by byte."""


def spell(text: str) -> str:
    """`text` in the alphabet of bytes."""
    return "".join(BYTES[byte] for byte in text.encode())


def make(
    path: Path,
    model: str,
    tokens: Sequence[str | bytes],
    types: dict[int, int] | None = None,
    scores: Sequence[float] | None = None,
    general: dict[str, str] | None = None,
    **keys: object,
) -> Tokenizer:
    """The tokenizer of a file with these tokens; `keys` of `tokenizer.ggml`, None leaves one out.

    `types`: by id, where they are not 1."""
    kinds = np.ones(len(tokens), np.int32)
    for id_, kind in (types or {}).items():
        kinds[id_] = kind
    meta: dict[str, object] = {"general.architecture": "test", **(general or {})}
    named = {"model": model, "tokens": list(tokens), "token_type": kinds, **keys}
    if scores is not None:
        named["scores"] = np.array(scores, np.float32)
    meta |= {f"tokenizer.ggml.{name}": v for name, v in named.items() if v is not None}
    write_gguf(path / "vocab.gguf", meta, [])
    return Tokenizer.from_gguf(open_gguf(path / "vocab.gguf"))


def byte_level(
    path: Path, merges: Sequence[str], more: Sequence[str] = (), **keys: object
) -> Tokenizer:
    """A byte-level tokenizer with all bytes, a token for each merge, and `more` tokens after."""
    tokens = [*BYTES, *dict.fromkeys(m.replace(" ", "") for m in merges), *more]
    return make(path, "gpt2", tokens, merges=list(merges) or ["x y"], **keys)  # type: ignore[arg-type]
