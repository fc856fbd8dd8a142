"""Turns texts into the answers of Ollama's API: one object, or a stream of lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Literal

from weft.llm import Tokenizer
from weft.llm.engine import Delta, Done
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError, to_json
from weft.serve.logprobs import chat_logprobs
from weft.serve.messages import ChatMessage, TextReader
from weft.serve.texts import Texts

__all__ = ["NDJSON", "OllamaAnswer", "line", "loaded_answer", "now"]

NDJSON = "application/x-ndjson"
Kind = Literal["chat", "generate"]


def now() -> str:
    """The time as RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def line(body: dict[str, Any]) -> bytes:
    """A line of a stream."""
    return to_json(body) + b"\n"


class OllamaAnswer:
    """The one text of a request to `/api/chat` or `/api/generate`."""

    def __init__(
        self, texts: Texts, tokenizer: Tokenizer, kind: Kind, model: str, began: float,
        *, with_context: bool = False,
    ) -> None:  # fmt: skip
        """`model` is the name that the client used, `began` the `perf_counter` of the request's
        arrival. `with_context` ends with the tokens of prompt and answer."""
        self.texts = texts
        self._tokenizer = tokenizer
        self._kind = kind
        self._model = model
        self._began = began
        self._with_context = with_context
        message = texts.asked.message
        self._message = ChatMessage(TextReader()) if message is None else message()
        self._unsaid: list[TokenLogprobs] = []

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        text, thought = "", ""
        tokens: list[TokenLogprobs] = []
        async for said, more in self._said():
            text += said.get("content") or ""
            thought += said.get("reasoning_content") or ""
            tokens += more
        calls = self._calls()
        return self._body(text, thought, calls, tokens) | self._end()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields lines; the last has `done` true, or an error."""
        try:
            async for said, tokens in self._said():
                text, thought = said.get("content") or "", said.get("reasoning_content") or ""
                if text or thought or tokens:
                    yield line(self._body(text, thought, [], tokens) | {"done": False})
            calls = self._calls()
            if calls:
                yield line(self._body("", "", calls, ()) | {"done": False})
            yield line(self._body("", "", [], ()) | self._end())
        except ApiError as error:
            yield line({"error": str(error)})

    async def _said(self) -> AsyncIterator[tuple[dict[str, Any], list[TokenLogprobs]]]:
        """Yields deltas with the log-probabilities of their tokens. Calls are left to the end."""
        unsaid: list[TokenLogprobs] = []
        async for _, event in self.texts.events():
            deltas: list[dict[str, Any]] = []
            if isinstance(event, Delta):
                unsaid += event.tokens if self.texts.asked.logprobs else ()
                deltas = self._message.push(event.text)
            elif isinstance(event, Done):
                deltas = self._message.finish() or ([{}] if unsaid else [])
            for delta in deltas:
                yield delta, unsaid
                unsaid = []

    def _calls(self) -> list[dict[str, Any]]:
        calls = self._message.whole().get("tool_calls") or ()
        return [{"function": _function(i, call["function"])} for i, call in enumerate(calls)]

    def _body(
        self, text: str, thought: str, calls: list[dict[str, Any]], tokens: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "created_at": now()}
        if self._kind == "chat":
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thought:
                message["thinking"] = thought
            if calls:
                message["tool_calls"] = calls
            body["message"] = message
        else:
            body["response"] = text
            if thought:
                body["thinking"] = thought
        if tokens:
            body["logprobs"] = chat_logprobs(self._tokenizer, tokens)["content"]
        return body

    def _end(self) -> dict[str, Any]:
        """Why and how long: durations are in nanoseconds."""
        end = self.texts.ends[0]
        shown: dict[str, Any] = {
            "done": True,
            "done_reason": "stop" if end.reason == "stop" else "length",
        }
        if self._with_context:
            shown["context"] = [*self.texts.prompt(0), *end.ids]
        return shown | {
            "total_duration": _nanoseconds(perf_counter() - self._began),
            "load_duration": 0,
            "prompt_eval_count": end.n_prompt,
            "prompt_eval_duration": _nanoseconds(end.prompt_seconds),
            "eval_count": end.n_generated,
            "eval_duration": _nanoseconds(end.generation_seconds),
        }


def loaded_answer(kind: Kind, model: str, reason: str = "load") -> dict[str, Any]:
    """The answer to a request that only loads a model, or unloads it."""
    said: dict[str, Any] = (
        {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    )
    return {"model": model, "created_at": now(), **said, "done": True, "done_reason": reason}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _function(index: int, function: dict[str, Any]) -> dict[str, Any]:
    """A call as Ollama has it: arguments are an object."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": function["arguments"]}
    return {"index": index, "name": function["name"], "arguments": arguments}
