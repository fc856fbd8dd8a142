"""`LLM`: from a file to text, and the errors a user meets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm.tiny import metadata, write_model
from weft.errors import ContextError, FormatError, OutOfMemoryError
from weft.llm import LLM, SamplingParams, token_logprobs
from weft.llm.cache import memory


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, devices=["reference"])


def test_greedy_text_is_what_the_logits_say(llm: LLM) -> None:
    text = llm.generate("the abc", max_tokens=12, temperature=0, ignore_eos=True)
    assert llm.stats.finish_reason == "length"
    ids = llm.tokenize("the abc")
    assert (llm.stats.n_prompt, llm.stats.n_generated) == (len(ids), 12)
    new = []
    for _ in range(12):
        llm.context.cache.clear()
        new.append(int(llm.context.decode(ids + new)[0].argmax()))
    stream = llm.tokenizer.stream()
    assert text == "".join(map(stream.push, new)) + stream.flush()


def test_more_context_than_the_model_was_trained_for_is_said(path: Path) -> None:
    with pytest.warns(UserWarning, match=r"n_ctx is 65, and m\.gguf was trained for 64 tokens"):
        LLM(path, n_ctx=65, devices=["reference"])
    LLM(path, n_ctx=64, devices=["reference"])
    LLM(path, n_ctx=128, n_seq_max=2, devices=["reference"])  # for two texts


def test_a_seed_reproduces(llm: LLM) -> None:
    def text(seed: int) -> str:
        return llm.generate("a", max_tokens=30, temperature=1.5, seed=seed)

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_the_context_is_a_limit(llm: LLM) -> None:
    llm.generate("a", temperature=0, ignore_eos=True)
    assert llm.stats.finish_reason == "context"
    # every cell holds a token, and the last logits give one more
    assert llm.stats.n_prompt + llm.stats.n_generated == llm.context.n_ctx + 1


def test_a_full_context_is_shifted_by_choice(path: Path) -> None:
    """The text is that of a context whose older half was dropped by hand, each time it was full."""
    llm = LLM(path, n_ctx=12, context_shift=True, n_keep=3, devices=["reference"])
    text = llm.generate("the abc", max_tokens=40, temperature=0, ignore_eos=True)
    assert (llm.stats.finish_reason, llm.stats.n_generated) == ("length", 40)
    c = LLM(path, n_ctx=12, devices=["reference"]).context
    ids, new = llm.tokenize("the abc"), []
    logits, n_past, n_shifts = c.decode(ids)[0], len(ids), 0
    for _ in range(40):
        new.append(int(logits.argmax()))
        if n_past == 12:
            c.seq_rm(0, 3, 7)
            c.seq_add(0, 7, -1, -4)
            n_past, n_shifts = 8, n_shifts + 1
        logits, n_past = c.decode(new[-1:], [n_past])[0], n_past + 1
    stream = llm.tokenizer.stream()
    assert text == "".join(map(stream.push, new)) + stream.flush()
    assert n_shifts > 5 and llm.context.counters.graphs_built == 2
    assert llm.generate("the abc", max_tokens=40, temperature=0, ignore_eos=True) == text
    assert llm.stats.n_cached == 3


def test_the_whole_prompt_may_stay(path: Path) -> None:
    def text(n_keep: int, prompt: str) -> str:
        llm = LLM(path, n_ctx=12, context_shift=True, n_keep=n_keep, devices=["reference"])
        return llm.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True)

    ids = LLM(path, n_ctx=12, devices=["reference"]).tokenize("the abc")
    assert text(-1, "the abc") == text(len(ids), "the abc") != text(0, "the abc")
    full = "a" * (12 - (ids[0] == 1))
    assert text(-1, full) == text(10, full), "one token is left to drop"


def test_what_cannot_be_shifted_is_said_at_once(path: Path) -> None:
    for n_keep in (-2, 11):
        with pytest.raises(ContextError, match=r"n_keep is -?\d+; it must be 0 to 10"):
            LLM(path, n_ctx=12, context_shift=True, n_keep=n_keep, devices=["reference"])


def test_a_common_beginning_is_computed_once(path: Path) -> None:
    def text(llm: LLM, prompt: str, **options: object) -> str:
        return llm.generate(prompt, max_tokens=9, temperature=0, ignore_eos=True)

    kept, prompts = LLM(path, devices=["reference"]), ["the abc", "the abc the", "the", "abc", ""]
    for prompt in [*prompts, *prompts]:
        if prompt:
            assert text(kept, prompt) == text(LLM(path, devices=["reference"]), prompt)
    ids = kept.tokenize("the abc the")
    text(kept, "the abc")
    text(kept, "the abc the")
    assert kept.stats.n_prompt == len(ids)
    assert kept.stats.n_cached >= len(kept.tokenize("the")) > 0


def test_a_prompt_longer_than_the_context(llm: LLM) -> None:
    with pytest.raises(ContextError, match="the prompt has 65 tokens, but the context holds 64"):
        llm.generate([1] * 65)
    llm.generate([1] * 64, ignore_eos=True)
    assert (llm.stats.n_generated, llm.stats.finish_reason) == (1, "context")


def test_arguments_are_checked_at_once(llm: LLM) -> None:
    with pytest.raises(ContextError, match="temperature is -1"):
        llm.generate("a", temperature=-1)
    with pytest.raises(ContextError, match="max_tokens is 0"):
        llm.generate("a", max_tokens=0)


def test_a_stop_string_ends_the_text(llm: LLM) -> None:
    whole = llm.generate("abc", max_tokens=40, temperature=0, ignore_eos=True)
    stop = whole[5:8]
    got = llm.generate("abc", max_tokens=40, temperature=0, stop=stop, ignore_eos=True)
    assert got == whole[: whole.index(stop)]
    assert llm.stats.finish_reason == "stop"


def test_the_end_token_ends_the_text(path: Path, llm: LLM, tmp_path: Path) -> None:
    """A copy of the model whose end token is what it says third."""
    ids = llm.tokenize("abc")
    new: list[int] = []
    for _ in range(3):
        llm.context.cache.clear()
        new.append(int(llm.context.decode(ids + new)[0].argmax()))
    other = write_model(tmp_path / "m.gguf", metadata(**{"tokenizer.ggml.eos_token_id": new[2]}))
    ended = LLM(other, devices=["reference"])
    ended.generate("abc", temperature=0)
    expected = new.index(new[2]) + 1
    assert (ended.stats.finish_reason, ended.stats.n_generated) == ("stop", expected)
    ended.generate("abc", temperature=0, max_tokens=10, ignore_eos=True)
    assert ended.stats.n_generated == 10


def test_ctrl_c_leaves_it_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    want = llm.generate("abc", max_tokens=20, temperature=0, ignore_eos=True)
    run, calls = llm.context._session.execute, []

    def interrupted(values: dict[str, int]) -> None:
        calls.append(values)
        if len(calls) == 7:
            raise KeyboardInterrupt
        run(values)

    monkeypatch.setattr(llm.context._session, "execute", interrupted)
    pieces: list[str] = []

    def collect(source: Iterator[str]) -> None:
        pieces.extend(source)

    with pytest.raises(KeyboardInterrupt):
        collect(llm.generate("abc", stream=True, max_tokens=20, temperature=0, ignore_eos=True))
    assert want.startswith("".join(pieces))
    assert llm.stats.finish_reason == ""
    assert want == llm.generate("abc", max_tokens=20, temperature=0, ignore_eos=True)


def test_a_second_text_takes_over(llm: LLM) -> None:
    first = llm.generate("the", stream=True, max_tokens=30, temperature=1, seed=1, ignore_eos=True)
    next(first)
    want = llm.generate("abc", max_tokens=9, temperature=0, ignore_eos=True)
    with pytest.raises(ContextError, match="has taken the context over"):
        list(first)
    assert want == llm.generate("abc", max_tokens=9, temperature=0, ignore_eos=True)


def test_statistics(llm: LLM) -> None:
    llm.generate("abc", max_tokens=9, temperature=0, ignore_eos=True)
    s = llm.stats
    assert s.prompt_tokens_per_second == pytest.approx((s.n_prompt - s.n_cached) / s.prompt_seconds)
    assert s.tokens_per_second == pytest.approx(8 / s.generation_seconds)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        LLM(tmp_path / "none.gguf")
    other = tmp_path / "model.zip"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FormatError, match="looks like a zip archive"):
        LLM(other)


def test_too_little_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 3000)
    with pytest.raises(OutOfMemoryError, match=r"are needed .*3000 bytes .* available"):
        LLM(path, devices=["reference"])


def test_log_probabilities_of_the_model(llm: LLM) -> None:
    llm.generate("abc", max_tokens=5, temperature=0.1, logprobs=3, seed=1, ignore_eos=True)
    assert len(llm.stats.logprobs) == llm.stats.n_generated == 5
    ids = llm.tokenize("abc")
    for got in llm.stats.logprobs:
        llm.context.cache.clear()
        want = token_logprobs(llm.context.decode(ids)[0], got.id, 3)
        assert [i for i, _ in got.top] == [i for i, _ in want.top]
        assert got.logprob == pytest.approx(want.logprob, abs=1e-4)
        ids.append(got.id)
    llm.generate("abc", max_tokens=5)
    assert llm.stats.logprobs == []
    with pytest.raises(ContextError, match="logprobs is -1"):
        llm.generate("abc", logprobs=-1)


def test_sampling_options_in_one_object(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=4)

    def text(**options: Any) -> str:
        return llm.generate("a", max_tokens=30, ignore_eos=True, **options)

    assert text(sampling=params) == text(temperature=1.5, seed=4)
    assert text(sampling=params, temperature=0) == text(temperature=0)


def test_penalties_see_the_prompt(llm: LLM) -> None:
    ids = llm.tokenize("the abc")
    llm.context.cache.clear()
    best = int(llm.context.decode(ids)[0].argmax())
    bias = {best: 100.0}
    llm.generate([*ids, best], max_tokens=1, temperature=0, logit_bias=bias, logprobs=0)
    assert llm.stats.logprobs[0].id == best
    list(
        llm.generate(
            [*ids, best], max_tokens=1, temperature=0, logit_bias=bias, logprobs=0,
            presence_penalty=200,
        )
    )  # fmt: skip
    assert llm.stats.logprobs[0].id != best
