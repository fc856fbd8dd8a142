"""Answers that must be calls: whatever the logits, the parser finds calls in them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.llm.answers.templates import OPENING
from tests.llm.answers.test_answers import FAMILIES, TOOLS, format_of, joined
from tests.llm.tiny import metadata, tokens, write_model
from weft.errors import ChatError, ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer
from weft.llm.answers import AnswerFormat
from weft.llm.answers.constrain import MOST_CALLS
from weft.llm.chat.template import ChatTemplate

SHORT = [
    {"name": name, "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Bern"]}, "days": {"type": "boolean"}},
        "required": ["city"], "additionalProperties": False,
    }} for name in ("weather", "clock")
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    names, scores, types = tokens()
    meta = metadata(**{
        "tokenizer.ggml.tokens": [*names, "[TOOL_CALLS]", "[ARGS]"],
        "tokenizer.ggml.scores": np.append(scores, [0, 0]).astype(np.float32),
        "tokenizer.ggml.token_type": np.append(types, [3, 3]).astype(np.int32),
    })  # fmt: skip
    path = write_model(tmp_path_factory.mktemp("m") / "m.gguf", meta)
    return Tokenizer.from_gguf(open_gguf(path))


def answer(tokenizer: Tokenizer, grammar: str, seed: int) -> str:
    """Text of a model that knows nothing."""
    params = SamplingParams(temperature=1.0, top_k=0, seed=seed, grammar=grammar)
    sampler = Sampler(params, tokenizer)
    rng, ids = np.random.default_rng(seed), []
    while not sampler.done and len(ids) < 2000:
        id_ = sampler.sample(rng.normal(0, 1, tokenizer.n_vocab).astype(np.float32))
        if id_ in tokenizer.vocab.eog:
            break
        sampler.accept(id_)
        ids.append(id_)
    return b"".join(tokenizer.piece(id_, special=True) for id_ in ids).decode()


def follow(tokenizer: Tokenizer, grammar: str, text: str) -> None:
    """Holds `text` to a grammar; fails with the rest of the text that it does not allow."""
    sampler = Sampler(SamplingParams(grammar=grammar), tokenizer)
    n = tokenizer.n_vocab
    control = {"[TOOL_CALLS]": n - 2, "[ARGS]": n - 1}
    pieces = [piece for piece in re.split(r"(\[TOOL_CALLS\]|\[ARGS\])", text) if piece]
    for i, piece in enumerate(pieces):
        ids = [control[piece]] if piece in control else [3 + byte for byte in piece.encode()]
        for at, id_ in enumerate(ids):
            try:
                sampler.accept(id_)
            except ContextError:
                rest = piece.encode()[at:].decode(errors="replace")
                pytest.fail(f"{rest + ''.join(pieces[i + 1 :])!r} of {text!r}")


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
