"""Log-probabilities as the two APIs write them: an object a token, or lists over all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.llm import Tokenizer
from weft.llm.sampling import TokenLogprobs

__all__ = ["ListedTokens", "chat_logprobs"]


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """As /v1/chat/completions has them."""

    def one(id_: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.piece(id_, special=True)
        name = data.decode(errors="replace")
        return {"token": name, "logprob": _finite(logprob), "bytes": list(data)}

    rows = [one(t.id, t.logprob) | {"top_logprobs": [one(*p) for p in t.top]} for t in tokens]
    return {"content": rows, "refusal": None}


def _finite(logprob: float) -> float:
    """JSON has no infinity; the API writes this for a token that cannot be."""
    return max(logprob, -9999.0)


class ListedTokens:
    """As /v1/completions has them, with the place of every token in one choice's text."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        """`special`: control tokens are part of the text."""
        self._tokenizer = tokenizer
        self._special = special
        self._start(0)

    def _start(self, at: int) -> None:
        self._at = at
        self._stream = self._tokenizer.stream(special=self._special)

    def echo(
        self, text: str, ids: Sequence[int], scores: Sequence[TokenLogprobs | None]
    ) -> dict[str, Any]:
        """The lists of a prompt, which begins the choice's text: its tokens and what is known of
        each. Of the first one nothing is, where nothing is before it."""
        whole = self._tokenizer.decode_bytes(ids)
        if len(whole) < sum(len(self._tokenizer.piece(i)) for i in ids):
            self._at -= 1  # the space that encoding puts in front
        found = self._lists(ids, scores)
        self._start(len(text))
        return found

    def more(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The lists of the next tokens that were drawn."""
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
        """The likeliest tokens, and the one that is there."""
        if not token.top:
            return {}
        return {self._name(i): _finite(p) for i, p in (*token.top, (token.id, token.logprob))}

    def _name(self, id_: int) -> str:
        return self._tokenizer.piece(id_, special=True).decode(errors="replace")
