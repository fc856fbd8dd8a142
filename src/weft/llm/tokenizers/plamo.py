"""PLaMo's tokenizer (GGUF's tokenizer model `plamo2`).

A text is split into the tokens with the largest sum of scores, where a character without a token
costs more than any token. Scores are whole numbers of ten-thousandths. Of sums that are equal, the
one whose first token is longest counts.
"""

from __future__ import annotations

import math

import numpy as np

from weft.errors import TokenizerError
from weft.llm.tokenizers.vocab import TokenType, Vocab, require_short_tokens

_UNKNOWN_COST = 10**7
_MOST_COST = 2 * 10**7
"""Tokens that cost as much as this or more are not used."""
_MATCHED = (TokenType.NORMAL, TokenType.USER_DEFINED)
_BOM = "\ufeff"


class PlamoModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for a vocabulary that lacks a token for a byte, and for scores that
        are not numbers."""
        if not np.isfinite(vocab.scores).all():
            raise TokenizerError("tokenizer.ggml.scores has values that are not finite numbers")
        self.vocab = vocab
        ids: list[int] = np.flatnonzero(vocab.types == TokenType.BYTE).tolist()
        self._bytes = {vocab.piece(i)[0]: i for i in ids}
        missing = [f"<0x{b:02X}>" for b in range(256) if b not in self._bytes]
        if missing:
            raise TokenizerError(f"the vocabulary has no token {missing[0]}; convert it again")
        self._tokens: dict[str, tuple[int, int]] = {}  # cost and id
        for i in np.flatnonzero(np.isin(vocab.types, _MATCHED)).tolist():
            cost = -math.floor(abs(float(vocab.scores[i])) * 1e4 + 0.5)
            cost = -cost if vocab.scores[i] < 0 else cost
            text = vocab.tokens[i].decode("utf-8", "surrogateescape")
            if cost < _MOST_COST:
                self._tokens[text] = cost, i
        require_short_tokens(self._tokens)
        self._longest: dict[str, int] = {}
        for text in sorted(self._tokens, key=len):
            self._longest[text[0]] = len(text)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a character without a token is the tokens of its bytes. A byte order
        mark in front is left out."""
        text = text.removeprefix(_BOM)
        n = len(text)
        costs = [0.0] * (n + 1)  # of the rest of the text from each character on
        lengths = [0] * n  # of the token there; 0: the character has none
        for i in range(n - 1, -1, -1):
            best, length = math.inf, 0
            for end in range(min(i + self._longest.get(text[i], 0), n), i, -1):
                found = self._tokens.get(text[i:end])
                if found is not None and found[0] + costs[end] < best:
                    best, length = found[0] + costs[end], end - i
            if _UNKNOWN_COST + costs[i + 1] < best:
                best, length = _UNKNOWN_COST + costs[i + 1], 0
            costs[i], lengths[i] = best, length
        ids, i = [], 0
        while i < n:
            if lengths[i] > 0:
                ids.append(self._tokens[text[i : i + lengths[i]]][1])
                i += lengths[i]
            else:
                ids += [self._bytes[byte] for byte in text[i].encode()]
                i += 1
        return ids

    def covered(self, text: str) -> bytes | None:
        """The bytes of all pieces of `text` together."""
        return text.removeprefix(_BOM).encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        if self.vocab.types.item(id_) == TokenType.NORMAL:
            return self.vocab.tokens[id_]
        return self.vocab.piece(id_, special)
