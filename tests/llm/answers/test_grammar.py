"""Answers that must be calls: whatever the logits, the parser finds calls in them."""

from __future__ import annotations

import json

import pytest

from tests.llm.answers.grammars import answer, follow
from tests.llm.answers.parsed import FAMILIES, TOOLS, format_of, joined
from tests.llm.answers.templates import OPENING
from weft.errors import ChatError, ContextError
from weft.llm import Sampler, SamplingParams, Tokenizer
from weft.llm.answers import AnswerFormat
from weft.llm.answers.grammar import MOST_CALLS
from weft.llm.chat.template import ChatTemplate

SHORT = [
    {"name": name, "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Bern"]}, "days": {"type": "boolean"}},
        "required": ["city"], "additionalProperties": False,
    }} for name in ("weather", "clock")
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [None, "clock"])
def test_every_text_is_calls(tokenizer: Tokenizer, family: str, name: str | None) -> None:
    form = format_of(family)
    grammar = form.grammar(tokenizer, SHORT, name=name, parallel=name is None)
    assert grammar is not None
    for seed in range(4):
        text = answer(tokenizer, grammar, seed)
        parser = form.parser(SHORT)
        content, _, calls = joined([*parser.push(text), *parser.finish()])
        assert content == "" and calls, text
        for called, arguments in calls:
            assert called in ([name] if name else ["weather", "clock"])
            assert json.loads(arguments)["city"] in ("Rome", "Bern")


def test_calls_of_one_answer_have_an_end(tokenizer: Tokenizer) -> None:
    grammar = format_of("hermes").grammar(tokenizer, SHORT)
    assert grammar is not None
    call = '<tool_call>{"name": "clock", "arguments": {"city": "Rome"}}</tool_call>'
    follow(tokenizer, grammar, "\n".join([call] * MOST_CALLS))
    with pytest.raises(pytest.fail.Exception, match="tool_call>"):
        follow(tokenizer, grammar, "\n".join([call] * (MOST_CALLS + 1)))


def test_reasoning_that_the_prompt_began_comes_first(tokenizer: Tokenizer) -> None:
    form = AnswerFormat.of(ChatTemplate(OPENING))
    grammar = form.grammar(tokenizer, SHORT, prompt="<|assistant|><think>\n")
    assert grammar is not None
    sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
    text = 'Let me see.</think><tool_call>{"name":"clock","arguments":{"city":"Rome"}}</tool_call>'
    for byte in text.encode():
        sampler.accept(3 + byte)


def test_a_name_that_no_tool_has(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatError, match="'moon'; there are weather, clock"):
        format_of("hermes").grammar(tokenizer, TOOLS, name="moon")


def test_arguments_between_tags_follow_the_schema(tokenizer: Tokenizer) -> None:
    """Required arguments come first; a text may be anything without the mark behind it."""
    parameters = {
        "type": "object",
        "properties": {"days": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["city"],
    }
    grammar = format_of("coder").grammar(
        tokenizer, [{"name": "weather", "parameters": parameters}], parallel=False
    )
    assert grammar is not None
    sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
    text = (
        "<tool_call>\n<function=weather><parameter=city>\na </b>\n</parameter>\n"
        "<parameter=days>\n12\n</parameter></function></tool_call>"
    )
    for byte in text.encode():
        sampler.accept(3 + byte)
    sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
    with pytest.raises(ContextError):
        for byte in b"<tool_call><function=weather><parameter=days>":
            sampler.accept(3 + byte)


def test_a_model_may_think_before_a_call_that_must_be(tokenizer: Tokenizer) -> None:
    form = format_of("hermes")
    call = '<tool_call>{"name":"clock","arguments":{"city":"Rome"}}</tool_call>'
    for reasons, text in ((True, f"<think>Hm.</think>\n{call}"), (True, call), (False, call)):
        grammar = form.grammar(tokenizer, SHORT, reasons=reasons)
        sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
        for byte in text.encode():
            sampler.accept(3 + byte)
    closed = form.grammar(tokenizer, SHORT, reasons=True, prompt="<think>\n\n</think>\n\n")
    sampler = Sampler(SamplingParams(grammar=closed), tokenizer)
    with pytest.raises(ContextError):
        for byte in b"<think>":
            sampler.accept(3 + byte)
