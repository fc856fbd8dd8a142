"""The keys `tokenizer.*` of unigram vocabularies, GGUF's `t5`: XLM-RoBERTa and its relatives.

They come from sentencepiece.bpe.model, whose ids fairseq put in another order, or from
tokenizer.json.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.vocab import (
    Piece,
    Vocabulary,
    has,
    read_normalizer,
    read_pieces,
    require_vocabulary,
)

_MODEL = "sentencepiece.bpe.model"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_KINDS = (_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE)
_FAIRSEQ = [("<s>", 0.0, _CONTROL), ("<pad>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL),
            ("<unk>", 0.0, _UNKNOWN)]  # fmt: skip


def is_unigram(c: Config) -> bool:
    """True if tokenizer.json has a unigram vocabulary."""
    return (c.json("tokenizer.json").get("model") or {}).get("type") == "Unigram"


def unigrams(
    c: Config, *, mask: int | None = None, model: str = "", types: bool = True
) -> Vocabulary:
    """The vocabulary of the folder. `mask` is the id of a token `<mask>` that the SentencePiece
    model lacks; `model` is a SentencePiece model whose ids stay as they are. `types` writes the
    number of token types. Raises FormatError if there is no unigram vocabulary."""
    if model:
        pieces, prefix, merges, table = _of_own_ids(c, model)
    elif has(c, _MODEL):
        pieces, prefix, merges, table = _of_sentencepiece(c, mask)
    elif is_unigram(c):
        pieces, prefix, merges, table = _of_json(c)
    else:
        raise FormatError(
            f"{c.folder}: neither {_MODEL} nor a tokenizer.json with unigrams is in this folder; "
            "download or save the tokenizer too"
        )
    yield "tokenizer.ggml.model", "t5"
    yield "tokenizer.ggml.pre", "default"
    yield "tokenizer.ggml.tokens", [text for text, _, _ in pieces]
    yield "tokenizer.ggml.scores", np.array([score for _, score, _ in pieces], np.float32)
    yield "tokenizer.ggml.token_type", np.array([kind for _, _, kind in pieces], np.int32)
    yield "tokenizer.ggml.add_space_prefix", prefix
    if types:
        yield "tokenizer.ggml.token_type_count", c.get("type_vocab_size", 1)
    yield "tokenizer.ggml.remove_extra_whitespaces", merges
    if table:
        yield "tokenizer.ggml.precompiled_charsmap", np.frombuffer(table, np.uint8)
    yield from SpecialTokens(c, n_vocab=len(pieces)).keys()


_Read = tuple[list[Piece], bool, bool, bytes]
"""Pieces, whether a space is put in front, whether white space is merged, and characters."""


def _of_sentencepiece(c: Config, mask: int | None) -> _Read:
    path = c.folder / _MODEL
    found, how = read_pieces(path), read_normalizer(path)
    pieces = _padding(c, len(found))
    pieces[: len(found)] = [
        (text, score, kind if kind in _KINDS else _NORMAL) for text, score, kind in found
    ]
    pieces = [*_FAIRSEQ, *pieces[3:-1]]
    if mask is not None and mask < len(pieces):
        pieces[mask] = ("<mask>", 0.0, _CONTROL)
    table = how.get(2, b"")
    return pieces, how.get(3, 1) == 1, how.get(4, 1) == 1, bytes(table or b"")


def _of_own_ids(c: Config, name: str) -> _Read:
    path = c.folder / name
    found, how = read_pieces(path), read_normalizer(path)
    pieces = _padding(c, len(found))
    pieces[: len(found)] = [
        (text, score, kind if kind in _KINDS else _NORMAL) for text, score, kind in found
    ]
    for text, id_ in c.json("added_tokens.json").items():
        if isinstance(id_, int) and 0 <= id_ < len(pieces):
            pieces[id_] = (text, -1000.0, _USER_DEFINED)
    return pieces, how.get(3, 1) == 1, how.get(4, 1) == 1, bytes(how.get(2, b"") or b"")


def _of_json(c: Config) -> _Read:
    tokenizer, settings = c.json("tokenizer.json"), c.json("tokenizer_config.json")
    model = tokenizer["model"]
    rows = model.get("vocab") or ()
    added = {row["content"]: row for row in tokenizer.get("added_tokens") or ()}
    unknown = (added.get(settings.get("unk_token")) or {}).get("id", model.get("unk_id", 3))
    special = {text for text, row in added.items() if row.get("special")}
    pieces = _padding(c, len(rows))
    for i, (text, score) in enumerate(rows):
        kind = _NORMAL
        if i == unknown:
            kind = _UNKNOWN
        elif text in added:
            kind = _CONTROL if text in special else _USER_DEFINED
        pieces[i] = (text, score, kind)
    for text, row in added.items():
        if len(rows) <= row["id"] < len(pieces):
            pieces[row["id"]] = (text, -1000.0, _CONTROL if text in special else _USER_DEFINED)
    steps = list(_parts(tokenizer.get("pre_tokenizer")))
    apart = any(step.get("type") == "WhitespaceSplit" for step in steps)
    merges = apart or settings.get("clean_up_tokenization_spaces", True) is True
    tables = [step.get("precompiled_charsmap") for step in _parts(tokenizer.get("normalizer"))]
    table = next((b64decode(text) for text in tables if text), b"")
    return pieces, settings.get("add_prefix_space", True) is True, merges, table


def _padding(c: Config, n_found: int) -> list[Piece]:
    """Made-up tokens for all ids."""
    n = max(c.get("vocab_size", 0), n_found)
    require_vocabulary(c, n, n_found)
    return [(f"[PAD{i}]", -10000.0, _UNUSED) for i in range(n)]


def _parts(step: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or a pre-tokenizer."""
    if isinstance(step, dict):
        inner = step.get("normalizers") or step.get("pretokenizers") or ()
        yield from (part for one in inner for part in _parts(one))
        yield step
