"""Answers of Ollama's API, whole or as lines of JSON, and models as it lists and shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Literal

from weft.errors import WeftError
from weft.llm import Tokenizer
from weft.llm.answers import Content, Reasoning
from weft.llm.answers.json_text import as_object
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError, to_json
from weft.serve.logprobs import chat_logprobs
from weft.serve.model_card import ModelCard
from weft.serve.texts import OneChat, Texts

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
        *, with_context: bool = False, load_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """`model` is the name that the client used, `began` the `perf_counter` of the request's
        arrival. `with_context` ends with the tokens of prompt and answer; `load_seconds` is the
        time in which the model was loaded for this request."""
        self.texts = texts
        self._tokenizer = tokenizer
        self._kind = kind
        self._model = model
        self._began = began
        self._with_context = with_context
        self._load_seconds = load_seconds
        self._chat = OneChat(texts)

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        async for _ in self._chat.events():
            pass
        message, tokens = self._chat.message, self._chat.take_tokens()
        return self._body(message.text, message.reasoning, self._calls(), tokens) | self._end()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields lines; the last has `done` true, or an error."""
        try:
            async for event in self._chat.events():
                text = event.text if isinstance(event, Content) else ""
                thought = event.text if isinstance(event, Reasoning) else ""
                tokens = self._chat.take_tokens()
                if text or thought or tokens:
                    yield line(self._body(text, thought, [], tokens) | {"done": False})
            if tokens := self._chat.take_tokens():
                yield line(self._body("", "", [], tokens) | {"done": False})
            if calls := self._calls():  # they come whole, at the end
                yield line(self._body("", "", calls, ()) | {"done": False})
            yield line(self._body("", "", [], ()) | self._end())
        except ApiError as error:
            yield line({"error": str(error)})

    def _calls(self) -> list[dict[str, Any]]:
        """The calls as Ollama has them, with arguments that are objects."""
        return [
            {"function": {
                "index": i, "name": call.name, "arguments": as_object(call.arguments) or {},
            }}
            for i, call in enumerate(self._chat.message.calls)
        ]  # fmt: skip

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
            "total_duration": _nanoseconds(perf_counter() - self._began + self._load_seconds),
            "load_duration": _nanoseconds(self._load_seconds),
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


def same_name(asked: str, name: str) -> bool:
    """True if `asked` means the model `name`; clients add `:latest` to names without a tag."""
    return asked == name or asked.removesuffix(":latest") == name


def details_of(card: ModelCard) -> dict[str, Any]:
    """Kind and size of a model."""
    return {
        "parent_model": "",
        "format": card.format,
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": card.parameter_size,
        "quantization_level": card.quantization,
    }


def tagged(name: str) -> str:
    """A name as Ollama lists it: with the tag `latest` where it has none."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def listed(name: str, card: ModelCard) -> dict[str, Any]:
    """A model in the list of `/api/tags`, by one of its names."""
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": card.modified,
        "size": card.nbytes,
        "digest": card.digest,
        "details": details_of(card),
        "capabilities": _capabilities(card),
    }


def shown_model(card: ModelCard) -> dict[str, Any]:
    """The answer of `/api/show`."""
    capabilities = _capabilities(card)
    return {
        "license": "",
        "modelfile": f"FROM {card.path.name}\n",
        "parameters": "",
        "template": card.template_text if "completion" in capabilities else "",
        "details": details_of(card),
        "model_info": dict(card.metadata()) | {"general.parameter_count": card.n_params},
        "capabilities": capabilities,
        "modified_at": card.modified,
    }


def _capabilities(card: ModelCard) -> list[str]:
    """The capabilities of a model, by Ollama's names."""
    if not card.writes:
        return ["embedding"]
    try:
        more = {"tools": card.knows_tools, "insert": card.infills, "thinking": card.thinks}
    except WeftError:  # a tokenizer that is not known
        more = {}
    return ["completion", *(name for name, has in more.items() if has), *card.senses]
