"""weft's models for the command `llm`: texts, schemas, tools, images and embeddings."""

import asyncio
import atexit
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import llm
from llm.parts import AttachmentPart, ReasoningPart, StreamEvent, ToolCallPart, ToolResultPart
from pydantic import Field

from llm_weft.named import all_models, weft

KEPT_BYTES = 1 << 30  # the maximum size of the folder of kept conversations
MEDIA = {"image/png", "image/jpeg", "image/webp", "audio/wav", "audio/mpeg"}

_opened: dict[tuple[str, type], Any] = {}
_lock = threading.Lock()


def opened(name: str, kind: type) -> Any:
    """The open model of a name, a `weft.LLM` or a `weft.AsyncLLM`. It stays open until the process
    ends. Raises the errors of `weft.LLM`."""
    with _lock:
        if (name, kind) not in _opened:
            model, options = all_models()[name], {}
            if not model.get("embed") and not (llm.user_dir() / "logs-off").exists():
                options = {"cache_dir": str(llm.user_dir() / "weft"), "cache_dir_size": KEPT_BYTES}
            _opened[name, kind] = kind(model["path"], **(options | model.get("options", {})))
        return _opened[name, kind]


@atexit.register
def close_all() -> None:
    """Closes every model; the conversations in their caches go to the folder."""
    while _opened:
        ended = _opened.popitem()[1].close()
        if ended is not None:  # the coroutine of an AsyncLLM
            asyncio.run(ended)


def messages_of(prompt: llm.Prompt) -> list[dict[str, Any]]:
    """The conversation of a prompt as `weft.LLM.chat` takes it."""
    messages = []
    for message in prompt.messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        for part in results:
            said = {"content": part.exception or part.output, "tool_call_id": part.tool_call_id}
            messages.append({"role": "tool", "name": part.name} | said)
        if not results:
            messages.append({"role": message.role} | _contents(message.parts))
    return messages


def _contents(parts: Iterable[Any]) -> dict[str, Any]:
    text, reasoning, calls, media = "", "", [], []
    for part in parts:
        if isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": json.dumps(part.arguments)}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        elif isinstance(part, AttachmentPart):
            kind = part.attachment.resolve_type().partition("/")[0]
            media.append({"type": kind, kind: part.attachment.content_bytes()})
        elif isinstance(part, ReasoningPart):
            reasoning += part.text
        else:
            text += part.text
    said = {"content": [*media, {"type": "text", "text": text}] if media else text}
    more = {"tool_calls": calls, "reasoning_content": reasoning}
    return said | {key: value for key, value in more.items() if value}


class _Shared:
    """What models with and without asyncio share."""

    can_stream = supports_schema = supports_tools = True

    class Options(llm.Options):
        max_tokens: int | None = Field(None, ge=1, description="Most tokens of an answer")
        temperature: float | None = Field(None, ge=0, description="0 takes the likeliest token")
        top_k: int | None = Field(None, description="Draws from this number of likeliest tokens")
        top_p: float | None = Field(None, description="Draws from tokens of this probability")
        min_p: float | None = Field(None, description="Least share of the greatest probability")
        repeat_penalty: float | None = Field(None, description="More than 1: repeats less")
        seed: int | None = Field(None, description="The same seed draws the same text")
        stop: str | None = Field(None, description="The text ends before this string")

    def __init__(self, name: str, model: dict[str, Any]) -> None:
        self.model_id = name
        self.attachment_types = MEDIA if "mmproj" in model.get("options", {}) else set()

    def arguments(self, prompt: llm.Prompt) -> dict[str, Any]:
        """The arguments of `chat`. Raises ModelError for a schema beside tools."""
        given = prompt.options.model_dump(exclude_none=True) | {"messages": messages_of(prompt)}
        if prompt.schema and prompt.tools:
            raise llm.ModelError("a schema and tools were given; give one of them")
        if prompt.schema:
            given["json_schema"] = prompt.schema
        for t in prompt.tools:
            function = {"name": t.name, "description": t.description, "parameters": t.input_schema}
            given.setdefault("tools", []).append({"type": "function", "function": function})
        return given

    def end(self, response: Any, done: Any) -> Iterator[StreamEvent]:
        """Tells llm of the calls, the reasoning and the numbers of tokens of a completion."""
        if done.reasoning:
            yield StreamEvent(type="reasoning", chunk=done.reasoning)
        for call in done.tool_calls:
            name, text = call["function"]["name"], call["function"]["arguments"]
            response.add_tool_call(llm.ToolCall(name, json.loads(text), call["id"]))
        use, kept = done.usage, {"cached_tokens": done.usage.cached_tokens}
        response.set_usage(input=use.prompt_tokens, output=use.completion_tokens, details=kept)


class WeftModel(_Shared, llm.Model):
    """A model that writes texts."""

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[Any]:
        from weft import LLM

        pieces = opened(self.model_id, LLM).chat(stream=True, **self.arguments(prompt))
        yield from pieces
        yield from self.end(response, pieces.completion)


class AsyncWeftModel(_Shared, llm.AsyncModel):
    """A model that writes several texts at a time."""

    async def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Any:
        from weft import AsyncLLM

        model = await asyncio.to_thread(opened, self.model_id, AsyncLLM)
        pieces = model.chat(**self.arguments(prompt))
        async for piece in pieces:
            yield piece
        for event in self.end(response, pieces.completion):
            yield event


class WeftEmbedding(llm.EmbeddingModel):
    """A model of embeddings."""

    batch_size = 64

    def __init__(self, name: str) -> None:
        self.model_id = name

    def embed_batch(self, items: Iterable[Any], *, key: Any = None) -> Iterator[list[float]]:
        from weft import LLM

        yield from opened(self.model_id, LLM).embed(list(items)).tolist()


@llm.hookimpl
def register_models(register: Any) -> None:
    for name, model in all_models().items():
        if not model.get("embed"):
            register(WeftModel(name, model), AsyncWeftModel(name, model))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    for name, model in all_models().items():
        if model.get("embed"):
            register(WeftEmbedding(name))


@llm.hookimpl
def register_commands(cli: Any) -> None:
    cli.add_command(weft)
