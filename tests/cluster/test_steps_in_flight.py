"""Steps of groups of texts that are under way at the same time over two workers: the bits of one
machine, with kills and cancels in between."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.worker_processes import WorkerProcess
from weft.errors import ContextError
from weft.llm import Batch, Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Delta, Done, Engine, Event, Request, Ticket

pytestmark = [pytest.mark.usefixtures("soon"), pytest.mark.xdist_group("workers")]

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/weft-demo.gguf"
STREAMS = 16
SIZES: dict[str, Any] = {"n_ubatch": 32, "n_seq_max": STREAMS, "n_outputs": 32, "n_threads": 1}
WORDS = "What is 17 + 25? Count from 3 to 9. Spell the word house. List the days: Monday".split()


class Text:
    """A request and what came of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.events: list[Event] = []
        self.ended = threading.Event()
        self.drew = threading.Event()
        """It has five tokens."""

    def submit(self, engine: Engine) -> Ticket:
        return engine.submit(self.request, self._on_event)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) == 5:
            self.drew.set()
        if isinstance(event, Done):
            self.drew.set()
            self.ended.set()

    @property
    def result(self) -> Any:
        """Its end, its text, and the log-probabilities of its tokens to the last bit."""
        deltas = [e for e in self.events if isinstance(e, Delta)]
        done = self.events[-1]
        assert isinstance(done, Done)
        tokens = [token for delta in deltas for token in delta.tokens]
        return done.reason, done.ids, "".join(d.text for d in deltas), tokens


def requests(tokenizer: Tokenizer) -> list[Request]:
    """Texts of many kinds: short and long prompts, drawn tokens, a constraint."""
    made = []
    for i in range(STREAMS + 4):
        words = [WORDS[(i * 5 + k * (i % 3 + 1)) % len(WORDS)] for k in range(4 + 9 * (i % 5))]
        sampling = SamplingParams(temperature=0 if i % 2 else 0.9, seed=i)
        if i == 3:
            sampling = SamplingParams(temperature=0, regex="[0-9]{1,8}")
        made.append(
            Request(
                tuple(tokenizer.encode(" ".join(words))), max_tokens=12 + i, sampling=sampling,
                logprobs=2, ignore_eos=True,
            )
        )  # fmt: skip
    return made


def context(machines: Sequence[WorkerProcess], n_ctx: int = 4096, **more: Any) -> Context:
    options = SIZES | ({"machines": [w.address for w in machines]} if machines else {}) | more
    return Context(Model.open(DEMO), n_ctx, **options)


def engine_of(ctx: Context) -> Engine:
    return Engine(ctx, Tokenizer.from_gguf(ctx.model.file), prompt_share=16)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """The texts on one machine, one at a time."""
    engine = engine_of(context([]))
    try:
        texts = [Text(request) for request in requests(engine.tokenizer)]
        for text in texts:
            text.submit(engine)
            assert text.ended.wait(60)
        return [text.result for text in texts]
    finally:
        engine.close()


def write(engine: Engine, between: Any = None) -> list[Text]:
    """Writes all texts, in two waves; `between` is called when the first has some tokens."""
    texts = [Text(request) for request in requests(engine.tokenizer)]
    for text in texts[:STREAMS]:
        text.submit(engine)
    assert texts[0].drew.wait(60)
    if between is not None:
        between()
    for text in texts[STREAMS:]:
        text.submit(engine)
    for text in texts:
        assert text.ended.wait(60)
    return texts


def test_texts_are_those_of_one_machine(two: list[WorkerProcess], expected: list[Any]) -> None:
    ctx = context(two)
    assert ctx.most_in_flight == 2
    engine = engine_of(ctx)
    try:
        for _ in range(2):  # the second time, prompts are in the cache
            assert [text.result for text in write(engine)] == expected
        assert engine._writer._flights.n_submitted > 50
        assert engine.stats.reused_tokens
        # between two steps nothing is in flight
        assert engine.run(lambda: len(ctx._in_flight)).result(10) == 0
    finally:
        engine.close()
    assert context([]).most_in_flight == 1


def test_cancelled_texts_leave_the_others_alone(
    two: list[WorkerProcess], expected: list[Any]
) -> None:
    engine = engine_of(context(two))
    try:
        texts = [Text(request) for request in requests(engine.tokenizer)]
        tickets = [text.submit(engine) for text in texts]
        assert texts[0].drew.wait(60)
        for ticket in tickets[::3]:
            ticket.cancel()
        for text in texts:
            assert text.ended.wait(60)
        for i, text in enumerate(texts):
            reason, ids = text.result[:2]
            if i % 3 == 0 and reason == "cancelled":
                assert ids == expected[i][1][: len(ids)]
            else:
                assert text.result == expected[i]
        assert engine.n_running == 0
        assert [text.result for text in write(engine)] == expected
    finally:
        engine.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.part("faults"))])
def test_a_killed_worker_costs_no_token(
    two: list[WorkerProcess], expected: list[Any], victim: int
) -> None:
    """The steps that were in flight are computed again, too."""
    engine = engine_of(context(two))
    try:
        with pytest.warns(RuntimeWarning, match=f"{two[victim].address} is back"):
            texts = write(engine, lambda: two[victim].signal(signal.SIGKILL))
        assert [text.result for text in texts] == expected
        assert engine.stats.ended["error"] == 0
    finally:
        engine.close()


def test_an_engine_ends_with_steps_in_flight(two: list[WorkerProcess]) -> None:
    engine = engine_of(context(two))
    texts = [Text(request) for request in requests(engine.tokenizer)]
    for text in texts:
        text.submit(engine)
    assert texts[0].drew.wait(60)
    engine.close()
    assert all(text.ended.wait(10) for text in texts)
    assert {text.result[0] for text in texts} <= {"cancelled", "stop", "length"}
    assert len(engine.context._in_flight) == 0


def test_a_list_of_prompts(two: list[WorkerProcess]) -> None:
    """`LLM` writes several texts in steps in flight, too; a generator may be left half way."""
    prompts = ["What is 3 + 4?", "Spell the word tree.", "Count from 2 to 6.", "What is 9 - 5?"]
    wanted: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
    with weft.LLM(DEMO, n_seq_max=4, n_threads=1) as here:
        texts = here.generate(prompts, **wanted)
        alone = here.generate(prompts[0], **wanted)
    with weft.LLM(DEMO, n_seq_max=4, machines=[w.address for w in two]) as llm:
        assert llm.context.most_in_flight == 2
        assert llm.generate(prompts, **wanted) == texts
        for number, _ in enumerate(llm.generate(prompts, stream=True, **wanted)):
            if number == 5:
                break
        assert llm.generate(prompts[0], **wanted) == alone


# ---- contexts ------------------------------------------------------------------------------------


def step_of(seqs: Sequence[int], position: int, token: int = 5) -> Batch:
    n = len(seqs)
    tokens = [token + s for s in seqs]
    return Batch(tokens, [position] * n, [[s] for s in seqs], [True] * n)


def test_submit_and_collect(two: list[WorkerProcess]) -> None:
    here, there = context([]), context(two)
    for position in range(4):
        steps = [there.submit(step_of(seqs, position)) for seqs in ([0, 1, 2], [3, 4])]
        for step, seqs in zip(steps, ([0, 1, 2], [3, 4]), strict=True):
            assert step is not None
            rows = step.collect()
            np.testing.assert_array_equal(rows, here.decode(step_of(seqs, position)))
            assert step.collect() is rows
    assert there.save_state() == here.save_state()


def test_what_cannot_be_submitted(two: list[WorkerProcess]) -> None:
    there = context(two)
    first, second = there.submit(step_of([0, 1], 0)), there.submit(step_of([2], 0))
    assert first is not None and second is not None
    with pytest.raises(ContextError, match="2 steps are in flight; collect the oldest"):
        there.submit(step_of([3], 0))
    with pytest.raises(ContextError, match="2 steps are in flight; collect them first"):
        there.decode([5])
    with pytest.raises(ContextError, match="an older step is in flight"):
        second.collect()
    first.collect()
    with pytest.raises(ContextError, match="token ids are"):
        there.submit(Batch([-1], [1], [[0]]))
    assert second.collect().shape[0] == 1  # it goes on
    assert there.submit(Batch([5] * 40, range(1, 41), [[0]] * 40)) is None  # more than a ubatch
    there.seq_rm(0, 0, 1)
    there.seq_add(1, 0, -1, 3)
    assert there.submit(step_of([1], 4)) is None  # keys are to be rotated
    assert there.cache.n_used == 2
    there.decode(step_of([1], 4))
    assert there.submit(step_of([1], 5)) is not None


def test_a_stopped_context_is_as_before(two: list[WorkerProcess]) -> None:
    here, there = context([]), context(two)
    for ctx in (here, there):
        ctx.decode(step_of(range(6), 0))
    steps = [there.submit(step_of(seqs, 1)) for seqs in ([0, 1, 2], [3, 4])]
    there.abort()
    for step, error in zip(steps, (weft.AbortedError, ContextError), strict=True):
        assert step is not None
        with pytest.raises(error):
            step.collect()
        assert step.given_up
    assert there.cache.n_used == 6
    for seqs in ([0, 1, 2], [3, 4, 5]):
        step = there.submit(step_of(seqs, 1))
        assert step is not None
        np.testing.assert_array_equal(step.collect(), here.decode(step_of(seqs, 1)))


@pytest.mark.usefixtures("patient")
@pytest.mark.part("faults")
def test_steps_are_computed_again_after_a_fault(two: list[WorkerProcess]) -> None:
    here, there = context([]), context(two)
    for ctx in (here, there):
        ctx.decode(step_of(range(6), 0))
    groups = ([0, 1, 2], [3, 4, 5])
    steps = [there.submit(step_of(seqs, 1)) for seqs in groups]
    two[1].signal(signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="is back"):
        for position in (1, 2, 3):
            for step, seqs in zip(steps, groups, strict=True):
                assert step is not None
                np.testing.assert_array_equal(step.collect(), here.decode(step_of(seqs, position)))
            steps = [there.submit(step_of(seqs, position + 1)) for seqs in groups]
        for step in steps:
            assert step is not None
            step.collect()
    assert there.cache.n_used == 30
