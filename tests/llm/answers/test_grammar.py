"""Answers that must be calls: whatever the logits, the parser finds calls in them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.llm.answers.templates import OPENING
from tests.llm.answers.test_answers import TOOLS, format_of, joined
from tests.llm.tiny import metadata, tokens, write_model
from weft.errors import ChatError
from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer
from weft.llm.answers import AnswerFormat
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


@pytest.mark.parametrize(
    "family", ["hermes", "llama", "mistral", "mistral-args", "deepseek", "functionary"]
)
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


def test_tagged_arguments_have_no_grammar(tokenizer: Tokenizer) -> None:
    assert format_of("coder").grammar(tokenizer, TOOLS) is None
