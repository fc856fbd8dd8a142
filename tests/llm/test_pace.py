"""Prompts of others delay a text by one chunk at most, whose size follows the latency target."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Delta, Event, Request, writer
from weft.llm.engine.batches import FIRST, LEAST, Pace, StepBatch
from weft.llm.engine.request import Ticket
from weft.llm.engine.writer import Writer

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"


def follow(pace: Pace, *, step: float, token: float, n: int = 20) -> list[int]:
    """The chunks of so many steps on a machine where a step takes `step` seconds and each token of
    a prompt `token` more."""
    chunks = []
    for _ in range(n):
        chunks.append(pace.chunk)
        pace.learn(chunks[-1], 4, step + token * chunks[-1])
    return chunks


def test_a_chunk_takes_the_delay() -> None:
    pace = Pace(0.2, most=512)
    assert pace.chunk == FIRST
    pace.learn(0, 4, 0.05)
    assert follow(pace, step=0.05, token=0.001)[-1] in (192, 200)
    assert follow(pace, step=0.05, token=0.004)[-1] == 48  # slower: at a greater depth, for example
    assert follow(pace, step=0.05, token=0.001)[-1] in (192, 200)


def test_without_a_step_of_texts_alone_the_whole_step_keeps_to_the_delay() -> None:
    last = follow(Pace(0.2, most=512), step=0.1, token=0.001)[-1]
    assert 80 <= last <= 100


def test_steps_of_fewer_texts_stand_in_for_those_of_more() -> None:
    pace = Pace(0.2, most=512)
    pace.learn(0, 2, 0.05)
    pace.learn(0, 9, 5.0)  # of more texts: says nothing about four
    assert follow(pace, step=0.05, token=0.001)[-1] in (192, 200)


def test_chunks_are_bounded() -> None:
    slow, fast = Pace(0.2, most=512), Pace(0.2, most=512)
    assert follow(slow, step=0.1, token=10.0)[-1] == LEAST
    assert follow(fast, step=0.1, token=0.0)[-1] == 512
    assert Pace(0.2, most=4).chunk == LEAST


def test_the_end_of_a_prompt_teaches_nothing() -> None:
    pace = Pace(0.2, most=512)
    pace.learn(1, 4, 3.0)
    assert pace.chunk == FIRST


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 64), st.floats(0, 100))))
def test_a_chunk_is_always_within_its_bounds(steps: list[tuple[int, int, float]]) -> None:
    pace = Pace(0.2, most=512)
    for step in steps:
        pace.learn(*step)
        assert LEAST <= pace.chunk <= 512


@pytest.mark.parametrize("delay", [0, -1.0, 61.0, float("nan")])
def test_a_delay_out_of_range_is_refused(delay: float) -> None:
    with pytest.raises(ContextError, match=r"prompt_delay is .*0\.001 to 60"):
        Pace(delay, most=512)


class Clock:
    """A clock that only work moves: a step takes 10 ms and each of its tokens 1 ms."""

    def __init__(self, context: Context) -> None:
        self.now = 0.0
        self.sizes: list[int] = []
        decode = context.decode

        def timed(batch: StepBatch) -> object:
            self.now += 0.01 + 0.001 * len(batch.tokens)
            self.sizes.append(len(batch.tokens))
            return decode(batch)

        context.decode = timed  # type: ignore[method-assign, assignment]


def test_a_long_prompt_delays_a_text_by_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_gguf(MODEL)
    context = Context(Model(file), 512, n_seq_max=2, n_ubatch=128, n_outputs=2,
                      devices=["reference"])  # fmt: skip
    clock = Clock(context)
    monkeypatch.setattr(writer, "perf_counter", lambda: clock.now)
    tokenizer = Tokenizer.from_gguf(file)
    texts = Writer(context, tokenizer, prompt_delay=0.04)
    heard: list[float] = []

    def request(n_prompt: int, n: int) -> Request:
        greedy = SamplingParams(temperature=0)
        return Request(tuple(range(3, 3 + n_prompt)), max_tokens=n, sampling=greedy,
                       ignore_eos=True, logprobs=0, reuse=False)  # fmt: skip

    def hear(event: Event) -> None:
        if isinstance(event, Delta):
            heard.append(clock.now)

    def ignore(event: Event) -> None:
        pass

    texts.add(Ticket(request(4, 40), tokenizer, hear))
    for _ in range(4):
        texts.step()
    long = Ticket(request(200, 1), tokenizer, ignore)
    texts.add(long)
    clock.sizes.clear()
    while not long.prompt_done:
        texts.step()
    # 40 ms are 40 tokens; the text has a token of every step
    assert clock.sizes == [1 + FIRST, 41, 41, 41, 1 + 200 - FIRST - 3 * 40]
    gaps = [b - a for a, b in zip(heard[-5:], heard[-4:], strict=False)]
    assert max(gaps) == pytest.approx(0.011 + 0.04)
