"""Calls and reasoning that the templates of published models write are read back, however the text
is cut. The templates are those of `published.py`; without them these tests are skipped."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.llm.answers.grammars import answer, follow
from tests.llm.answers.parsed import joined
from tests.llm.answers.published import FILES, Writer, template_of
from weft.errors import ChatError
from weft.llm import Tokenizer
from weft.llm.answers import AnswerFormat

pytestmark = pytest.mark.skipif(
    not FILES, reason="the templates of published models are not in build/templates; see Makefile"
)

Calls = list[tuple[str, dict[str, Any]]]


def _typed(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": "d", **more}


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": _typed("string"),
        "code": _typed("string"),
        "days": _typed("integer"),
        "share": _typed("number"),
        "deep": _typed("object", additionalProperties={"type": "string"}),
        "list": _typed("array", items={"type": "integer"}),
        "flag": _typed("boolean"),
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": PARAMETERS},
    }
    for name in ("get_weather", "clock")
]
ODD = {
    "city": "Zürich \"q\" 's' {x} [y]\n\\n </tool_call> <b>&amp; 日本 🎉",
    "code": "if a < b:\n\treturn {'k': \"v\"} # </function>",
}
DEEP = {
    "days": -3,
    "share": 0.5,
    "deep": {"a": [1, {"b": None, "c": "x y"}], "t": True},
    "list": [1, 2],
    "flag": False,
    "none": None,
}
ROME: Calls = [("get_weather", {"city": "Rome"})]
CASES: dict[str, tuple[Calls, str, str]] = {
    "one": (ROME, "", ""),
    "two": ([*ROME, ("clock", {"city": "Bern", "days": 3})], "", ""),
    "odd": ([("get_weather", ODD)], "", ""),
    "deep": ([("get_weather", DEEP)], "", ""),
    "empty": ([("clock", {})], "", ""),
    "content": (ROME, "I look it up.", ""),
    "reasoning": (ROME, "", "We should look."),
    "plain": ([], "All is well.", "We are done."),
}
"""Calls, content and reasoning of an answer."""

WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B": "the template has no tools (an edition for other engines)",
    "LFM2-8B-A1B": "the template lists tools and writes no calls; their form is that of LFM2.5",
    "LFM2.5-Instruct": "the template lists tools and writes no calls; their form is that of LFM2.5",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "the template has no tools and drops calls",
    "google-gemma-2-2b-it": "the template has no tools",
    "ibm-granite-granite-3.3-2B-Instruct": "the template lists tools and writes no calls",
    "llama-cpp-rwkv-world": "the template has no tools",
    "microsoft-Phi-3.5-mini-instruct": "the template has no tools",
}
"""Templates that write no calls, and why."""

ONE_CALL = {
    "GigaChat3-10B-A1.8B": "writes the first",
    "GigaChat3.1-10B-A1.8B": "writes the first",
    "meta-llama-Llama-3.1-8B-Instruct": "refuses several",
    "meta-llama-Llama-3.2-3B-Instruct": "refuses several",
    "meta-llama-Llama-3.3-70B-Instruct": "refuses several",
    "openai-gpt-oss-120b": "writes the first",
}
"""Templates of models that make one call at a time."""

LOST = {
    ("LFM2.5-8B-A1B", "odd"): "quotes within strings are written as they are",
    ("MiniMax-M3", "deep"): "null is not written",
    ("NVIDIA-Nemotron-Nano-v2", "content"): "a turn of its own, without the end of reasoning",
    ("NVIDIA-Nemotron-Nano-v2", "plain"): "begins behind the mark of reasoning without its end",
    ("google-gemma-4-31B-it", "content"): "content stands behind calls, with the end of a turn",
    ("llama-cpp-deepseek-r1", "content"): "a message with content has no calls",
    ("openai-gpt-oss-120b", "content"): "content beside a call is written as reasoning",
}
"""Answers that a template writes otherwise than a model does, and how."""

NO_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates that have no place for tools."""

ALL = {path.stem: path for path in FILES}
WITH_CALLS = sorted(set(ALL) - set(WITHOUT_CALLS))


@cache
def _format_of(name: str) -> AnswerFormat:
    return AnswerFormat.of(template_of(ALL[name]))


@cache
def _writer_of(name: str) -> Writer:
    return Writer(template_of(ALL[name]), TOOLS)


def _read(name: str, prompt: str, *pieces: str) -> tuple[str, str, Calls]:
    parser = _format_of(name).parser(TOOLS, prompt)
    events = [event for piece in pieces for event in parser.push(piece)]
    content, reasoning, calls = joined([*events, *parser.finish()])
    return content.strip(), reasoning.strip(), [(n, json.loads(a)) for n, a in calls]


@pytest.mark.parametrize("name", WITH_CALLS)
def test_calls_come_back(name: str) -> None:
    """Every answer that the template writes, at once and a character at a time."""
    n_written = 0
    for case, (calls, content, reasoning) in CASES.items():
        if (name, case) in LOST or (case == "two" and name in ONE_CALL):
            continue
        prompt, text = _writer_of(name).answer(calls, content, reasoning)
        n_written += 1
        expected = (
            content if content in text else "",  # some templates drop it beside calls
            reasoning if reasoning in text else "",  # some write no reasoning
            calls,
        )
        assert _read(name, prompt, text) == expected, case
        assert _read(name, prompt, *text) == expected, case
    assert n_written >= 5


@pytest.mark.parametrize("name", WITH_CALLS)
def test_any_cut_gives_the_same(name: str) -> None:
    """An answer with all parts, cut in two at every place."""
    calls = CASES["one" if name in ONE_CALL else "two"][0]
    content = "" if (name, "content") in LOST else "I look."
    prompt, text = _writer_of(name).answer(calls, content, "It may rain.")
    whole = _read(name, prompt, text)
    assert whole[2] == calls
    for at in range(1, len(text)):
        assert _read(name, prompt, text[:at], text[at:]) == whole, text[:at]


@pytest.mark.parametrize("name", sorted(WITHOUT_CALLS))
def test_templates_that_write_no_calls(name: str) -> None:
    """They are listed, so that none is left out silently."""
    try:
        _, text = _writer_of(name).answer(ROME)
    except ChatError as error:
        assert "knows no tool_calls" in str(error)
    else:
        assert "get_weather" not in text


@pytest.mark.parametrize("name", sorted(NO_TOOLS & set(ALL)))
def test_templates_without_tools(name: str) -> None:
    """The tools, a call and its result are in the prompt all the same, in this order."""
    template = template_of(ALL[name])
    call = {"type": "function", "function": {"name": "clock", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": "When is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "It is noon."},
    ]
    text = template.render(_format_of(name).said(messages, template, TOOLS))
    places = [
        text.find(part) for part in (json.dumps(TOOLS[0]), "When is it?", '"Rome"', "It is noon.")
    ]
    assert -1 not in places and places == sorted(places), text


@pytest.mark.parametrize(("name", "case"), sorted(LOST))
def test_what_a_template_loses(name: str, case: str) -> None:
    """These answers do not come back; if one does, its line goes."""
    calls, content, reasoning = CASES[case]
    prompt, text = _writer_of(name).answer(calls, content, reasoning)
    assert _read(name, prompt, text) != (content, reasoning, calls)


@pytest.mark.parametrize("name", sorted(ONE_CALL))
def test_templates_of_one_call(name: str) -> None:
    calls = CASES["two"][0]
    try:
        prompt, text = _writer_of(name).answer(calls)
    except ChatError as error:
        assert "single tool-calls" in str(error)
    else:
        assert _read(name, prompt, text)[2] == calls[:1]


def test_every_template_is_listed() -> None:
    """The folder has the templates that the lists are about."""
    assert len(ALL) >= 70
    assert {name for name in ALL if not template_of(ALL[name]).knows_tools} == NO_TOOLS
    named = {*WITHOUT_CALLS, *ONE_CALL, *(name for name, _ in LOST)}
    assert named <= set(ALL)


def test_families_are_as_the_table_says() -> None:
    """What the difference finds is what is known of these families."""
    forms: dict[str, tuple[str, str]] = {
        "Qwen-Qwen3-0.6B": ("object", "<tool_call>"),
        "Qwen3-Coder": ("tagged", "<tool_call>"),
        "GLM-4.6": ("tagged", "<tool_call>"),
        "MiniMax-M2": ("tagged", "<minimax:tool_call>"),
        "ByteDance-Seed-OSS": ("tagged", "<seed:tool_call>"),
        "mistralai-Mistral-Nemo-Instruct-2407": ("object", "[TOOL_CALLS]"),
        "Mistral-Small-3.2-24B-Instruct-2506": ("named", "[TOOL_CALLS]"),
        "deepseek-ai-DeepSeek-V3.1": ("named", "<｜tool▁calls▁begin｜>"),
        "moonshotai-Kimi-K2": ("named", "<|tool_calls_section_begin|>"),
        "Apertus-8B-Instruct": ("keyed", "<|tools_prefix|>"),
        "LFM2.5-8B-A1B": ("python", "<|tool_call_start|>"),
        "google-gemma-4-31B-it": ("loose", "<|tool_call>"),
        "MiniMax-M3": ("elements", "]<]minimax[>[<tool_call>"),
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("object", "<|START_ACTION|>"),
        "meetkai-functionary-medium-v3.1": ("named", "<function="),
        "meetkai-functionary-medium-v3.2": ("named", ">>>"),
        "meta-llama-Llama-3.1-8B-Instruct": ("object", ""),
        "fireworks-ai-llama-3-firefunction-v2": ("object", "functools["),
        "ibm-granite-granite-3.3-2B-Instruct": ("object", "<|tool_call|>"),
        "NVIDIA-Nemotron-Nano-v2": ("object", "<TOOLCALL>"),
        "StepFun3.5-Flash": ("tagged", "<tool_call>"),
    }
    for name, form in forms.items():
        markers = _format_of(name).markers
        assert markers is not None and (markers.kind, markers.trigger) == form, name


def test_reasoning_is_as_the_table_says() -> None:
    marks = {
        "Qwen-Qwen3-0.6B": "<think>",
        "ByteDance-Seed-OSS": "<seed:think>",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|START_THINKING|>",
        "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]",
        "google-gemma-4-31B-it": "<|channel>thought",
        "MiniMax-M3": "<mm:think>",
        "tencent-Hy3": "<think:opensource>",
        "Kimi-K3": "<|open|>think<|sep|>",
        "upstage-Solar-Open-100B": "<|think|>",
        "openai-gpt-oss-120b": "<|channel|>analysis<|message|>",
    }
    for name, opening in marks.items():
        thought = _format_of(name).thought
        assert thought is not None and thought[0] == opening, name


CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Bern"]},
        "flag": {"type": "boolean"},
        "note": {"type": "null"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
CHOOSING = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": CHOICES}}
    for name in ("get_weather", "clock")
]


@pytest.mark.parametrize("name", sorted(ALL))
def test_calls_that_must_be(tokenizer: Tokenizer, name: str) -> None:
    """Whatever the logits, an answer held to the grammar is calls of the tools."""
    form = _format_of(name)
    grammar = form.grammar(tokenizer, CHOOSING)
    assert grammar is not None
    for seed in range(3):
        text = answer(tokenizer, grammar, seed)
        parser = form.parser(CHOOSING)
        content, _, calls = joined([*parser.push(text), *parser.finish()])
        assert content == "" and calls, text
        for called, arguments in calls:
            assert called in ("get_weather", "clock")
            values = json.loads(arguments)
            assert values.pop("city") in ("Rome", "Bern"), text
            assert values.pop("flag", True) in (True, False), text
            assert values.pop("note", None) is None, text
            assert not values


@pytest.mark.parametrize("name", WITH_CALLS)
def test_the_grammar_allows_what_the_template_writes(tokenizer: Tokenizer, name: str) -> None:
    """So that a model is not held to a form that it was not trained with."""
    calls: Calls = [("get_weather", {"city": "Rome", "days": 3})]
    prompt, text = _writer_of(name).answer(calls)
    grammar = _format_of(name).grammar(tokenizer, TOOLS, prompt=prompt, reasons=True)
    assert grammar is not None
    follow(tokenizer, grammar, text.rstrip())


def table() -> str:
    """The forms found, as lines; `python -m tests.llm.answers.test_published_templates`."""
    lines = []
    for name in ALL:
        form = _format_of(name)
        kind, trigger = (form.markers.kind, form.markers.trigger) if form.markers else ("-", "")
        why = WITHOUT_CALLS.get(name) or ONE_CALL.get(name, "")
        lost = "; ".join(f"{case}: {reason}" for (n, case), reason in LOST.items() if n == name)
        thought = form.thought[0].strip() if form.thought else "-"
        lines.append(f"{name:50} {kind:9}{trigger:32}{thought:32}{why or lost or 'ok'}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
