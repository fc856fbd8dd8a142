"""Texts by diffusion, through `LLM` and the engine, against the loop without an engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.llm.diffusion_models import MASK, make_diffusion
from tests.llm.engine_requests import finish, side_by_side
from tests.llm.tiny import write_model
from weft import bounds
from weft.errors import ContextError
from weft.llm import Context, SamplingParams
from weft.llm.engine import Delta, Done, Engine, Event, Request
from weft.llm.model import Model
from weft.llm.opening import Opening
from weft.llm.planning.draft_options import DIFFUSION_ROWS, DraftOptions
from weft.llm.sampling.diffusion import Canvas
from weft.serve.options import ServeOptions
from weft.serve.sizes import open_served

GREEDY: dict[str, Any] = {"temperature": 0}
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 7, "diffusion_algorithm": "entropy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion")
    for arch in ("llada", "dream"):
        make_diffusion(folder, arch)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[weft.LLM]:
    with weft.LLM(folder / "llada.gguf", n_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    opening = Opening(folder / "dream.gguf", drafting=None)
    engine = Engine(opening.load(n_seq_max=4, n_ctx=40).context, opening.tokenizer)
    yield engine
    engine.close()


def alone(path: Path, prompt: list[int], n: int, **options: Any) -> list[int]:
    """The answer by a loop of whole texts, each step in a sequence of its own."""
    model = Model.open(path)
    context, usual = Context(model, 64, devices=["cpu"]), model.config.diffusion
    assert usual is not None
    canvas = Canvas(prompt, n, SamplingParams(**options), mask=MASK, usual=usual)

    def rows(ids: Any) -> Any:
        context.clear()
        return context.decode(ids, outputs="all")

    while len(canvas.wanted):
        logits = rows(canvas.ids)
        if scale := options.get("diffusion_cfg_scale"):
            masked = canvas.ids.copy()
            masked[: canvas.start] = MASK
            other = rows(masked)
            logits = other + (1 + scale) * (logits - other)
        canvas.write(logits[canvas.rows])
    return canvas.answer.tolist()


@pytest.mark.parametrize("arch", ["llada", "dream"])
def test_a_text_is_that_of_the_loop(folder: Path, arch: str) -> None:
    path = folder / f"{arch}.gguf"
    with weft.LLM(path, n_threads=2) as llm:
        prompt = llm.tokenize("the abc")
        for options in (GREEDY, WARM, GREEDY | {"diffusion_cfg_scale": 0.7},
                        WARM | {"diffusion_eps": 0.01, "diffusion_steps": 5}):  # fmt: skip
            text = llm.generate("the abc", max_tokens=20, ignore_eos=True, **options)
            want = alone(path, prompt, 20, **options)
            assert text == llm.detokenize(want) and text.finish_reason == "length"
            assert text.usage.completion_tokens == 20 and text.usage.cached_tokens == 0


def test_pieces_are_the_text_and_come_as_they_are_settled(llm: weft.LLM) -> None:
    for options in (GREEDY, WARM, {"seed": 3, "diffusion_block_length": 2}):
        whole = llm.generate("the abc", max_tokens=24, **options)
        stream = llm.generate("the abc", max_tokens=24, stream=True, **options)
        pieces = list(stream)
        assert "".join(pieces) == whole == stream.completion and len(pieces) > 1


def test_seeds_give_the_same_text(llm: weft.LLM) -> None:
    def draw(seed: int) -> str:
        return llm.generate("a", max_tokens=12, temperature=2.0, top_k=0, seed=seed)

    assert draw(1) == draw(1) and len({draw(seed) for seed in range(4)}) > 1


def test_texts_together_are_those_alone(llm: weft.LLM) -> None:
    prompts = ["the abc", "a", "b the abc the"]
    together = llm.generate(prompts, max_tokens=16, **GREEDY)
    assert together == [llm.generate(p, max_tokens=16, **GREEDY) for p in prompts]
    assert not llm.context.cache.n_used


def test_a_text_ends_where_it_is_settled(llm: weft.LLM, folder: Path) -> None:
    ids = alone(folder / "llada.gguf", llm.tokenize("the abc"), 20, **GREEDY)
    end = next(id_ for id_ in ids[8:] if id_ not in ids[:8])
    n = ids.index(end)
    short = llm.generate("the abc", max_tokens=20, stop_token_ids=[end], **GREEDY)
    assert short == llm.detokenize(ids[:n]) and short.finish_reason == "stop"
    assert short.usage.completion_tokens == n + 1
    whole = llm.generate("the abc", max_tokens=20, ignore_eos=True, **GREEDY)
    stop = whole[len(whole) // 2 :][:2]
    cut = llm.generate("the abc", max_tokens=20, stop=stop, **GREEDY)
    assert cut == whole[: whole.index(stop)] and cut.finish_reason == "stop"
    assert llm.generate("the abc", **GREEDY).finish_reason in ("stop", "context")


def test_an_end_token_spares_the_blocks_behind_it(
    llm: weft.LLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, decode = [], llm.context.decode

    def counted(batch: Any) -> Any:
        n.append(1)
        return decode(batch)

    monkeypatch.setattr(llm.context, "decode", counted)
    options = GREEDY | {"diffusion_block_length": 4}
    ids = alone(folder / "llada.gguf", llm.tokenize("the abc"), 32, **options)
    for ends, most in (([], 32), ([ids[0]], 4)):
        n.clear()
        llm.generate("the abc", max_tokens=32, stop_token_ids=ends, ignore_eos=True, **options)
        assert most - 3 <= len(n) <= most


def test_several_requests_take_turns(engine: Engine) -> None:
    """Two long texts fill a step each; a short one does not wait for the end of either."""
    order: list[int] = []
    left = threading.Semaphore(0)

    def note(i: int, event: Event) -> None:
        if isinstance(event, Done):
            order.append(i)
            left.release()

    sampling = SamplingParams(**GREEDY)
    for i, n in enumerate((30, 30, 8)):
        one = Request((1, 260, 261), max_tokens=n, sampling=sampling, ignore_eos=True)
        engine.submit(one, lambda event, i=i: note(i, event))  # type: ignore[misc]
    for _ in range(3):
        assert left.acquire(timeout=60)
    assert order[0] == 2 and engine.context.cache.n_used == 0


def test_the_same_text_beside_others(engine: Engine) -> None:
    requests = [
        Request((1, 260, 261 + i), max_tokens=9, sampling=SamplingParams(**WARM)) for i in range(6)
    ]
    for one, (text, end) in zip(requests, side_by_side(engine, requests), strict=True):
        assert (text, end.reason) == ((own := finish(engine.generate(one)))[0], own[1].reason)


def test_a_text_is_cancelled_between_steps(engine: Engine) -> None:
    texts: list[Event] = []
    ended = threading.Event()

    def note(event: Event) -> None:
        texts.append(event)
        if isinstance(event, Delta):
            ticket.cancel()
        elif isinstance(event, Done):
            ended.set()

    sampling = SamplingParams(diffusion_block_length=1, **GREEDY)
    one = Request((1, 260), max_tokens=36, sampling=sampling, ignore_eos=True, special=True)
    ticket = engine.submit(one, note)
    assert ended.wait(60)
    done = texts[-1]
    assert isinstance(done, Done) and done.reason == "cancelled" and done.n_generated < 36


def test_a_text_that_fails_ends_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engine.context.decode

    def broken(batch: Any) -> Any:
        if 265 in batch.tokens:
            raise RuntimeError("broken")
        return decode(batch)

    sampling = SamplingParams(**GREEDY)
    requests = [
        Request((1, 260, id_), max_tokens=4, sampling=sampling, ignore_eos=True)
        for id_ in (261, 265, 262)
    ]
    want = [finish(engine.generate(one))[0] for one in requests]
    monkeypatch.setattr(engine.context, "decode", broken)
    ends = side_by_side(engine, requests)
    assert [end.reason for _, end in ends] == ["length", "error", "length"]
    assert [text for text, _ in ends][::2] == want[::2] and "broken" in str(ends[1][1].error)


def test_lengths(engine: Engine) -> None:
    def end(n: int | None, n_prompt: int = 2) -> Done:
        one = Request((1, *[260] * n_prompt), max_tokens=n, sampling=SamplingParams(**GREEDY),
                      ignore_eos=True)  # fmt: skip
        return finish(engine.generate(one))[1]

    assert (end(0).reason, end(0).n_generated) == ("length", 0)
    assert (end(5).reason, end(5).n_generated) == ("length", 5)
    assert (end(99).reason, end(99).n_generated) == ("context", 37)
    assert (end(None).reason, end(None, 39).n_generated) == ("context", 0)


def test_what_such_a_model_cannot_is_refused_by_name(
    llm: weft.LLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, match in (
        ({"logprobs": 2}, "logprobs are of models that write token by token"),
        ({"json_schema": {}}, "a JSON schema .*by diffusion"),
        ({"repeat_penalty": 1.2}, "repeat_penalty follows .*by diffusion"),
        ({"diffusion_eps": 0.1, "diffusion_block_length": 2}, "both given"),
    ):
        with pytest.raises(ContextError, match=match):
            llm.generate("a", max_tokens=4, **options)
    with pytest.raises(ContextError, match="reads 40 rows"):
        monkeypatch.setattr(llm.context, "n_outputs", 39)
        llm.generate("a", max_tokens=40, diffusion_eps=0.1)
    monkeypatch.setattr("weft.llm.engine.diffusion.DIFFUSION_TOKENS", 42 * 40 - 1)
    with pytest.raises(ContextError, match=r"the 40 steps of this text compute 1,680 tokens"):
        llm.generate("a", max_tokens=40, diffusion_block_length=2)
    assert bounds.DIFFUSION_TOKENS >= bounds.DIFFUSION_STEPS * 1024
    with pytest.raises(ContextError, match="probabilities of texts are of models that"):
        llm.perplexity([1, *range(3, 70)], n_ctx=16)
    with pytest.raises(ContextError, match="nothing can draft"):
        Opening(folder / "dream.gguf", drafting=DraftOptions(layers=True))
    with weft.LLM(folder / "dream.gguf", n_ubatch=8) as small:
        with pytest.raises(ContextError, match=r"has 9 tokens, and this .* n_ubatch 8"):
            small.generate([1, *range(3, 11)], max_tokens=4)
    with weft.LLM(folder / "dream.gguf", context_shift=True) as shifting:
        with pytest.raises(ContextError, match="leave out context_shift"):
            shifting.generate("a", max_tokens=4)


def test_a_vocabulary_without_a_mask(tmp_path: Path) -> None:
    path = make_diffusion(tmp_path, **{"tokenizer.ggml.mask_token_id": None})
    with pytest.raises(ContextError, match="mask_token_id"):
        weft.LLM(path)
    with weft.LLM(path, metadata={"tokenizer.ggml.mask_token_id": MASK}) as llm:
        assert llm.generate("a", max_tokens=3, ignore_eos=True).usage.completion_tokens == 3


def test_models_that_write_token_by_token_refuse_the_options(tmp_path: Path) -> None:
    with weft.LLM(write_model(tmp_path / "m.gguf"), n_ctx=32) as llm:
        with pytest.raises(ContextError, match="diffusion_steps is of models that write by"):
            llm.generate("a", max_tokens=2, diffusion_steps=4)


def test_the_plan_says_how_it_writes(llm: weft.LLM) -> None:
    text = llm.explain(brief=True)
    assert "It writes by diffusion: each step of a text" in text and "prefixes" not in text


def test_sizes(folder: Path) -> None:
    """A step computes whole texts, so that their cells and rows are those of a step."""
    path = folder / "llada.gguf"
    (plan,) = Opening(path).plans()
    assert (plan.options.n_ctx, plan.options.n_ubatch) == (64, 64)
    assert plan.options.n_outputs == min(DIFFUSION_ROWS, 64)
    opening, sizes = open_served(path, ServeOptions(parallel=4), {})
    assert sizes.writing is not None and sizes.embedding is None and opening.drafts.options is None
    assert (sizes.writing["n_ctx"], sizes.writing["n_ubatch"]) == (64, 64)
    assert np.isclose(sizes.writing["n_seq_max"], 4)
