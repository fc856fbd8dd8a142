r"""RWKV's World vocabulary (GGUF's tokenizer model `rwkv`).

Text is split from the left, always taking the longest token that fits. Tokens are any bytes; in
GGUF they are written as in a literal of Python (`\x80`, `\n`). Control tokens are not text: the
reference lets the text `<s>` stand for one.
"""

from __future__ import annotations

import re

from weft.llm.tokenizers.vocab import TokenType, Vocab

__all__ = ["GreedyModel", "unescaped"]

_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(token: bytes) -> bytes:
    """The bytes that the text of a token stands for."""

    def char(match: re.Match[bytes]) -> bytes:
        name = match[1]
        return bytes((int(name[1:], 16),)) if len(name) == 3 else _NAMED.get(name, name)

    return _ESCAPE.sub(char, token)


class GreedyModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self._bytes: dict[int, bytes] = {}
        self._index: dict[bytes, int] = {}
        lengths: dict[int, set[int]] = {}
        for id_, (token, kind) in enumerate(zip(vocab.tokens, vocab.types.tolist(), strict=True)):
            if kind in (TokenType.NORMAL, TokenType.USER_DEFINED):
                self._bytes[id_] = text = unescaped(token)
                self._index.setdefault(text, id_)
                lengths.setdefault(text[0], set()).add(len(text))
        # the lengths of tokens, longest first, by first byte
        self._lengths = {first: sorted(n, reverse=True) for first, n in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a byte that no token begins with is the unknown token, if the
        vocabulary has one."""
        data, index, unknown = text.encode(), self._index, self.vocab.unknown
        ids: list[int] = []
        at = 0
        while at < len(data):
            for n in self._lengths.get(data[at], ()):
                id_ = index.get(data[at : at + n])
                if id_ is not None:
                    ids.append(id_)
                    at += n
                    break
            else:
                ids += [] if unknown is None else [unknown]
                at += 1
        return ids

    def covered(self, text: str) -> bytes | None:
        """See `TokenizerModel.covered`."""
        return text.encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        if id_ in self._bytes:
            return self._bytes[id_]
        return self.vocab.tokens[id_] if special else b""
