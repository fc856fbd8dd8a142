"""Tools in chats: written by the model's template, and their calls read from its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from tests.llm.tiny import metadata, tokens, write_model
from tests.serve.in_process import Server
from weft.llm import LLM
from weft.llm.chat.template import ChatTemplate

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}<assistant>"
)
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CALL = {"name": "weather", "arguments": {"place": "a"}}
ASK: Any = [{"role": "user", "content": "abc"}]
TALK: Any = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "a"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "hot"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": [*names, "[CALLS]"],
        "tokenizer.ggml.scores": np.append(scores, np.float32(0)),
        "tokenizer.ggml.token_type": np.append(types, np.int32(3)),
        "tokenizer.chat_template": TEMPLATE,
        "llama.context_length": 1024,
    }
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**keys))


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with Server(path, "-np", 2, "-t", 1) as running:
        yield running


def ask(server: Server, messages: Any = ASK, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 2} | options
    return server.client.chat.completions.create(model="x", messages=messages, **options)


def n_tokens(server: Server, text: str) -> int:
    body = {"content": text, "parse_special": True}
    return len(server.call("POST", "/tokenize", body)[2]["tokens"])


def test_the_template_writes_them(server: Server) -> None:
    tools = f"<tools>{json.dumps(TOOL)}</tools>"
    assert ask(server, tools=[TOOL]).usage.prompt_tokens == n_tokens(
        server, f"{tools}<user>abc<assistant>"
    )
    plain = n_tokens(server, "<user>abc<assistant>")
    assert ask(server).usage.prompt_tokens == plain
    assert ask(server, tools=[TOOL], tool_choice="none").usage.prompt_tokens == plain
    assert ask(server, tools=[]).usage.prompt_tokens == plain
    assert ask(server, tools=[TOOL], tool_choice="auto").usage.prompt_tokens > plain


def streamed(server: Server, **options: Any) -> tuple[Any, str, str]:
    """Calls, content and the finish reason of an answer in deltas, as the client adds them up."""
    with server.client.chat.completions.stream(
        model="x", messages=ASK, temperature=0, **options
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    return calls, choice.message.content or "", choice.finish_reason


def test_a_call_is_read_from_the_answer(server: Server) -> None:
    """The call is in the model's own form, whole or in a stream; without tools it is text."""
    call = json.dumps(CALL)
    options: Any = {"max_tokens": 100, "extra_body": {"regex": literally(call)}}
    choice = ask(server, tools=[TOOL], **options).choices[0]
    assert choice.message.content is None and choice.finish_reason == "tool_calls"
    (calls,) = choice.message.tool_calls
    assert calls.id.startswith("call_") and calls.type == "function"
    assert calls.function.name == "weather"
    assert json.loads(calls.function.arguments) == CALL["arguments"]
    assert streamed(server, tools=[TOOL], **options) == (
        [("weather", calls.function.arguments)], "", "tool_calls",
    )  # fmt: skip
    plain = ask(server, **options).choices[0]
    assert plain.message.content == call and plain.message.tool_calls is None
    assert plain.finish_reason == "stop"
    no_call = {"max_tokens": 100, "extra_body": {"regex": literally('{"name": "abc"}')}}
    assert streamed(server, tools=[TOOL], **no_call) == ([], '{"name": "abc"}', "stop")


def test_a_text_that_is_cut_behind_a_call(server: Server) -> None:
    """The call is whole, but the model wanted to say more."""
    call = json.dumps(CALL)
    options: Any = {
        "tools": [TOOL],
        "max_tokens": n_tokens(server, call) + 8,
        "extra_body": {"regex": literally(call) + "(abc){90}"},
    }
    choice = ask(server, **options).choices[0]
    assert [c.function.name for c in choice.message.tool_calls] == ["weather"]
    assert choice.finish_reason == "length"
    chunks = [c.choices[0] for c in ask(server, stream=True, **options) if c.choices]
    assert sum(len(c.delta.tool_calls or []) for c in chunks) >= 1
    assert chunks[-1].finish_reason == "length"


def literally(text: str) -> str:
    return text.replace("{", "[{]").replace("}", "[}]")


def place_tool(name: str, *places: str) -> Any:
    parameters = {
        "type": "object",
        "properties": {"place": {"enum": list(places)}},
        "required": ["place"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_must_be(server: Server, stream: bool) -> None:
    """The answer is held to calls of the tools, or of the named one, whatever the model thinks."""
    tools = [place_tool("weather", "a", "b"), place_tool("time", "c")]

    def calls(choice: Any, **options: Any) -> list[tuple[str, Any]]:
        options |= {"tools": tools, "tool_choice": choice, "max_tokens": 200}
        if stream:
            streamed_calls, content, reason = streamed(server, **options)
        else:
            got = ask(server, **options).choices[0]
            content, reason = got.message.content or "", got.finish_reason
            streamed_calls = [
                (c.function.name, c.function.arguments) for c in got.message.tool_calls
            ]
        assert (content, reason) == ("", "tool_calls")
        return [(name, json.loads(arguments)) for name, arguments in streamed_calls]

    any_call = calls("required", parallel_tool_calls=False)
    assert len(any_call) == 1 and any_call[0][0] in ("weather", "time")
    named = {"type": "function", "function": {"name": "time"}}
    assert calls(named) == [("time", {"place": "c"})]


def test_a_template_of_no_known_form(tmp_path: Path) -> None:
    """A call that must be is then an object with name and arguments."""
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "llama.context_length": 1024,
    }
    with Server(write_model(tmp_path / "m.gguf", metadata(**keys)), "-t", 1) as server:
        options: Any = {"tools": [place_tool("time", "c")], "max_tokens": 200}
        choice = ask(server, tool_choice="required", **options).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("time", {"place": "c"})
        message = choice.message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        assert ask(server, [*ASK, message, result], **options).choices
        cut = ask(server, tool_choice="required", **options | {"max_tokens": 3}).choices[0]
        assert cut.finish_reason == "length" and cut.message.tool_calls is None


def test_reasoning_is_a_field_of_its_own(tmp_path: Path) -> None:
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": "{# <think> </think> #}" + TEMPLATE + "<think>",
        "llama.context_length": 1024,
    }
    with Server(write_model(tmp_path / "m.gguf", metadata(**keys)), "-t", 1) as server:
        choice = ask(server, max_tokens=20).choices[0]
        assert choice.message.content == "" and choice.message.reasoning_content
        deltas = [c.choices[0].delta for c in ask(server, max_tokens=20, stream=True)]
        thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
        assert thought == choice.message.reasoning_content
        logged = ask(server, max_tokens=20, logprobs=True, stream=True)
        listed = [t.token for c in logged if c.choices[0].logprobs
                  for t in c.choices[0].logprobs.content]  # fmt: skip
        assert len(listed) == 20
        held = ask(server, max_tokens=50, extra_body={"regex": "abc"}).choices[0]
        assert held.message.content == "abc"


def test_control_tokens_are_text_where_there_are_tools(server: Server, path: Path) -> None:
    """Some models begin a call with one."""
    bias = {str(LLM(path, n_threads=1).tokenize("[CALLS]", parse_special=True)[-1]): 100}
    got = ask(server, tools=[TOOL], logit_bias=bias)
    assert got.choices[0].message.content == "[CALLS]" * 2
    assert ask(server, logit_bias=bias).choices[0].message.content == ""
    llm = LLM(path, n_threads=1)
    options: Any = {"max_tokens": 1, "logit_bias": {int(k): 100.0 for k in bias}}
    assert llm.chat(ASK, tools=[TOOL], **options) == "[CALLS]"
    assert llm.chat(ASK, **options) == ""


def test_calls_and_results_in_the_history(server: Server) -> None:
    text = f"<user>abc<assistant>{json.dumps(CALL)}<tool>hot<assistant>"
    assert ask(server, TALK).usage.prompt_tokens == n_tokens(server, text)
    tools = f"<tools>{json.dumps(TOOL)}</tools>"
    assert ask(server, TALK, tools=[TOOL]).usage.prompt_tokens == n_tokens(server, tools + text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice names no function of tools; there are weather",
        ),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": [{"name": "web_search"}]}, "a tool is "),
        ({"tools": [{"type": "function", "function": {}}]}, "has no name"),
        ({"tools": "x"}, 'tools is "x"; it must be a list'),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_what_is_refused(server: Server, options: Any, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(server, **options)
    assert message in str(caught.value)
    assert str(caught.value.param).startswith(("tools", "tool_choice"))


FORM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}
PLACES: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"place": {"enum": ["a", "b"]}}, "required": ["place"],
        },
    },
}  # fmt: skip


def test_an_answer_in_a_form_or_a_call(server: Server) -> None:
    """With tools, `response_format` holds the answer to the form unless the model calls a tool."""
    options: Any = {"tools": [PLACES], "response_format": FORM, "max_tokens": 400}
    called = set()
    for seed in range(12):
        choice = ask(server, temperature=2, seed=seed, **options).choices[0]
        calls = choice.message.tool_calls or []
        for call in calls:
            assert json.loads(call.function.arguments)["place"] in ("a", "b")
        if not calls:
            assert json.loads(choice.message.content)["ok"] in (True, False)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        called.add(bool(calls))
    assert called == {True, False}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        got = ask(server, tool_choice=choice, **options).choices[0]
        assert got.message.tool_calls and not got.message.content
    got = ask(server, tool_choice="none", **options).choices[0]
    assert json.loads(got.message.content).keys() == {"ok"}


def test_what_is_wrong_with_a_form_is_told_beside_tools(server: Server) -> None:
    unheld = {"type": "array", "items": {}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": unheld}}
    with pytest.raises(BadRequestError, match=r"json_schema: .*uniqueItems"):
        ask(server, tools=[PLACES], response_format=form)
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": unheld}}}}  # fmt: skip
    got = ask(server, tools=[tool], response_format=FORM, max_tokens=400).choices[0]
    assert json.loads(got.message.content).keys() == {"ok"}


@pytest.mark.parametrize(
    "source",
    [
        "{% set tools = custom_tools if custom_tools is defined else tools %}{{ tools }}",
        "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools | tojson }}",
        "{% macro list(tools) %}{{ tools }}{% endmacro %}{{ list(tools) }}",
    ],
)
def test_templates_that_know_tools(source: str) -> None:
    assert "weather" in ChatTemplate(source).render(ASK, tools=[TOOL])
