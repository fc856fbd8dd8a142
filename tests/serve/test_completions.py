"""`/v1/completions` beyond the plain continuation: echo, best_of, suffix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from tests.llm.tiny import metadata, tokens, write_model
from tests.serve.in_process import DEMO, Server
from weft.llm import Context, Model, Tokenizer

QUESTION = "What is 17 + 25?"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-np", 4, "-t", 1) as running:
        yield running


def create(server: Server, prompt: Any = QUESTION, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 4} | options
    return server.client.completions.create(model="x", prompt=prompt, **options)


def test_echo(server: Server) -> None:
    answer = create(server, echo=True)
    assert answer.choices[0].text == QUESTION + " 42."
    ids = server.call("POST", "/tokenize", {"content": QUESTION})[2]["tokens"]
    several = create(server, [QUESTION, "What is 3 + 4?"], echo=True, n=2, max_tokens=3)
    assert [c.text for c in several.choices] == [QUESTION + " 42"] * 2 + ["What is 3 + 4? 7."] * 2
    assert create(server, ids, echo=True).choices[0].text == QUESTION + " 42."
    alone = create(server, echo=True, max_tokens=0)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (QUESTION, "length")
    assert alone.usage.completion_tokens == 0


def logits(ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-probabilities behind every token [n, n_vocab]."""
    context = Context(Model.open(DEMO), 256, n_threads=1)
    rows = context.decode(ids, outputs="all").astype(np.float64)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def test_log_probabilities_of_a_prompt(server: Server) -> None:
    """Evaluation harnesses ask for them with ids, for every token but the first."""
    ids = server.call("POST", "/tokenize", {"content": QUESTION})[2]["tokens"]
    create(server, ids)  # what is in the cache does not matter
    got = create(server, ids, echo=True, max_tokens=0, logprobs=2).choices[0].logprobs
    want = logits(ids)
    assert got.token_logprobs[0] is None and got.top_logprobs[0] is None
    np.testing.assert_allclose(
        got.token_logprobs[1:], [want[i, id_] for i, id_ in enumerate(ids[1:])], atol=0.05
    )
    assert len(got.tokens) == len(got.text_offset) == len(ids)
    for i, top in enumerate(got.top_logprobs[1:]):
        assert max(top.values()) == pytest.approx(want[i].max(), abs=0.05)
        assert top[got.tokens[i + 1]] == got.token_logprobs[i + 1]
    with_answer = create(server, ids, echo=True, logprobs=2).choices[0].logprobs
    assert with_answer.tokens[: len(ids)] == got.tokens
    assert "".join(with_answer.tokens[len(ids) :]) == " 42."


def test_places_in_an_echoed_text(server: Server) -> None:
    """BOS, which the client did not send, is not there; what it makes of the first token is."""
    choice = create(server, echo=True, logprobs=0).choices[0]
    got, text = choice.logprobs, choice.text
    assert got.token_logprobs[0] < 0 and got.text_offset[0] == 0
    for token, at, end in zip(
        got.tokens, got.text_offset, [*got.text_offset[1:], len(text)], strict=True
    ):
        assert text[at:end] == (token if at else token.lstrip())


def test_choices_read_a_prompt_once(server: Server) -> None:
    before = server.metrics()
    answer = create(server, "Count from 8 to 11? " * 3, echo=True, logprobs=0, n=3)
    after = server.metrics()
    n = answer.usage.prompt_tokens
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] <= n + 2
    assert after["graphs_built_total"] == before["graphs_built_total"]
    assert {len(c.logprobs.tokens) for c in answer.choices} == {n - 1 + 4}
    assert len({tuple(c.logprobs.token_logprobs[: n - 1]) for c in answer.choices}) == 1


@pytest.mark.parametrize("logprobs", [None, 1])
def test_echo_in_a_stream(server: Server, logprobs: int | None) -> None:
    whole = create(server, echo=True, logprobs=logprobs, n=2)
    texts = ["", ""]
    lists: list[list[Any]] = [[], []]
    for chunk in create(server, echo=True, logprobs=logprobs, n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        if choice.logprobs:
            rows = choice.logprobs
            lists[choice.index] += zip(rows.tokens, rows.text_offset, strict=True)
    assert texts == [c.text for c in whole.choices]
    if logprobs is not None:
        want = [list(zip(c.logprobs.tokens, c.logprobs.text_offset, strict=True))
                for c in whole.choices]  # fmt: skip
        assert lists == want


def test_the_best_of_several(server: Server) -> None:
    """The answers are those whose tokens are likeliest on average, best first."""

    def mean(choice: Any) -> float:
        return float(np.mean(choice.logprobs.token_logprobs))

    options = {"temperature": 1.5, "seed": 5, "max_tokens": 8, "logprobs": 0}
    every = create(server, "What", n=6, **options)
    best = create(server, "What", n=2, best_of=6, **options)
    order = sorted(every.choices, key=mean, reverse=True)
    assert [c.text for c in best.choices] == [c.text for c in order[:2]]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.usage.completion_tokens == every.usage.completion_tokens
    hidden = create(server, "What", best_of=6, **{**options, "logprobs": None}).choices
    assert [c.text for c in hidden] == [order[0].text] and hidden[0].logprobs is None


def test_infilling(tmp_path: Path) -> None:
    names, scores, types = tokens()
    names += ["<PRE>", "<SUF>", "<MID>"]
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": np.append(scores, np.zeros(3, np.float32)),
        "tokenizer.ggml.token_type": np.append(types, np.full(3, 3, np.int32)),
    }
    path = write_model(tmp_path / "fim.gguf", metadata(**keys))
    tokenizer = Tokenizer.from_gguf(Model.open(path).file)
    pre, suf, mid = (names.index(n) for n in names[-3:])
    rest = tokenizer.encode("b", add_special=False, continues=True)
    want = [1, pre, *tokenizer.encode("the ", add_special=False), suf, *rest, mid]
    with Server(path, "-t", 1) as server:
        asked = {"max_tokens": 6, "extra_body": {"ignore_eos": True}, "logprobs": 0}
        got = create(server, "the ", suffix="b", **asked)
        plain = create(server, want, **asked)
        assert got.choices[0].text == plain.choices[0].text
        assert got.choices[0].logprobs.tokens == plain.choices[0].logprobs.tokens
        assert got.usage.prompt_tokens == len(want)
        assert create(server, "the ", **asked).usage.prompt_tokens != len(want)
        with pytest.raises(BadRequestError, match="echo and suffix do not go together"):
            create(server, "the ", suffix="b", echo=True)
