"""Tools in chats: written by the model's template, answered as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from tests.llm.tiny import metadata, tokens, write_model
from tests.serve.server import DEMO, Server
from weft.errors import ChatError
from weft.llm import LLM
from weft.llm.chat import ChatTemplate

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


def test_the_answer_is_text(server: Server) -> None:
    """A call comes as the model writes it, for the client to parse."""
    call = json.dumps(CALL)
    regex = call.replace("{", "[{]").replace("}", "[}]")
    made = ask(server, tools=[TOOL], max_tokens=100, extra_body={"regex": regex})
    choice = made.choices[0]
    assert json.loads(choice.message.content) == CALL
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    stream = ask(server, tools=[TOOL], max_tokens=100, extra_body={"regex": regex}, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == call


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
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice required cannot be promised"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
            "tool_choice of one function cannot be promised",
        ),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": [{"type": "web_search"}]}, "a tool is "),
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


def test_a_template_without_tools() -> None:
    """They would be lost without a word."""
    with Server(DEMO, "-t", 1) as server:
        with pytest.raises(BadRequestError, match=r"ChatML.* knows no tools; leave them out"):
            ask(server, tools=[TOOL])
        assert ask(server, tools=[TOOL], tool_choice="none").choices
        with pytest.raises(BadRequestError, match="knows no tool_calls of an assistant"):
            ask(server, TALK)
    assert ChatTemplate().render([*ASK, TALK[2]])  # the fallback writes any role
    with pytest.raises(ChatError, match=r"the template of m knows no tools"):
        ChatTemplate("{{ messages }}", where="the template of m").render(ASK, tools=[TOOL])


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
