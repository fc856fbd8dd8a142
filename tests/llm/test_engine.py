"""`Engine`: texts side by side are what they are alone, share prefixes and cells, and end apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.engine_requests import GREEDY, finish, request, side_by_side
from weft.errors import BusyError, ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, Tokenizer
from weft.llm.engine import Done, Engine, Event
from weft.llm.engine.admission import QueueOptions
from weft.llm.engine.batches import StepBatch, pack
from weft.llm.engine.slots import MOST_COMPARED, Slot

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"


def make(n_seq: int, n_ctx: int, **options: Any) -> Engine:
    file = open_gguf(MODEL)
    # the reference: rows of a batch do not depend on each other, so texts are equal to the letter
    context = Context(Model(file), n_ctx, n_seq_max=n_seq, n_ubatch=32, n_outputs=n_seq,
                      devices=["reference"])  # fmt: skip
    return Engine(context, Tokenizer.from_gguf(file), **options)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    running = make(4, 128, queue=QueueOptions(8))
    yield running
    running.close()


def test_a_text_is_what_the_logits_say(engine: Engine) -> None:
    prompt = [5, 9, 40, 7]
    text, last = finish(engine.generate(request(prompt, 8)))
    assert (last.reason, last.n_prompt, last.n_generated) == ("length", 4, 8)
    context = Context(engine.context.model, 64, devices=["reference"])
    new: list[int] = []
    for _ in range(8):
        context.cache.clear()
        new.append(int(context.decode(prompt + new)[0].argmax()))
    assert text == engine.tokenizer.decode(new)


def test_texts_side_by_side_are_what_they_are_alone(engine: Engine) -> None:
    random = np.random.default_rng(1)
    requests = [request(random.integers(3, 300, n).tolist(), 5 + n % 7)
                for n in (1, 20, 3, 17, 2, 40, 9, 12)]  # fmt: skip
    alone = [finish(engine.generate(r))[0] for r in requests]
    built = engine.context.counters.graphs_built
    assert [text for text, _ in side_by_side(engine, requests)] == alone
    assert engine.context.counters.graphs_built == built


def test_a_prefix_is_computed_once(engine: Engine) -> None:
    prompt = list(range(10, 40))
    first, _ = finish(engine.generate(request(prompt)))
    again, last = finish(engine.generate(request(prompt)))
    assert (again, last.n_reused) == (first, 29)
    longer, last = finish(engine.generate(request([*prompt[:20], 99, 98])))
    assert last.n_reused == 20
    fresh = make(1, 128)
    assert finish(fresh.generate(request([*prompt[:20], 99, 98])))[0] == longer
    fresh.close()


def test_running_texts_share_cells_too(engine: Engine) -> None:
    prompt = list(range(100, 130))
    ends: list[Done] = []
    left = threading.Semaphore(0)

    def take(event: Event) -> None:
        if isinstance(event, Done):
            ends.append(event)
            left.release()

    leader = engine.submit(request(prompt, 20), take)
    for _ in range(2):
        engine.submit(request(prompt, 20), take, after=leader)
    for _ in range(3):
        assert left.acquire(timeout=60)
    assert sorted(d.n_reused for d in ends)[1:] == [29, 29]


def test_few_sequences_are_compared_with_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hold a part of it: those that can hold most of it."""
    running = make(12, 1024)
    start = list(range(10, 22))
    side_by_side(running, [request([*start, 30 + i, 50 + i], 30) for i in range(12)])
    compared: list[int] = []
    exact = Context.common_prefix

    def counted(context: Context, seq: int, tokens: list[int]) -> int:
        compared.append(seq)
        return exact(context, seq, tokens)

    monkeypatch.setattr(Context, "common_prefix", counted)
    for prompt, n in (([*start, 37, 57, 99], 14), ([*start, 99], 12), ([98, *start], 0)):
        compared.clear()
        _, last = finish(running.generate(request(prompt, 2)))
        assert last.n_reused == n
        assert len(compared) <= 2 * (n > 0)  # the best one, and again when it is continued
    monkeypatch.setattr(Context, "common_prefix", lambda *_: compared.append(0) or 0)
    finish(running.generate(request([*start, 99], 2)))
    assert len(compared) == MOST_COMPARED
    running.close()


def test_cells_of_cancelled_texts_are_free(engine: Engine) -> None:
    events = engine.generate(request([7, 8, 9], 100))
    next(events)
    events.close()  # type: ignore[attr-defined]
    _, last = finish(engine.generate(request([5] * 100, 29)))  # all cells that there are
    assert (last.reason, last.n_generated) == ("length", 29)


def test_what_a_cancelled_text_has_computed_is_used(engine: Engine) -> None:
    prompt = list(range(10, 40))
    events = engine.generate(request(prompt, 100))
    next(events)
    events.close()  # type: ignore[attr-defined]
    _, last = finish(engine.generate(request(prompt, 3)))
    assert last.n_reused == 29


def test_penalties_see_the_prompt(engine: Engine) -> None:
    """Tokens of the prompt are penalised from the first token on, as in `LLM.generate`."""
    prompt = [5, 9, 40, 7]
    first = Context(engine.context.model, 64, devices=["reference"]).decode(prompt)[0]
    again = [*prompt[:-1], int(first.argmax()), prompt[-1]]  # the likeliest token is in the prompt
    plain = finish(engine.generate(request(again, 1)))[0]
    sampling = replace(GREEDY, repeat_penalty=1e6, repeat_last_n=64)
    logits = Context(engine.context.model, 64, devices=["reference"]).decode(again)[0]
    penalised = logits.copy()
    for token in set(again):
        penalised[token] = logits[token] / 1e6 if logits[token] > 0 else logits[token] * 1e6
    text = finish(engine.generate(request(again, 1, sampling=sampling, penalize_prompt=True)))[0]
    assert plain == engine.tokenizer.decode([int(logits.argmax())])
    assert text == engine.tokenizer.decode([int(penalised.argmax())])


def test_texts_wait_for_cells_and_are_never_cut_short(engine: Engine) -> None:
    """Six texts of 60 cells in 128: two at a time."""
    ended = side_by_side(engine, [request([i + 3] * 30, 31) for i in range(6)])
    assert [(d.reason, d.n_generated) for _, d in ended] == [("length", 31)] * 6


def test_without_a_limit_a_text_takes_what_is_free(engine: Engine) -> None:
    _, last = finish(engine.generate(request([5] * 90, None)))
    # the last token drawn needs no cell
    assert (last.reason, last.n_prompt + last.n_generated) == ("context", 129)


def test_what_can_never_be_served(engine: Engine) -> None:
    with pytest.raises(ContextError, match="the prompt has 129 tokens, but the context holds 128"):
        engine.submit(request([5] * 129), print)
    with pytest.raises(ContextError, match=r"token ids are 0\.\.319, got 320$"):
        engine.submit(request([320]), print)
    with pytest.raises(ContextError, match=r"token ids are 0\.\.319, got 1\.\.321$"):
        engine.submit(request([1, 321]), print)
    with pytest.raises(ContextError, match="no tokens"):
        request([])
    with pytest.raises(ContextError, match="max_tokens is -1"):
        request([1], -1)


def test_one_that_fails_ends_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engine.context.decode

    def failing(batch: StepBatch) -> object:
        if 66 in batch.tokens:
            raise RuntimeError("token 66")
        return decode(batch)

    alone = finish(engine.generate(request([5, 6, 7], 4)))[0]
    monkeypatch.setattr(engine.context, "decode", failing)
    ended = side_by_side(engine, [request([5, 6, 7], 4), request([5, 66, 7], 4)])
    assert ended[0][0] == alone and ended[0][1].reason == "length"
    assert ended[1][1].reason == "error" and "token 66" in str(ended[1][1].error)


def test_a_full_queue() -> None:
    small = make(1, 64, queue=QueueOptions(1))
    events = small.generate(request([5], 60))
    next(events)
    waiting = small.submit(request([6], 2), lambda event: None)
    with pytest.raises(BusyError, match="2 requests are running or waiting"):
        small.submit(request([7], 2), lambda event: None)
    assert small.stats.refused == 1
    waiting.cancel()
    assert finish(events)[1].reason == "length"
    small.close()
    with pytest.raises(BusyError, match="closing"):
        small.submit(request([7], 2), lambda event: None)


def test_closing_ends_what_runs() -> None:
    small = make(2, 128)
    events = small.generate(request([5], 120))
    next(events)
    assert small.run(lambda: 3).result(10) == 3
    small.close()
    assert finish(events)[1].reason == "cancelled"
    assert not small.alive


def test_writers_come_before_prompts() -> None:
    def slot(seq: int, n: int, done: int) -> Slot:
        a_slot = Slot(seq)
        a_slot.tokens, a_slot.n_done = list(range(n)), done
        return a_slot

    slots = [slot(0, 100, 0), slot(1, 5, 4), slot(2, 12, 10), slot(3, 9, 8)]
    step = pack(slots, 16, 8)
    assert [(s.seq, n) for s, n in step.parts] == [(1, 1), (3, 1), (0, 8)]
    assert [(s.seq, at) for s, at in step.wanted] == [(1, 5), (3, 9)]
    assert sum(step.outputs) == 2 and len(step.tokens) == 10
    assert len(pack([slots[0]], 16, 8).tokens) == 16
