"""Tools of models whose templates have none: weft writes them, their calls and their results."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.answers.templates import TEMPLATES
from tests.serve.in_process import Server
from tests.serve.talkers import SCHEMA, talker
from weft.errors import ChatError
from weft.llm import LLM
from weft.llm.answers import AnswerFormat
from weft.llm.chat.template import ChatTemplate

TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA},
}
ASK: Any = [{"role": "user", "content": "abc"}]
CALL: Any = {"id": "c1", "type": "function",
             "function": {"name": "weather", "arguments": '{"place": "a"}'}}  # fmt: skip
CALLED: Any = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Any = {"role": "tool", "tool_call_id": "c1", "content": "hot"}
WORDS = (
    "You can call these functions. Each line describes one of them in JSON:\n<tools>\n"
    + json.dumps(TOOL)
    + "\n</tools>\nTo call a function, write its name and a JSON object of its arguments in "
    "exactly this form:\n<tool_call>\n"
    '{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>\n'
    "Write this once for each call and then stop: the next message brings the results. If no "
    "function helps, answer in words."
)
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"place": "a"}}\n</tool_call>'
HOT = "<tool_response>\nhot\n</tool_response>"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' or m.role == 'tool' or "
    "(m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
"""A template in the manner of Gemma 2: user and assistant alternate."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    chatml = ChatTemplate().sources["default"]
    with Server(talker(tmp_path_factory.mktemp("m"), chatml), "-np", 2, "-t", 1) as running:
        yield running


def chatml(*turns: tuple[str, str]) -> str:
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return written + "<|im_start|>assistant\n"


SYSTEM, USER = ("system", WORDS), ("user", "abc")
BLOCKS: Any = [
    {"type": "tool_result", "tool_use_id": "c1", "content": "hot"},
    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "hot"}]},
    {"type": "text", "text": "and now?"},
]


@pytest.mark.parametrize(
    ("messages", "options", "turns"),
    [
        (ASK, {"tools": [TOOL]}, [SYSTEM, USER]),
        ([{"role": "system", "content": "Be kind."}, *ASK], {"tools": [TOOL]},
         [("system", f"Be kind.\n\n{WORDS}"), USER]),
        ([{"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text",
          "text": " kind."}]}, *ASK], {"tools": [TOOL]},
         [("system", f"Be\n kind.\n\n{WORDS}"), USER]),
        ([{"role": "system", "content": ""}, *ASK], {"tools": [TOOL]}, [SYSTEM, USER]),
        ([*ASK, CALLED, RESULT], {"tools": [TOOL]},
         [SYSTEM, USER, ("assistant", WRITTEN), ("user", HOT)]),
        ([*ASK, {**CALLED, "content": "I look.", "tool_calls": [CALL, CALL]}, RESULT,
          {**RESULT, "content": [{"type": "text", "text": "hot"}]},
          {"role": "user", "content": "and now?"}], {"tools": [TOOL]},
         [SYSTEM, USER, ("assistant", f"I look.\n{WRITTEN}\n{WRITTEN}"),
          ("user", f"{HOT}\n{HOT}\n\nand now?")]),
        ([*ASK, CALLED, RESULT], {}, [USER, ("assistant", WRITTEN), ("user", HOT)]),
        ([*ASK, CALLED, RESULT], {"tools": [TOOL], "tool_choice": "none"},
         [USER, ("assistant", WRITTEN), ("user", HOT)]),
        (ASK, {"tools": [TOOL], "tool_choice": "none"}, [USER]),
        (ASK, {"tools": [TOOL], "tool_choice": "required"}, [SYSTEM, USER]),
        ([*ASK, CALLED, {**RESULT, "content": None}], {},
         [USER, ("assistant", WRITTEN), ("user", "<tool_response>\n\n</tool_response>")]),
        ([*ASK, {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": '{"a'}}]}], {},
         [USER, ("assistant", '<tool_call>\n{"name": "f", "arguments": "{\\"a"}\n</tool_call>')]),
    ],
)  # fmt: skip
def test_the_prompt(server: Server, messages: Any, options: Any, turns: Any) -> None:
    body = {"messages": messages} | options
    status, _, got = server.call("POST", "/apply-template", body)
    assert (status, got) == (200, {"prompt": chatml(*turns)})
    status, _, got = server.call("POST", "/v1/chat/completions", body | {"max_tokens": 1})
    assert status == 200, got


def test_the_prompt_in_other_apis(server: Server) -> None:
    """The same conversation in each API is a prompt of the same number of tokens."""
    turns = [
        SYSTEM, USER, ("assistant", WRITTEN), ("user", f"{HOT}\n{HOT}\n\nand now?"),
    ]  # fmt: skip
    call = {"content": chatml(*turns), "parse_special": True}
    n = len(server.call("POST", "/tokenize", call)[2]["tokens"])
    tool = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"place": "a"}}
    body: Any = {
        "max_tokens": 1,
        "tools": [tool],
        "messages": [
            *ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": BLOCKS}
        ],
    }  # fmt: skip
    status, _, got = server.call("POST", "/v1/messages", body)
    assert status == 200, got
    assert got["usage"]["input_tokens"] + got["usage"]["cache_read_input_tokens"] == n
    body.pop("max_tokens")
    assert server.call("POST", "/v1/messages/count_tokens", body)[2] == {"input_tokens": n}
    output = {"type": "function_call_output", "call_id": "c1", "output": "hot"}
    body = {
        "max_output_tokens": 1,
        "tools": [{"type": "function"} | TOOL["function"]],
        "input": [
            *ASK,
            {"type": "function_call", "call_id": "c1", **CALL["function"]},
            output, output,
            {"role": "user", "content": "and now?"},
        ],
    }  # fmt: skip
    status, _, got = server.call("POST", "/v1/responses", body)
    assert (status, got["usage"]["input_tokens"]) == (200, n), got
    use = {"function": {"name": "weather", "arguments": {"place": "a"}}}
    result = {"role": "tool", "tool_name": "weather", "content": "hot"}
    body = {
        "model": "x", "stream": False, "options": {"num_predict": 1}, "tools": [TOOL],
        "messages": [
            *ASK, {"role": "assistant", "content": "", "tool_calls": [use]}, result, result,
            {"role": "user", "content": "and now?"},
        ],
    }  # fmt: skip
    status, _, got = server.call("POST", "/api/chat", body)
    assert (status, got["prompt_eval_count"]) == (200, n), got


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_must_be(server: Server, stream: bool, choice: Any) -> None:
    """In a stream its arguments come in pieces, as where the template has tools."""
    options: Any = {"model": "x", "messages": ASK, "tools": [TOOL], "tool_choice": choice,
                    "parallel_tool_calls": False, "max_tokens": 200, "temperature": 0}  # fmt: skip
    create = server.client.chat.completions.create
    if not stream:
        (choice,) = create(**options).choices
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and not choice.message.content
        name, arguments = call.function.name, call.function.arguments
    else:
        chunks = [chunk.choices[0] for chunk in create(stream=True, **options)]
        assert not any(chunk.delta.content for chunk in chunks)
        parts = [part.function for chunk in chunks for part in chunk.delta.tool_calls or []]
        assert len(parts) > 1 and chunks[-1].finish_reason == "tool_calls"
        name, arguments = parts[0].name, "".join(part.arguments or "" for part in parts)
    assert name == "weather" and json.loads(arguments)["place"] in ("a", "b")


def test_calls_are_read_where_none_must_be(server: Server) -> None:
    regex = WRITTEN.replace("{", "[{]").replace("}", "[}]")
    options: Any = {"messages": ASK, "max_tokens": 200, "regex": regex}
    _, _, got = server.call("POST", "/v1/chat/completions", options | {"tools": [TOOL]})
    (call,) = got["choices"][0]["message"]["tool_calls"]
    assert call["function"] == CALL["function"]
    _, _, got = server.call("POST", "/v1/chat/completions", options)
    assert got["choices"][0]["message"]["content"] == WRITTEN


def test_the_log_says_it_once(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    source = ChatTemplate().sources["default"]
    with Server(talker(tmp_path_factory.mktemp("m"), source), "-t", 1) as server:
        logging.getLogger("weft.serve").propagate = True
        for body in ({}, {"tools": [TOOL]}, {"tools": [TOOL]}):
            server.call("POST", "/apply-template", {"messages": ASK} | body)
    assert [r.levelno for r in caplog.records if "knows no tools" in r.message] == [30]


def rendered(source: str, messages: Any, tools: Any = None) -> str:
    template = ChatTemplate(source)
    return template.render(AnswerFormat.of(template).said(messages, template, tools))


def test_a_template_where_roles_alternate() -> None:
    """It takes no system message, so that the tools begin the first message of the user."""
    messages = [*ASK, CALLED, RESULT, RESULT, {"role": "user", "content": "so?"}]
    assert rendered(STRICT, messages, [TOOL]) == (
        f"<user>{WORDS}\n\nabc<assistant>{WRITTEN}<user>{HOT}\n{HOT}\n\nso?"
    )


def test_a_template_that_has_calls_and_no_tools() -> None:
    """The words tell its own form, as DeepSeek V3.1 has it, and calls stay in it."""
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function.name }}<args>{{ c.function.arguments | tojson }}</call>{% endfor %}"
        "{% endfor %}"
    )
    text = rendered(source, [*ASK, CALLED, RESULT], [TOOL])
    assert 'form:\n<call>NAME<args>{"KEY": "VALUE"}</call>\nWrite' in text
    assert text.endswith('<user>abc<assistant><call>weather<args>{"place": "a"}</call><tool>hot')
    assert rendered(source, [*ASK, CALLED]) == ChatTemplate(source).render([*ASK, CALLED])


def test_a_template_whose_calls_no_example_shows() -> None:
    """It has arguments between tags; the form of the words is that of all other templates."""
    source = TEMPLATES["coder"].replace("{% if tools %}{{ tools | tojson }}{% endif %}", "")
    text = rendered(source, [*ASK, CALLED, RESULT], [TOOL])
    assert WORDS in text and WRITTEN in text and HOT in text and "<function=" not in text


def test_a_template_that_calls_them_xml_tools() -> None:
    """SmolLM3 does."""
    source = "{{ xml_tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source + "{# <tool_call> #}")
    assert template.knows_tools
    assert template.render(ASK, tools=[TOOL]) == f"{json.dumps([TOOL])}abc"


def test_in_python(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`LLM.chat` does the same; a template that is asked itself still says that it has no tools."""
    source = ChatTemplate().sources["default"]
    llm = LLM(talker(tmp_path_factory.mktemp("m"), source), n_threads=1)
    for messages, tools in ((ASK, [TOOL]), ([*ASK, CALLED, RESULT], None)):
        body = {"messages": messages} | ({"tools": tools} if tools else {})
        prompt = server.call("POST", "/apply-template", body)[2]["prompt"]
        answer = llm.chat(messages, tools=tools, max_tokens=1)
        n = len(llm.tokenize(prompt, parse_special=True))
        assert answer.usage.prompt_tokens == n
    with pytest.raises(ChatError, match=r"ChatML.* knows no tools; leave them out"):
        ChatTemplate().render(ASK, tools=[TOOL])
    with pytest.raises(ChatError, match=r"the template of m knows no tools"):
        ChatTemplate("{{ messages }}", where="the template of m").render(ASK, tools=[TOOL])
    with pytest.raises(ChatError, match="knows no tool_calls of an assistant"):
        ChatTemplate().render([*ASK, CALLED])
    assert ChatTemplate().render([*ASK, RESULT])  # the fallback writes any role
