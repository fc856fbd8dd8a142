"""SentencePiece byte-pair encoding (GGUF's tokenizer model `llama`).

The `sentencepiece` library does the work, with a model that is made in memory from the GGUF
metadata. Its few fields (see sentencepiece_model.proto in the SentencePiece repository) are encoded
here, so no protobuf runtime is needed. The settings are the same as in llama.cpp: text is not
normalised, runs of spaces stay, spaces become U+2581, and characters without a piece become bytes.
The caller handles special tokens and the space prefix.

The library refuses some vocabularies that llama.cpp takes (duplicate or empty pieces, missing byte
tokens, no unknown token); `merge`, the same algorithm in Python, encodes with these.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import TokenizerError
from weft.llm.tokenizers.vocab import TokenType, Vocab

if TYPE_CHECKING:
    import sentencepiece

_SPACE = "\u2581"


class SpmModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = True

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self._byte_ids = _byte_ids(vocab)
        self._processor: sentencepiece.SentencePieceProcessor | None = None
        self._ids: dict[str, int] | None = None
        if _library_takes(vocab, self._byte_ids):
            import sentencepiece  # other kinds of tokenizers do without it

            try:
                self._processor = sentencepiece.SentencePieceProcessor(model_proto=_proto(vocab))
            except RuntimeError:  # the library has a rule that `_library_takes` does not know
                self._processor = None

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. Raises TokenizerError for a character without piece, bytes or unknown
        token."""
        if not text:
            return []
        if self._processor is not None and "\0" not in text:
            ids: list[int] = self._processor.encode(text)
            return ids
        if self._ids is None:
            # the first of equal pieces counts, as in the reference
            self._ids = {}
            for id_, token in enumerate(self.vocab.tokens):
                self._ids.setdefault(token.decode("utf-8", "surrogateescape"), id_)
        pieces = merge(text.replace(" ", _SPACE), self._ids, self.vocab.scores.tolist())
        return [id_ for piece in pieces for id_ in self._lookup(piece)]

    def _lookup(self, piece: str) -> Iterable[int]:
        assert self._ids is not None
        whole = self._ids.get(piece)
        if whole is not None:
            return (whole,)
        ids = [self._byte_ids.get(b, self.vocab.unknown) for b in piece.encode()]
        known = [id_ for id_ in ids if id_ is not None]
        if len(known) < len(ids):
            raise TokenizerError(
                f"the vocabulary has no token for {piece!r}: no bytes, no unknown token"
            )
        return known

    def covered(self, text: str) -> bytes | None:
        return text.replace(_SPACE, " ").encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        return self.vocab.piece(id_, special)


def merge(text: str, ids: Mapping[str, int], scores: list[float]) -> list[str]:
    """Cuts `text` into pieces: merges neighbours, best score first, then leftmost, while any pair
    is a piece.

    This is SentencePiece's BPE (Kudo and Richardson, arXiv 1808.06226) with a heap over a linked
    list."""
    parts = list(text)
    right = list(range(1, len(parts) + 1))  # index of the next part; len(parts): none
    left = list(range(-1, len(parts) - 1))
    heap: list[tuple[float, int, int, str]] = []

    def propose(a: int, b: int) -> None:
        joined = parts[a] + parts[b]
        id_ = ids.get(joined)
        if id_ is not None:
            heapq.heappush(heap, (-scores[id_], a, b, joined))

    for a, b in pairwise(range(len(parts))):
        propose(a, b)
    while heap:
        _, a, b, joined = heapq.heappop(heap)
        # stale: one of the two has been merged since
        if not parts[a] or not parts[b] or right[a] != b or parts[a] + parts[b] != joined:
            continue
        parts[a], parts[b] = joined, ""
        right[a] = right[b]
        if right[b] < len(parts):
            left[right[b]] = a
            propose(a, right[b])
        if left[a] >= 0:
            propose(left[a], a)
    return [part for part in parts if part]


def _byte_ids(vocab: Vocab) -> dict[int, int]:
    """The token id of each byte value. Raises TokenizerError for a byte token with a wrong name."""
    ids: dict[int, int] = {}
    for id_ in np.flatnonzero(vocab.types == TokenType.BYTE).tolist():
        token = vocab.tokens[id_]
        try:
            if len(token) != 6 or token[:3] != b"<0x" or token[5:] != b">":
                raise ValueError
            ids.setdefault(int(token[3:5], 16), id_)
        except ValueError:
            raise TokenizerError(
                f"token {id_} is marked as a byte, but is called {token!r}; bytes are called "
                "<0x00> to <0xFF>: convert the model again"
            ) from None
    return ids


def _library_takes(vocab: Vocab, byte_ids: dict[int, int]) -> bool:
    """True if the library accepts the vocabulary: UTF-8, every piece once, all bytes present."""
    tokens = vocab.tokens
    joined = b"\n".join(tokens)
    try:
        joined.decode()  # ASCII in between: valid where each of them is
    except UnicodeDecodeError:
        return False
    n_bytes = int((vocab.types == TokenType.BYTE).sum())
    return (
        vocab.unknown is not None
        and len(byte_ids) == n_bytes == 256
        and len(set(tokens)) == len(tokens)
        and all(tokens)
        and b"\0" not in joined
    )


def _proto(vocab: Vocab) -> bytes:
    """Serializes the vocabulary as a sentencepiece.ModelProto.

    Only bytes and the unknown token keep their types. All other pieces, control and unused ones
    included, may result from merges as in llama.cpp; the caller has cut out special tokens."""
    assert vocab.unknown is not None
    kinds = np.where(vocab.types == TokenType.BYTE, TokenType.BYTE, TokenType.NORMAL)
    kinds[vocab.unknown] = TokenType.UNKNOWN
    # a piece: text, score, type; the last two take seven bytes
    ends = np.empty((len(vocab), 7), np.uint8)
    ends[:, 0] = _tag(2, 5)
    ends[:, 1:5] = vocab.scores.astype("<f4").reshape(-1, 1).view(np.uint8)
    ends[:, 5] = _tag(3, 0)
    ends[:, 6] = kinds
    end = ends.tobytes()
    begin = {n: _piece_begin(n, ends.shape[1]) for n in set(map(len, vocab.tokens))}
    pieces = [
        begin[len(token)] + token + end[i : i + 7]
        for token, i in zip(vocab.tokens, range(0, len(end), 7), strict=True)
    ]
    trainer = (
        _int(3, 2)  # model_type: BPE
        + _int(4, len(vocab))
        + _int(35, 1)  # byte_fallback
        + _int(40, vocab.unknown)
        # no BOS, EOS or padding: -1 as a ten-byte varint
        + b"".join(_int(field, (1 << 64) - 1) for field in (41, 42, 43))
    )
    normalizer = (
        _bytes(1, b"identity")
        + _int(3, 0)  # add_dummy_prefix
        + _int(4, 0)  # remove_extra_whitespaces
        + _int(5, 1)  # escape_whitespaces
    )
    return b"".join(pieces) + _bytes(2, trainer) + _bytes(3, normalizer)


def _piece_begin(n: int, n_end: int) -> bytes:
    """The bytes before the text of a piece, which has `n` bytes; `n_end` other bytes follow it."""
    text = bytes([_tag(1, 2)]) + _varint(n)
    return bytes([_tag(1, 2)]) + _varint(len(text) + n + n_end) + text


def _tag(field: int, wire_type: int) -> int:
    """The tag of a field below 16, as one byte."""
    return field << 3 | wire_type


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
