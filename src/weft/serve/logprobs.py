"""Log-probabilities in the formats of the two APIs: an object per token, or lists of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.llm import Tokenizer
from weft.llm.sampling import TokenLogprobs


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The log-probabilities of tokens in the format of /v1/chat/completions."""

    def one(id_: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.piece(id_, special=True)
        name = data.decode(errors="replace")
        return {"token": name, "logprob": _finite(logprob), "bytes": list(data)}

    rows = [one(t.id, t.logprob) | {"top_logprobs": [one(*p) for p in t.top]} for t in tokens]
    return {"content": rows, "refusal": None}


def _finite(logprob: float) -> float:
    """Replaces minus infinity, which JSON lacks, by the number that the API uses."""
    return max(logprob, -9999.0)


class ListedTokens:
    """The log-probabilities of one choice in the format of /v1/completions, with the position of
    every token in its text."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        """`special` keeps control tokens in the text."""
        self._tokenizer = tokenizer
        self._special = special
        self._start(0)

    def _start(self, at: int) -> None:
        self._at = at
        self._stream = self._tokenizer.stream(special=self._special)

    def echo(
        self, text: str, ids: Sequence[int], scores: Sequence[TokenLogprobs | None]
    ) -> dict[str, Any]:
        """The lists of an echoed prompt. A token without a predecessor has no log-probability."""
        whole = self._tokenizer.decode_bytes(ids)
        if len(whole) < sum(len(self._tokenizer.piece(i)) for i in ids):
            self._at -= 1  # the space that encoding puts in front
        lists = self._lists(ids, scores)
        self._start(len(text))
        return lists

    def more(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The lists of the next drawn tokens."""
        return self._lists([t.id for t in tokens], tokens)

    def _lists(self, ids: Sequence[int], scores: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        offsets = []
        for id_ in ids:
            offsets.append(max(self._at, 0))
            self._at += len(self._stream.push(id_))
        return {
            "tokens": [self._name(i) for i in ids],
            "token_logprobs": [None if s is None else _finite(s.logprob) for s in scores],
            "top_logprobs": [None if s is None else self._top(s) for s in scores],
            "text_offset": offsets,
        }

    def _top(self, token: TokenLogprobs) -> dict[str, float]:
        """The log-probabilities of the likeliest tokens and of the drawn one."""
        if not token.top:
            return {}
        return {self._name(i): _finite(p) for i, p in (*token.top, (token.id, token.logprob))}

    def _name(self, id_: int) -> str:
        piece = self._tokenizer.piece(id_, special=True)
        try:
            return piece.decode()
        except UnicodeDecodeError:  # a part of a character, named as in the OpenAI API
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
