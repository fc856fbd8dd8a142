"""Messages of Anthropic's API, whole or as events.

Order of events: https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

from weft.serve.errors import ApiError, message_error
from weft.serve.messages import Part, Step
from weft.serve.respond import sse
from weft.serve.texts import OneChat, Texts

_SIGNATURE = "weft"
"""Signature of reasoning. Anthropic's proves the origin of a text; clients demand one and send it
back."""


class MessageWriter:
    """The message that answers one request; see `AnswerWriter`."""

    def __init__(
        self, texts: Texts, model: str, *, thinks: bool, stops: Collection[str] = ()
    ) -> None:
        """Without `thinks` reasoning is left out. `stops` are the client's stop sequences."""
        self.texts = texts
        self._chat = OneChat(texts)
        self._model = model
        self._thinks = thinks
        self._stops = stops
        self._index: dict[int, int] = {}  # numbers of blocks by the numbers of their parts
        self._id = f"msg_{uuid.uuid4().hex[:24]}"

    async def whole(self) -> dict[str, Any]:
        """The message."""
        async for _ in self._chat.steps():
            pass
        shown = [part for part in self._chat.parts.all if self._shows(part)]
        content = [self._block(part, whole=True) for part in shown]
        return self._message(content) | self._end() | {"usage": self._usage()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the events; the last is message_stop or an error."""
        start = {"input_tokens": self.texts.n_prompt, "output_tokens": 0}
        yield _event("message_start", message=self._message([]) | {"usage": start})
        yield _event("ping")
        try:
            async for step in self._chat.steps():
                for event in self._events(step):
                    yield event
            yield _event("message_delta", delta=self._end(), usage=self._usage())
            yield _event("message_stop")
        except ApiError as error:
            yield _event("error", error=message_error(error)["error"])

    def ping(self) -> bytes:
        """Returns the event of a stream that has been silent for a while."""
        return _event("ping")

    def _events(self, step: Step) -> Iterator[bytes]:
        part = step.part
        if not self._shows(part):
            return
        index = self._index.setdefault(part.index, len(self._index))
        if step.kind == "begin":
            block = self._block(part, whole=False)
            yield _event("content_block_start", index=index, content_block=block)
        elif step.kind == "more":
            delta = _delta(part, step.text)
            yield _event("content_block_delta", index=index, delta=delta)
        else:
            if part.kind == "reasoning":
                delta = {"type": "signature_delta", "signature": _SIGNATURE}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)

    def _shows(self, part: Part) -> bool:
        return self._thinks or part.kind != "reasoning"

    def _block(self, part: Part, *, whole: bool) -> dict[str, Any]:
        """The block of a part; if not `whole`, as it begins."""
        text = part.text if whole else ""
        if part.kind == "text":
            return {"type": "text", "text": text}
        if part.kind == "reasoning":
            signature = _SIGNATURE if whole else ""
            return {"type": "thinking", "thinking": text, "signature": signature}
        id_ = f"toolu_{part.id.removeprefix('call_')}"
        given = part.arguments if whole else {}
        return {"type": "tool_use", "id": id_, "name": part.name, "input": given}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _end(self) -> dict[str, Any]:
        end, reason = self._chat.end, self._chat.reason
        if reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if reason == "length" and end.reason != "context":  # or a call was cut
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if end.reason == "stop" and end.stopped_by in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": end.stopped_by}
        full = end.reason == "context"
        why = "model_context_window_exceeded" if full else "end_turn"
        return {"stop_reason": why, "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        reused = self.texts.n_reused
        return {
            "input_tokens": self.texts.n_prompt - reused,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reused,
            "output_tokens": self.texts.n_generated,
        }


def _delta(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text_delta", "text": text}
    if part.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind} | fields, kind)
