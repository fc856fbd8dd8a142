"""A small model whose template writes tools, and texts that come as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.llm.tiny import metadata, tokens, write_model
from weft.llm.answers import AnswerFormat
from weft.llm.chat.template import ChatTemplate
from weft.llm.engine import Delta, Done, Request
from weft.serve.messages import ChatMessage
from weft.serve.prompts import Asked
from weft.serve.texts import Texts

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}"
)
"""Calls are objects with name and arguments; reasoning is between <think> and </think>."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"enum": ["a", "b"]}},
    "required": ["place"],
    "additionalProperties": False,
}


def talker(folder: Path, template: str = TEMPLATE) -> Path:
    """A model of random weights with this template."""
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": template,
        "llama.context_length": 1024,
    }
    return write_model(folder / "talker.gguf", metadata(**keys))


class _Engine:
    """Writes one text."""

    def __init__(self, pieces: Sequence[str], end: Done) -> None:
        self._events = [*map(Delta, pieces), end]

    def submit(self, request: Request, put: Callable[[Any], None], after: object) -> Any:
        for event in self._events:
            put(event)

        class Ticket:
            def __init__(self) -> None:
                self.request = request

            def cancel(self) -> None:
                pass

        return Ticket()


def said(pieces: Sequence[str], reason: Any = "stop", **end: Any) -> Texts:
    """Texts of one answer that comes in these pieces and begins within reasoning, up to </think>;
    there is a tool called f, and calls are between <call> and </call>."""
    source = TEMPLATE.replace("{{ c.function | tojson }}", "<call>{{ c.function | tojson }}</call>")
    form = AnswerFormat.of(ChatTemplate(source))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = Asked(
        [Request((1, 2, 3, 4))], message=lambda: ChatMessage(form.parser([tool], "<think>"))
    )
    done = Done(reason, 4, 1, len(pieces), **end)
    engine: Any = _Engine(pieces, done)
    return Texts(engine, asked, asyncio.get_running_loop())


async def events(stream: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    found = []
    async for part in stream:
        name, data = part.decode().strip().split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
