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


CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template without tools, in the manner of SmolLM2."""


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


TEMPLATES = {family: TEMPLATE.format(calls=CALLS[family]) for family in ("hermes", "coder")} | {
    "bare": TEMPLATE.format(calls="").partition("{% endif %}")[2],
    "chatml": CHATML,
}
"""Templates by family; the last two have no tools."""


def _model(folder: Path, family: str) -> Path:
    """The demo model, with a template of a family and room for a conversation."""
    path = folder / f"{family}.gguf"
    with open_gguf(DEMO) as file:
        metadata = dict(file.copy_metadata()) | {
            "tokenizer.chat_template": TEMPLATES[family],
            "llama.context_length": np.uint32(16384),
        }
        rows = [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()]
        write_gguf(path, metadata, rows)
    return path


@pytest.fixture(scope="module", params=["hermes", "coder", "bare"])
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


@pytest.fixture(scope="module", params=["hermes", "coder", "chatml"])
def brief(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    """A server whose model likes to end, because agents set no small limit."""
    path = _model(tmp_path_factory.mktemp("brief"), request.param)
    with Server(path, "-np", 2, "-t", 1, "-c", 16384, "-l", "2+9", "--seed", 1) as running:
        yield running


STREAMS = json.loads((Path(__file__).parent / "data" / "agents.json").read_text())


def _in_form(api: str, name: str, more: dict[str, Any]) -> dict[str, Any]:
    """A tool of the data in the form of an API."""
    schema = STREAMS["tools"][name]
    about = {"name": name, "description": f"The {name}."}
    if api in ("messages", "count"):
        return about | {"input_schema": schema} | more
    if api == "responses":
        return {"type": "function"} | about | {"parameters": schema} | more
    return {"type": "function", "function": about | {"parameters": schema} | more}


def _body(stream: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
    """The body of a turn, with its tools in the form of its API."""
    body = stream.get("common", {}) | turn
    body.pop("ignored", None)
    if "tools" in body:
        more = stream.get("tool_fields", {})
        body["tools"] = [
            _in_form(stream["api"], tool, more) if isinstance(tool, str) else tool
            for tool in body["tools"]
        ]
    return body


def _chat_said(text: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message, as a client of chats adds it up."""
    if not body.get("stream"):
        return dict(text["choices"][0]["message"])
    *lines, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    if (body.get("stream_options") or {}).get("include_usage"):
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["total_tokens"] > 0
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert [bool(delta["finish_reason"]) for delta in deltas] == [False] * len(deltas[1:]) + [True]
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for part in delta["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": part["function"]})
            else:
                more = part["function"]["arguments"]
                calls[-1]["function"]["arguments"] += more
    content = "".join(delta["delta"].get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def _events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream whose names are their types."""
    found = []
    for part in text.strip().split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def _responses_said(text: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a response, as Codex takes them: each when it is done."""
    events = _events_of(text)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    response = events[-1]["response"]
    assert added == [item["id"] for item in done] and done == response["output"]
    assert response["usage"]["input_tokens"] > 0
    return done


def _message_said(text: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message, as a client adds them up."""
    if not body.get("stream"):
        return list(text["content"])
    blocks: list[dict[str, Any]] = []
    events = _events_of(text)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] and events[-2]["usage"]["output_tokens"] >= 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            for name, piece in event["delta"].items():
                if name != "type":
                    blocks[event["index"]][f"{name}s"] = (
                        blocks[event["index"]].get(f"{name}s", "") + piece
                    )
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_jsons"))
        for name in ("text", "thinking", "signature"):
            if f"{name}s" in block:
                block[name] = block.pop(f"{name}s")
    return blocks


def _ollama_said(text: Any, body: dict[str, Any]) -> Any:
    """Lines of JSON, of which the last is done."""
    lines = [text] if isinstance(text, dict) else list(map(json.loads, text.splitlines()))
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["done_reason"] in ("stop", "length", "load")
    return lines


def _completion_said(text: Any, body: dict[str, Any]) -> Any:
    """The text of a completion in llama.cpp's form."""
    if not body.get("stream"):
        return text["content"]
    parts = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    return "".join(part["content"] for part in parts)


READERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "chat": _chat_said,
    "responses": _responses_said,
    "messages": _message_said,
    "ollama": _ollama_said,
    "completion": _completion_said,
    "count": lambda text, body: text["input_tokens"],
}
CALLS_ONLY: dict[str, dict[str, Any]] = {
    "chat": {
        "tool_choice": {"type": "function", "function": {"name": "mode"}},
        "reasoning_effort": "none",
    },
    "responses": {
        "tool_choice": {"type": "function", "name": "mode"},
        "reasoning": {"effort": "none"},
    },
    "messages": {
        "tool_choice": {"type": "tool", "name": "mode"},
        "thinking": {"type": "disabled"},
    },
}
"""Fields that make an answer a call of `mode`, without reasoning, which this model never ends."""


def _with_result(api: str, body: dict[str, Any], said: Any) -> dict[str, Any]:
    """The next body of a loop: what the assistant said, and the results of its calls."""
    if api == "chat":
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
            for call in said["tool_calls"]
        ]
        return body | {"messages": [*body["messages"], said, *results]}
    if api == "responses":
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
            for item in said if item["type"] == "function_call"
        ]  # fmt: skip
        return body | {"input": [*body["input"], *said, *results]}
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in said if block["type"] == "tool_use"
    ]  # fmt: skip
    said = {"role": "assistant", "content": said}
    return body | {"messages": [*body["messages"], said, {"role": "user", "content": results}]}


def _arguments(api: str, said: Any) -> list[Any]:
    """The arguments of all calls."""
    if api == "chat":
        return [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]]
    if api == "responses":
        return [json.loads(i["arguments"]) for i in said if i["type"] == "function_call"]
    return [block["input"] for block in said if block["type"] == "tool_use"]


@pytest.mark.parametrize("stream", STREAMS["streams"], ids=lambda stream: stream["agent"])
def test_what_agents_send(brief: Server, stream: dict[str, Any]) -> None:
    """Requests in the forms of agents' public sources: answered, none of their fields unknown, and
    their events in the order that the agents need. A call goes back with its result."""
    api = stream["api"]

    def send(body: dict[str, Any], ignored: str = "") -> Any:
        status, headers, text = brief.call(
            "POST", stream["path"], body, **stream.get("headers", {})
        )
        assert status == 200, text
        assert headers.get("x-weft-ignored", "") == ignored
        return READERS[api](text, body)

    for line in stream.get("asks", ()):
        method, path = line.split()
        assert brief.call(method, path)[0] == 200, line
    for turn in stream["turns"]:
        ignored = turn.get("ignored", stream.get("ignored", ""))
        body = _body(stream, turn)
        assert send(body, ignored) is not None
        tools = turn.get("tools", stream.get("common", {}).get("tools", ()))
        if api in CALLS_ONLY and "mode" in tools:
            said = send(body | CALLS_ONLY[api], ignored)
            (call,) = _arguments(api, said)
            assert call["mode"] in ("plan", "build")
            send(_with_result(api, body, said), ignored)
