"""Going on without a device: wherever and whenever it fails, texts are those of the cpu, and nobody
loses or reads a token twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.llm.llama_models import RELATIVES as ONES
from tests.llm.lost_device import Lost
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Delta, Done, Engine, Event, Request

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"
PROMPTS = ([5, 9, 40, 7], [6, 8, 41, 100, 200, 3, 77], [11, 12])
OPTIONS: dict[str, Any] = {"activations": "f32", "n_threads": 1, "type_k": "f32", "type_v": "f32"}


def on(device: Any, **more: Any) -> dict[str, Any]:
    """Options of a context on a device that has a fallback."""
    return OPTIONS | {"devices": [device, "cpu"], "fallback": ["cpu"]} | more


def test_the_device_is_used() -> None:
    device = Lost()
    context = Context(Model.open(MODEL), 64, **on(device))
    context.decode(PROMPTS[0])
    needs = {need.devices: need for need in context.plan.needs()}
    assert needs["reference",].weights > 0 and needs["reference",].cache > 0
    assert not context.fell_back


# ---- lists of prompts, embeddings, perplexity ----------------------------------------------------


@pytest.mark.parametrize(("what", "after"), [
    ("allocate", 2), ("lower", 0), ("write", 0), ("write", 40), ("run", 0), ("run", 7), ("read", 9),
])  # fmt: skip
def test_a_list_of_prompts(what: str, after: int) -> None:
    """Two at a time, the third when there is room: the texts are those of the cpu."""
    wanted = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    prompts = [list(p) for p in PROMPTS]
    want = weft.LLM(MODEL, n_ctx=96, n_seq_max=2, **OPTIONS).generate(prompts, **wanted)
    device = Lost()
    at_load = what in ("allocate", "lower")
    if at_load:
        device.lose(what, after)
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*reference: {what} failed"):
        llm = weft.LLM(MODEL, n_ctx=96, n_seq_max=2, **on(device))
        if not at_load:
            device.lose(what, after)
        got = llm.generate(prompts, **wanted)
    assert got == want
    assert f"{what} failed" in llm.context.fell_back
    assert [b.name for b in llm.context.plan.backends] == ["cpu"]
    assert llm.generate(prompts, **wanted) == want


@pytest.mark.parametrize("what", ["write", "run", "read"])
def test_chat_embeddings_and_perplexity(what: str) -> None:
    device, template = Lost(), "{{ messages[0].content }}"
    right = weft.LLM(MODEL, n_ctx=64, chat_template=template, **OPTIONS)
    llm = weft.LLM(MODEL, n_ctx=64, chat_template=template, **on(device))
    ids = np.random.default_rng(0).integers(3, 300, 80).tolist()
    want = right.embed([list(p) for p in PROMPTS]), right.perplexity(ids, n_ctx=16)
    said = right.chat([{"role": "user", "content": "a"}], max_tokens=9, temperature=0)
    device.lose(what)
    with pytest.warns(RuntimeWarning, match=f"{what} failed"):
        np.testing.assert_allclose(llm.embed([list(p) for p in PROMPTS]), want[0], atol=1e-4)
    with pytest.warns(RuntimeWarning, match=f"{what} failed"):
        measured = llm.perplexity(ids, n_ctx=16)
    assert measured.value == pytest.approx(want[1].value, rel=1e-4)
    assert measured.n_scored == want[1].n_scored
    with pytest.warns(RuntimeWarning, match=f"{what} failed"):
        got = llm.chat([{"role": "user", "content": "a"}], max_tokens=9, temperature=0)
    assert got == said


def test_what_failed_is_not_tried_again() -> None:
    """A context that is made later begins where the first one went on."""
    device = Lost()
    llm = weft.LLM(MODEL, n_ctx=64, **on(device))
    device.lose("run")
    with pytest.warns(RuntimeWarning, match="run failed"):
        llm.generate(list(PROMPTS[0]), max_tokens=3)
    want = weft.LLM(MODEL, n_ctx=64, **OPTIONS).embed(list(PROMPTS[0]))
    np.testing.assert_allclose(llm.embed(list(PROMPTS[0])), want, atol=1e-4)


def test_a_fallback_that_nobody_knows() -> None:
    """An error at once, not when it is needed."""
    with pytest.raises(weft.DeviceError, match="unknown backend 'tpu'; known backends: "):
        Context(Model.open(MODEL), 64, **OPTIONS, devices=["cpu"], fallback=["tpu"])
    with pytest.raises(weft.ScheduleError, match="list of devices is empty; name one"):
        Context(Model.open(MODEL), 64, **OPTIONS, devices=[])


# ---- sequences of a context ----------------------------------------------------------------------


def logits(context: Context, seq: int, position: int) -> Any:
    return context.decode([50 + seq], [position], seqs=[[seq]])[0]


def forked(context: Context) -> Context:
    """Three sequences that share 6 tokens; 1 and 2 share 3 more; each has some of its own."""
    context.decode(range(10, 16))
    context.seq_cp(0, 1)
    context.decode([30, 31, 32], [6, 7, 8], seqs=[[1]] * 3)
    context.seq_cp(1, 2)
    context.decode([40, 41, 42, 43], [6, 7, 9, 9], seqs=[[0], [0], [1], [2]])
    return context


@pytest.mark.parametrize("n_batch", [None, 4])
def test_sequences_that_share_cells(n_batch: int | None) -> None:
    """They share them afterwards, too, and see what they saw."""
    model, device = Model.open(MODEL), Lost()
    want = forked(Context(model, 64, n_seq_max=3, **OPTIONS))
    context = forked(Context(model, 64, n_seq_max=3, **on(device)))
    if n_batch is not None:
        context.n_batch = n_batch
    device.lose("run")
    with pytest.warns(RuntimeWarning, match="run failed"):
        np.testing.assert_allclose(logits(context, 1, 10), logits(want, 1, 10), atol=1e-4)
    for seq, position in ((0, 8), (2, 10)):
        got = logits(context, seq, position)
        np.testing.assert_allclose(got, logits(want, seq, position), atol=1e-4)
    assert context.cache.n_used == want.cache.n_used
    assert (context.cache.members.sum(axis=1) == want.cache.members.sum(axis=1)).all()
    text = [*range(10, 16), 30, 31, 32, 42, 51, 7]
    assert context.reuse_prefix(1, text) == want.reuse_prefix(1, text) == 11


def test_a_text_without_its_beginning_is_lost() -> None:
    """It was computed with what is gone in view; the others go on."""
    model, device = Model.open(MODEL), Lost()
    ctx = Context(model, 64, n_seq_max=2, **on(device))
    want = Context(model, 64, n_seq_max=2, **OPTIONS)
    for context in (ctx, want):
        context.decode(range(10, 22))
        context.decode(range(30, 36), range(6), seqs=[[1]] * 6)
    ctx.drop_oldest(0, 2, 4)
    ctx.decode([9], [8])
    device.lose("read")
    with (
        pytest.warns(RuntimeWarning, match="read failed"),
        pytest.raises(
            weft.DeviceError, match=r"sequence 0 cannot .* from its start: .*read failed"
        ),
    ):
        ctx.decode([9], [9])
    assert (ctx.pos_max(0), ctx.pos_max(1)) == (-1, 5)
    np.testing.assert_allclose(logits(ctx, 1, 6), logits(want, 1, 6), atol=1e-4)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2", "gemma2"])
def test_states_and_windows(name: str, tmp_path: Path) -> None:
    """A fork of a recurrent state is made anew; so are cells that a window has dropped."""
    arch, changes = (ONES if name == "gemma2" else OTHERS)[name]
    meta = keys_of(arch, changes)
    model = Model.open(write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta))))
    options = {"n_ubatch": 5, "n_seq_max": 2, "swa_full": False}
    device = Lost()
    ctx = Context(model, 48, **on(device, **options))
    want = Context(model, 48, **OPTIONS, **options)
    for context in (ctx, want):
        context.decode(range(10, 23))
        context.seq_cp(0, 1)
        context.decode([30, 31, 32], [13, 14, 13], seqs=[[0], [0], [1]])
    device.lose("run")
    with pytest.warns(RuntimeWarning, match="run failed"):
        np.testing.assert_allclose(logits(ctx, 1, 14), logits(want, 1, 14), atol=1e-4)
    np.testing.assert_allclose(logits(ctx, 0, 15), logits(want, 0, 15), atol=1e-4)


def test_a_fallback_that_fails_too() -> None:
    """The error is the second one's, and the context goes on where it can again."""
    model, first, second = Model.open(MODEL), Lost(), Lost()
    context = Context(model, 64, **on(first, fallback=[second, "cpu"]))
    context.decode(PROMPTS[0])
    first.lose("run")
    second.lose("run", 1)
    with pytest.warns(RuntimeWarning), pytest.raises(weft.DeviceError, match="run failed"):
        for i in range(4):
            context.decode([5], [4 + i])
    assert context.pos_max(0) + 1 == context.cache.n_used
    second.lose("")
    context.clear()
    want = Context(model, 64, **OPTIONS).decode(PROMPTS[0])
    np.testing.assert_allclose(context.decode(PROMPTS[0]), want, atol=1e-4)


# ---- the engine ----------------------------------------------------------------------------------


def run_all(engine: Engine, device: Lost | None = None, what: str = "", at: int = 0) -> list[Any]:
    """Each request's pieces and its end; the device is lost with the `at`th event."""
    requests = [
        Request(
            tuple(prompt),
            max_tokens=14,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=0 if i == 1 else None,
            sampling=SamplingParams(temperature=0.8, seed=i),
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    results: list[list[Event]] = [[] for _ in requests]
    left, seen = threading.Semaphore(0), [0]

    def take(i: int, event: Event) -> None:
        results[i].append(event)
        seen[0] += 1
        if device is not None and seen[0] == at:
            device.lose(what)
        if isinstance(event, Done):
            left.release()

    for i, request in enumerate(requests):
        engine.submit(request, lambda event, i=i: take(i, event))  # type: ignore[misc]
    for _ in requests:
        assert left.acquire(timeout=120)
    return results


def engine_on(**options: Any) -> Engine:
    file = open_gguf(MODEL)
    context = Context(Model(file), 96, n_seq_max=2, n_ubatch=16, n_outputs=16, **options)
    return Engine(context, Tokenizer.from_gguf(file))


def told(events: Sequence[Event]) -> tuple[str, list[int], str]:
    """Text, tokens, and why it ended."""
    deltas = [e for e in events if isinstance(e, Delta)]
    last = events[-1]
    assert isinstance(last, Done)
    return "".join(d.text for d in deltas), [t.id for d in deltas for t in d.tokens], last.reason


@pytest.fixture(scope="module")
def right() -> list[Any]:
    engine = engine_on(**OPTIONS)
    try:
        return [told(events) for events in run_all(engine)]
    finally:
        engine.close()


@pytest.mark.parametrize("at", [1, 9, 30])
@pytest.mark.parametrize("what", ["write", "run", "read"])
def test_streams_go_on(right: list[Any], what: str, at: int) -> None:
    """Three streams over two sequences: no token is lost, none comes twice; later ones work."""
    device = Lost()
    engine = engine_on(**on(device))
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{what} failed"):
        results = run_all(engine, device, what, at)
    assert [told(events) for events in results] == right
    assert f"{what} failed" in engine.context.fell_back
    again = run_all(engine)
    assert [told(events) for events in again] == right
    assert engine.stats.ended == {"length": 6}
    engine.close()


@pytest.mark.parametrize("what", ["allocate", "lower", "write"])
def test_an_engine_whose_device_fails_at_load(right: list[Any], what: str) -> None:
    device = Lost()
    device.lose(what, 0)
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{what} failed"):
        engine = engine_on(**on(device))
    assert [told(events) for events in run_all(engine)] == right
    engine.close()


@pytest.mark.parametrize("what", ["write", "run", "read"])
def test_an_engine_without_a_fallback(right: list[Any], what: str) -> None:
    """Each text ends with the device's error; once it works again, so do texts."""
    device = Lost()
    engine = engine_on(**on(device, fallback=None))
    for events in run_all(engine, device, what, 9):
        last = events[-1]
        assert isinstance(last, Done) and last.reason == "error"
        assert isinstance(last.error, weft.DeviceError) and f"{what} failed" in str(last.error)
    assert engine.alive
    device.lose("")
    assert [told(events) for events in run_all(engine)] == right
    engine.close()


def test_texts_begin_anew(right: list[Any]) -> None:
    """When computing texts anew fails too, and the device then works, no text goes on with an empty
    cache."""
    first, second = Lost(), Lost()
    engine = engine_on(**on(first, fallback=[second, "cpu"]))
    second.lose("run", once=True)
    with pytest.warns(RuntimeWarning, match="going on with reference"):
        results = run_all(engine, first, "run", 9)
    assert [told(events) for events in results] == right
    engine.close()


def test_an_engine_whose_fallback_fails_too(right: list[Any]) -> None:
    """Texts end with the error; those that come when it works again are right."""
    first, second = Lost(), Lost()
    engine = engine_on(**on(first, fallback=[second, "cpu"]))
    second.lose("run", 0)
    with pytest.warns(RuntimeWarning, match="going on with reference"):
        results = run_all(engine, first, "run", 9)
    assert all(told(events)[2] == "error" for events in results)
    second.lose("")
    assert [told(events) for events in run_all(engine)] == right
    engine.close()
