"""Waiting texts start, and prompts are read, in the order of their turns, which never changes."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.engine_requests import finish, request
from weft.errors import BusyError, ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, Tokenizer
from weft.llm.engine import Done, Engine, Event, admission
from weft.llm.engine.admission import AGEING, LONGEST, MOST_RETRY, Admission, QueueOptions
from weft.llm.engine.request import Ticket
from weft.llm.engine.writer import Writer

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(MODEL))


def writer(tokenizer: Tokenizer, n_seq: int, n_ctx: int, **options: object) -> Writer:
    context = Context(Model(open_gguf(MODEL)), n_ctx, n_seq_max=n_seq, n_ubatch=32,
                      n_outputs=n_seq, devices=["reference"])  # fmt: skip
    return Writer(context, tokenizer, **options)  # type: ignore[arg-type]


def ticket(tokenizer: Tokenizer, prompt: list[int], asked: float, n: int = 2) -> Ticket:
    text = Ticket(request(prompt, n), tokenizer, lambda event: None)
    text.times.asked = asked
    return text


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(admission, "monotonic", lambda: self.now)


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 200)), min_size=2, max_size=12))
def test_a_text_is_overtaken_for_a_bounded_time(
    tokenizer: Tokenizer, texts: list[tuple[int, float]]
) -> None:
    queue = Admission()
    for n, asked in sorted(texts, key=lambda pair: pair[1]):
        queue.add(ticket(tokenizer, [5] * n, asked), n, 0.05)
    for first, then in pairwise(queue):
        overtakes = first.times.asked - then.times.asked
        assert overtakes <= min(AGEING * 0.05 * len(then.request.prompt), LONGEST) + 1e-6
        if overtakes > 0:  # it has less to compute
            assert len(first.request.prompt) < len(then.request.prompt)


def test_policies_order_texts(tokenizer: Tokenizer) -> None:
    for policy, order in (("shortest", [3, 9, 30]), ("fcfs", [30, 3, 9])):
        queue = Admission(QueueOptions(scheduling_policy=policy))  # type: ignore[arg-type]
        for at, n in enumerate((30, 3, 9)):
            queue.add(ticket(tokenizer, [5] * n, 0.001 * at), n, 0.01)
        assert [len(text.request.prompt) for text in queue] == order
    with pytest.raises(ContextError, match=r"scheduling_policy.*shortest, fcfs"):
        QueueOptions(scheduling_policy="priority")  # type: ignore[arg-type]
    with pytest.raises(ContextError, match="max_wait"):
        QueueOptions(max_wait=-1)
    with pytest.raises(ContextError, match="max_queue is -1; it must be 0 or more"):
        QueueOptions(max_queue=-1)


def test_prompts_are_read_in_turn(tokenizer: Tokenizer) -> None:
    """The short prompt is read first although the long one has started, and before it has ended."""
    running = writer(tokenizer, 2, 256, prompt_share=8)
    long, short = ticket(tokenizer, [*range(10, 90)], 1.0), ticket(tokenizer, [7, 8, 9], 1.001)
    running.add(long)
    running.schedule()
    running.add(short)
    batch = running.schedule()
    assert [(slot.seq, n) for slot, n in batch.parts] == [(1, 3), (0, 29)]
    while running.step():
        pass
    assert (long.growth.n_drawn, short.growth.n_drawn) == (2, 2)


def test_what_is_in_the_cache_is_not_counted(tokenizer: Tokenizer) -> None:
    """A long conversation that goes on has little to compute, and starts before a new prompt."""
    running = writer(tokenizer, 1, 256)
    history = list(range(10, 90))
    running.add(ticket(tokenizer, history, 1.0))
    while running.step():
        pass
    running.add(ticket(tokenizer, list(range(100, 130)), 2.0))
    running.add(ticket(tokenizer, [*history, 3, 4], 2.0))
    assert [len(text.request.prompt) for text in running.waiting] == [82, 30]


def test_a_shared_beginning_is_computed_once(tokenizer: Tokenizer) -> None:
    """Texts wait until it has been computed by the first one, then all start."""
    running = writer(tokenizer, 4, 512, prompt_share=8)
    system = np.random.default_rng(3).integers(3, 300, 64).tolist()
    texts = [ticket(tokenizer, [*system, *range(10 * i, 10 * i + 5 * i)], 1.0) for i in range(1, 4)]
    other = ticket(tokenizer, list(range(200, 290)), 1.0)
    for text in (*texts, other):
        running.add(text)
    running.step()
    assert running.n_running == 2  # the first of the texts, and the one that shares nothing
    while running.step():
        pass
    assert [text.n_reused for text in texts] == [0, 64, 64]
    assert running.stats.prompt_tokens == 64 + 5 + 10 + 15 + 90
    alone = writer(tokenizer, 1, 512)
    for text in texts:
        same = ticket(tokenizer, list(text.request.prompt), 1.0)
        alone.add(same)
        while alone.step():
            pass
        assert same.growth.ids == text.growth.ids


def test_a_text_does_not_wait_for_one_that_was_cancelled(tokenizer: Tokenizer) -> None:
    running = writer(tokenizer, 2, 512, prompt_share=8)
    system = np.random.default_rng(4).integers(3, 300, 100).tolist()
    first, second = (ticket(tokenizer, [*system, i], 1.0 + i) for i in range(2))
    running.add(first)
    running.add(second)
    running.step()
    assert (running.n_running, second.n_reused) == (1, 0)
    first.cancel()
    running.step()
    assert running.texts().count(second) == 1
    while running.step():
        pass
    assert second.n_reused >= 32 and second.growth.n_drawn == 2


def test_who_waits_for_a_shared_beginning_lends_it_its_turn(tokenizer: Tokenizer) -> None:
    """Else a text behind would start before one that has less to compute."""
    running = writer(tokenizer, 3, 512)
    system = list(range(10, 74))
    running.add(ticket(tokenizer, [*system, *([5] * 99)], 1.0))
    running.schedule()
    short = ticket(tokenizer, [*system, 3], 1.0)
    running.add(short)
    running.add(ticket(tokenizer, list(range(100, 190)), 1.0))
    parts = running.schedule().parts
    assert [slot.due for slot, _ in parts] == [short.turn]


def test_a_turn_is_lent_for_the_shared_beginning_only(tokenizer: Tokenizer) -> None:
    """Else a long prompt would be read before all that came after a short one that shares some."""
    running = writer(tokenizer, 3, 512, prompt_share=8)
    system = list(range(10, 74))
    long = ticket(tokenizer, [*system, *([5] * 99)], 1.0)
    running.add(long)
    running.schedule()
    running.add(ticket(tokenizer, [*system, 3], 1.0))
    while long.n_read < len(system):
        running.step()
    other = ticket(tokenizer, list(range(100, 180)), 1.0)
    running.waiting.add(other, 80, 0.001)  # between the turns of both
    while not other.prompt_done:
        running.step()
    assert not long.prompt_done


def test_a_text_that_waits_too_long_ends(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    running = writer(tokenizer, 1, 128, admission=Admission(QueueOptions(max_wait=5.0)))
    ends: list[Event] = []
    late = Ticket(request([5, 6], 2), tokenizer, ends.append)
    for text in (ticket(tokenizer, [7], clock.now, 30), late):
        text.times.asked = clock.now
        running.add(text)
    clock.now += 4.9
    running.step()
    assert (len(running.waiting), ends) == (1, [])
    assert running.waiting.longest == pytest.approx(4.9)
    clock.now += 0.2
    running.step()
    assert (len(running.waiting), running.stats.late) == (0, 1)
    assert isinstance(ends[0], Done) and isinstance(ends[0].error, BusyError)
    assert "waited 5 s" in str(ends[0].error)


def test_a_text_that_can_start_is_not_too_late(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may take longer than a text may wait, and the text came while it was computed."""
    clock = Clock(monkeypatch)
    running = writer(tokenizer, 2, 128, admission=Admission(QueueOptions(max_wait=5.0)))
    texts = [ticket(tokenizer, [5 + i], clock.now) for i in range(3)]
    for text in texts:
        running.add(text)
    clock.now += 6.0
    running.schedule()
    assert [text.times.started for text in texts] == [clock.now, clock.now, 0.0]
    assert (running.n_running, len(running.waiting), running.stats.late) == (2, 0, 1)


def test_other_answers_to_a_prompt_that_has_started_are_not_too_late(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request whose answers are written one after another could never end."""
    clock = Clock(monkeypatch)
    running = writer(tokenizer, 1, 128, admission=Admission(QueueOptions(max_wait=5.0)))
    first = ticket(tokenizer, [5, 6], clock.now)
    second = Ticket(first.request, tokenizer, lambda event: None, after=first)
    second.times.asked = clock.now
    running.add(first)
    running.add(second)
    running.step()
    clock.now += 6.0
    while running.step():
        pass
    assert (second.growth.n_drawn, running.stats.late) == (2, 0)


def test_the_expected_wait_follows_the_starts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    queue = Admission()
    assert queue.expected(9) == 0.0
    texts = [ticket(tokenizer, [5] * n, clock.now) for n in range(1, 9)]
    for text in texts:
        queue.add(text, 1, None)
    for text in texts[:4]:
        clock.now += 2.0
        queue.start(text)
    assert queue.expected(10) == pytest.approx(20.0)
    clock.now += 8.0  # nothing starts
    assert queue.expected(10) == pytest.approx(40.0)
    assert queue.busy("full", 10).retry_after == 40
    assert queue.busy("full", 1000).retry_after == MOST_RETRY
    assert queue.n_tokens == 5 + 6 + 7 + 8
    for text in texts[4:]:
        queue.start(text)
    clock.now += 3600.0  # the rate of an earlier crowd says nothing
    queue.add(texts[0], 1, None)
    assert queue.expected(10) == 0.0


def test_slots_that_are_about_to_be_free_are_expected(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight texts that started together end together: the first start comes late, then eight."""
    clock = Clock(monkeypatch)
    queue = Admission(QueueOptions(max_wait=600.0), n_slots=8)
    texts = [ticket(tokenizer, [5] * n, clock.now) for n in range(1, 21)]
    for text in texts:
        queue.add(text, 1, None)
    clock.now += 200.0
    assert queue.expected(4) == pytest.approx(100.0)
    queue.start(texts[0])
    assert queue.expected(4) == pytest.approx(100.0)
    for text in texts[1:16]:
        queue.start(text)
    assert queue.expected(4) == pytest.approx(50.0)


def test_who_would_wait_too_long_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_gguf(MODEL)
    context = Context(Model(file), 64, n_seq_max=1, n_ubatch=32, n_outputs=1,
                      devices=["reference"])  # fmt: skip
    engine = Engine(context, Tokenizer.from_gguf(file), queue=QueueOptions(max_wait=5.0))
    expected = [0.0]
    monkeypatch.setattr(Admission, "expected", lambda self, n: expected[0])
    ended = threading.Event()
    engine.submit(request([7], 2), lambda e: ended.set() if isinstance(e, Done) else None)
    assert ended.wait(60)
    expected[0] = 7.2
    with pytest.raises(BusyError, match=r"about 7\.2 s") as refused:
        engine.submit(request([7], 2), lambda event: None)
    assert refused.value.retry_after == 8
    assert engine.stats.refused == 1
    assert engine.run(lambda: 3).result(60) == 3  # between two steps, whoever waits
    expected[0] = 4.0
    assert finish(engine.generate(request([7], 2)))[1].reason == "length"
    engine.close()
