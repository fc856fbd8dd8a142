"""Agents: a loop that calls tools and hands their results back never breaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from tests.llm.answers.templates import CALLS
from tests.serve.in_process import DEMO, Server
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

TEMPLATE = (
    "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}"
    "{{% for m in messages %}}<{{{{ m.role }}}}>"
    "{{% if m.reasoning_content %}}<think>{{{{ m.reasoning_content }}}}</think>{{% endif %}}"
    "{{{{ m.content }}}}{calls}{{{{ '\\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}<assistant>{{% if enable_thinking %}}<think>{{% endif %}}"
    "{{% endif %}}"
)


def _tool(name: str, properties: dict[str, Any], *required: str) -> Any:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    _tool("add", {"a": {"type": "integer", "minimum": -99, "maximum": 99},
                  "b": {"type": "integer", "minimum": -99, "maximum": 99}}, "a", "b"),
    _tool("weather", {"city": {"enum": ["Rome", "Bern"]}, "days": {"enum": [1, 2]}}, "city"),
    _tool("note", {"text": {"type": "string", "maxLength": 12},
                   "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2}},
          "text", "tags"),
]  # fmt: skip


def _add(a: int, b: int) -> str:
    return str(a + b)


def _weather(city: str, days: int = 1) -> str:
    assert city in ("Rome", "Bern") and days in (1, 2)
    return "sun"


def _note(text: str, tags: list[str]) -> str:
    assert len(text) <= 12 and len(tags) <= 2 and set(tags) <= {"x", "y"}
    return "ok"


RUN: dict[str, Callable[..., str]] = {"add": _add, "weather": _weather, "note": _note}


def _model(folder: Path, family: str) -> Path:
    """The demo model, with a template of a family and room for a conversation."""
    path = folder / f"{family}.gguf"
    with open_gguf(DEMO) as file:
        metadata = dict(file.copy_metadata()) | {
            "tokenizer.chat_template": TEMPLATE.format(calls=CALLS[family]),
            "llama.context_length": np.uint32(16384),
        }
        rows = [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()]
        write_gguf(path, metadata, rows)
    return path


@pytest.fixture(scope="module", params=["hermes", "coder"])
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    path = _model(tmp_path_factory.mktemp("agents"), request.param)
    with Server(path, "-np", 2, "-t", 1, "-c", 16384) as running:
        yield running


def _streamed(server: Server, **options: Any) -> tuple[dict[str, Any], str, list[Any]]:
    """The message and the reason as a client adds deltas up, and the deltas of calls."""
    calls: list[dict[str, Any]] = []
    parts: list[Any] = []
    reason = content = ""
    for chunk in server.client.chat.completions.create(stream=True, model="x", **options):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or []:
            parts.append(part)
            if part.index == len(calls):
                function = {"name": part.function.name, "arguments": ""}
                calls.append({"id": part.id, "type": "function", "function": function})
            calls[part.index]["function"]["arguments"] += part.function.arguments or ""
        reason = choice.finish_reason or reason
    message = {"role": "assistant", "content": content or None}
    return message | ({"tool_calls": calls} if calls else {}), reason, parts


def _whole(server: Server, **options: Any) -> tuple[dict[str, Any], str, list[Any]]:
    choice = server.client.chat.completions.create(model="x", **options).choices[0]
    return choice.message.model_dump(exclude_none=True), choice.finish_reason, []


@pytest.mark.parametrize("turns", [6, pytest.param(20, marks=pytest.mark.part("faults"))])
@pytest.mark.parametrize("ask", [_streamed, _whole])
def test_turns_of_tools(server: Server, ask: Any, turns: int) -> None:
    """Every turn is a call of one of three tools that can be run; its result goes back."""
    messages: list[Any] = [{"role": "user", "content": "What is 17 + 25?"}]
    called: set[str] = set()
    for turn in range(turns):
        named = TOOLS[turn % 3]["function"]["name"] if turn % 2 else None
        choice = {"type": "function", "function": {"name": named}} if named else "required"
        message, reason, _ = ask(
            server, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=2000,
            temperature=1.5, seed=turn, parallel_tool_calls=turn % 8 == 0,
            extra_body={"reasoning_budget": 0},
        )  # fmt: skip
        assert reason == "tool_calls", (turn, message)
        messages.append(message)
        for call in message["tool_calls"]:
            name = call["function"]["name"]
            assert named in (None, name)
            result = RUN[name](**json.loads(call["function"]["arguments"]))
            called.add(name)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert called == set(RUN)


def test_a_call_that_is_cut(server: Server) -> None:
    """It ends with "length"; what was sent of it is no JSON, and the whole answer has no call."""
    options: Any = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS[2:],
                    "tool_choice": "required", "temperature": 0}  # fmt: skip
    for n in (1, 10, 18):
        message, reason, _ = _whole(server, **options, max_tokens=n)
        assert reason == "length" and "tool_calls" not in message
        message, reason, _ = _streamed(server, **options, max_tokens=n)
        assert reason == "length"
        for call in message.get("tool_calls", []):
            with pytest.raises(json.JSONDecodeError):
                json.loads(call["function"]["arguments"])


def test_the_arguments_come_in_pieces(server: Server) -> None:
    """Of a call in JSON, first its name and then its arguments; others come whole."""
    message, reason, parts = _streamed(
        server, messages=[{"role": "user", "content": "x"}], tools=TOOLS[:1],
        tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=300,
    )  # fmt: skip
    assert reason == "tool_calls" and parts[0].function.name == "add"
    (call,) = message["tool_calls"]
    assert RUN["add"](**json.loads(call["function"]["arguments"]))
    if len(parts) > 1:
        assert parts[0].function.arguments == ""
        assert all(part.id is None and part.function.name is None for part in parts[1:])


def test_reasoning_in_requests(server: Server) -> None:
    """Reasoning of earlier turns goes to the template; a request may switch reasoning off."""
    ask: Any = [{"role": "user", "content": "What is 17 + 25?"}]
    said = [*ask, {"role": "assistant", "content": "42", "reasoning_content": "17 and 25"}, *ask]
    options: Any = {"model": "x", "max_tokens": 12, "temperature": 0}
    create = server.client.chat.completions.create
    with_thought = create(messages=said, **options).usage.prompt_tokens
    plain = [said[0], {"role": "assistant", "content": "42"}, said[2]]
    assert with_thought > create(messages=plain, **options).usage.prompt_tokens
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    message = create(messages=ask, extra_body=thinks, **options).choices[0].message
    assert message.reasoning_content and not message.content
    left = thinks | {"reasoning_format": "none"}
    raw = create(messages=ask, extra_body=left, **options).choices[0].message
    assert raw.content == message.reasoning_content
    assert getattr(raw, "reasoning_content", None) is None
    off = thinks | {"reasoning_budget": 0}
    assert create(messages=ask, extra_body=off, **options).choices[0].message.content
    with pytest.raises(BadRequestError, match="reasoning_budget is 5"):
        create(messages=ask, extra_body={"reasoning_budget": 5}, **options)


def test_an_answer_to_go_on_from(server: Server) -> None:
    ask: Any = [{"role": "user", "content": "What is 17 + 25?"}]
    begun = [*ask, {"role": "assistant", "content": "It is 4"}]
    options: Any = {"model": "x", "max_tokens": 5, "temperature": 0}
    create = server.client.chat.completions.create
    on = create(messages=begun, extra_body={"continue_final_message": True}, **options)
    completed = server.client.completions.create(
        prompt="<user>What is 17 + 25?\n<assistant>It is 4", **options
    )
    assert on.choices[0].message.content == completed.choices[0].text
    bare = create(messages=ask, extra_body={"add_generation_prompt": False}, **options)
    completed = server.client.completions.create(prompt="<user>What is 17 + 25?\n", **options)
    assert bare.choices[0].message.content == completed.choices[0].text
    for body, message in (
        ({"continue_final_message": True}, "a last message of role assistant"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
    ):
        with pytest.raises(BadRequestError, match=message):
            create(messages=ask, extra_body=body, **options)
