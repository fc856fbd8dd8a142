"""Splits the deltas of a message into pieces, one after the other: reasoning, text, calls.

Other APIs than that of chats number such pieces and say where each begins and ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from weft.records import dataclass

__all__ = ["Piece", "Pieces", "Step", "arguments_of"]

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Piece:
    """A piece of an answer, as far as it has come."""

    kind: Kind
    index: int
    """Its number among the pieces of the answer, from 0."""
    id: str = ""
    """Of a call: its id, as in the chat API."""
    name: str = ""
    """Of a call: the name of the function."""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far; of a call, the arguments, as the model wrote them."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True)
class Step:
    """A piece begins, goes on with `text`, or ends."""

    kind: Literal["begin", "more", "end"]
    piece: Piece
    text: str = ""


class Pieces:
    """The pieces of one message."""

    def __init__(self) -> None:
        self.all: list[Piece] = []
        """The pieces so far; the last may not have ended."""
        self._open: Piece | None = None

    def push(self, delta: Mapping[str, Any]) -> Iterator[Step]:
        """Adds a delta of `ChatMessage`; yields what it does."""
        for kind, name in (("reasoning", "reasoning_content"), ("text", "content")):
            if delta.get(name):
                yield from self._more(kind, delta[name])
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if call.get("id"):
                yield from self._begin("call", call["id"], function.get("name") or "")
            if function.get("arguments"):
                yield from self._more("call", function["arguments"])

    def finish(self) -> Iterator[Step]:
        """Ends the message; yields the end of its last piece."""
        if self._open is not None:
            yield Step("end", self._open)
        self._open = None

    def _begin(self, kind: Any, id_: str = "", name: str = "") -> Iterator[Step]:
        yield from self.finish()
        piece = Piece(kind, len(self.all), id_, name)
        self._open = piece
        self.all.append(piece)
        yield Step("begin", piece)

    def _more(self, kind: str, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.parts.append(text)
        yield Step("more", self._open, text)


def arguments_of(piece: Piece) -> dict[str, Any]:
    """The arguments of a call as an object; empty for one that was cut short."""
    try:
        value = json.loads(piece.text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
