"""A second model drafts: texts are those without it, and its cache follows them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.drafted_texts import PROMPTS, SAMPLING, Eager, drafting, made, request, written
from tests.llm.tiny import metadata, tokens, weights, write_model
from weft.errors import ContextError, OutOfMemoryError
from weft.llm import LLM, Context, DraftOptions, Model, SamplingParams
from weft.llm.drafting.drafting import Drafting, Outcome, Wanted
from weft.llm.drafting.gain import Gain
from weft.llm.drafting.ngram import NgramDrafter
from weft.llm.drafting.own_cache import same
from weft.llm.drafting.second_model import SecondModel
from weft.llm.opening import DraftModels
from weft.llm.planning.prepare import prepare

GREEDY = SAMPLING[0]


def llama(path: Path, seed: int = 0, **changes: object) -> Path:
    meta = metadata(**{"llama.context_length": 256, **changes})
    return write_model(path, meta, weights(meta, seed))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and one that mostly guesses wrong."""
    folder = tmp_path_factory.mktemp("m")
    return llama(folder / "target.gguf"), llama(folder / "other.gguf", 5)


def second(path: Path, n: int = 1, n_ctx: int = 128, p_min: float = 0.0) -> SecondModel:
    model = Model.open(path)
    n_seq_max = 2 * n if model.config.recurrent else n
    sizes: dict[str, Any] = {"n_seq_max": n_seq_max, "n_outputs": 1, "n_threads": 1, "n_ubatch": 64}
    return SecondModel(Context(model, n_ctx, **sizes), n, p_min)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_same_text(paths: tuple[Path, Path], sampling: SamplingParams) -> None:
    requests = [request(PROMPTS[0], sampling, penalize_prompt=True)]
    plain, before = written(paths[0], requests, None)
    for path in paths:
        drafts = drafting(second(path))
        text, after = written(paths[0], requests, drafts)
        assert text == plain and drafts.n_drafted
        for name in ("pos", "members"):
            assert np.array_equal(getattr(before.cache, name), getattr(after.cache, name)), name
        if path is paths[0] and sampling is GREEDY:
            assert drafts.n_accepted == drafts.n_drafted > 25


@pytest.mark.parametrize("options", [{"stop": ("he",)}, {"ignore_eos": True}, {"n": 3}, {"n": 1}])
def test_ends(paths: tuple[Path, Path], options: dict[str, Any]) -> None:
    for seed in range(2):
        one = request(PROMPTS[0], SamplingParams(temperature=1, seed=seed), **options)
        plain, _ = written(paths[0], [one], None)
        assert written(paths[0], [one], drafting(second(paths[0], p_min=0.01)))[0] == plain


def test_several_texts_share_what_they_begin_with(paths: tuple[Path, Path]) -> None:
    """They start and end at different times, wait for slots, and fork."""
    prompts = [[*p, *range(160, 160 + 9 * i)] for i, p in enumerate(PROMPTS)]
    prompts += [[*p, 271, 272] for p in prompts] + prompts[:1]
    requests = [request(p, SAMPLING[i % 3], 10 + 9 * i) for i, p in enumerate(prompts)]
    plain, _ = written(paths[0], requests, None, n_seq_max=3, n_ctx=1024)
    for path in paths:
        drafts = drafting(drafter := second(path, 3, 1024))
        text, _ = written(paths[0], requests, drafts, n_seq_max=3, n_ctx=1024)
        assert text == plain and drafts.n_drafted
        cache = drafter.context.cache
        for seq, held in enumerate(drafter.cache.held):
            cells = cache.cells_of(seq)
            assert cache.tokens[cells].tolist() == held
            assert cache.pos[cells].tolist() == list(range(len(held)))


def test_a_prompt_that_another_text_has_is_not_read_again(paths: tuple[Path, Path]) -> None:
    drafter = second(paths[0], 2)
    prompt = [1, *range(100, 140)]
    drafter.read(0, prompt)
    drafter.forget(0)
    steps = drafter.context.counters.graphs_reused
    drafter.read(1, [*prompt, 7])
    assert drafter.cache.held[1] == [*prompt, 7] and drafter.context.cache.n_used == 42
    assert drafter.context.counters.graphs_reused == steps + 1
    a = list(drafter.propose(1, [*prompt, 7], 5))
    assert a == list(second(paths[0]).propose(0, [*prompt, 7], 5))


def test_full_contexts(paths: tuple[Path, Path]) -> None:
    """One text ends, the other drops its older half several times, and so does the draft."""
    for options in ({"n": None}, {"n": 150, "n_keep": 3}):
        one = request(PROMPTS[1], ignore_eos=True, **options)  # type: ignore[arg-type]
        plain, _ = written(paths[0], [one], None, n_ctx=40, n_ubatch=40)
        drafts = drafting(drafter := second(paths[0], n_ctx=40))
        text, _ = written(paths[0], [one], drafts, n_ctx=40, n_ubatch=40)
        assert text == plain and drafts.n_drafted
    assert drafter.context.counters.graphs_built > 1  # keys were rotated
    assert drafts.n_accepted > 0.3 * drafts.n_drafted  # the last tokens were read otherwise
    drafter.read(0, text := [1, *range(100, 130)])
    drafter.drop(0, 3, 14)
    del text[3:17]
    assert drafter.unread(0, text) == 0 and drafter.context.pos_max(0) == len(text) - 1


def test_a_draft_with_less_context_leaves_long_texts_alone(paths: tuple[Path, Path]) -> None:
    one = request(PROMPTS[0], n=60, ignore_eos=True)
    plain, _ = written(paths[0], [one], None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafts = drafting(second(paths[0], n_ctx=30))
        assert written(paths[0], [one], drafts)[0] == plain
    assert 10 < drafts.n_accepted < 30


@pytest.mark.parametrize("arch", ["mamba2", "lfm2"])
def test_recurrent_models(tmp_path: Path, arch: str) -> None:
    """They draft and are drafted for."""
    path = made(tmp_path, arch)
    n_vocab = Model.open(path).config.n_vocab
    prompts = [[t % n_vocab for t in p] for p in PROMPTS]
    requests = [request(p, SAMPLING[i], 25, ignore_eos=True) for i, p in enumerate(prompts)]
    plain, _ = written(path, requests, None, n_seq_max=2, n_ctx=512)
    drafts = drafting(second(path, 2, 512), n_vocab=n_vocab)
    text, _ = written(path, requests, drafts, n_seq_max=2, n_ctx=512)
    assert text == plain and drafts.n_accepted > 12


def test_random_texts_against_a_fresh_model(paths: tuple[Path, Path]) -> None:
    """What it proposes after any past is what a fresh one proposes."""
    rng = random.Random(3)
    drafter, texts = second(paths[0], 2, 256), {0: [1, 260], 1: [1, 261]}
    for _ in range(24):
        seq = rng.randrange(2)
        text = texts[seq]
        match rng.randrange(4):
            case 0:
                del text[rng.randrange(1, len(text)) :]
            case 1:
                texts[seq] = text = list(texts[1 - seq])
                drafter.forget(seq)
        text += [rng.randrange(259, 274) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.5:
            drafter.read(seq, text[:-1])
        assert list(drafter.propose(seq, text, 4)) == list(second(paths[0]).propose(0, text, 4))


def test_it_stops_where_it_is_not_sure(paths: tuple[Path, Path]) -> None:
    sure, all_ = second(paths[0], p_min=0.9), second(paths[0])
    lengths = [len(sure.propose(0, [1, t], 8)) for t in range(259, 274)]
    assert min(lengths) < 8 and {len(all_.propose(0, [1, t], 8)) for t in (259, 262)} == {8}


def test_ids_without_a_meaning_are_not_drafted_from(paths: tuple[Path, Path]) -> None:
    drafter = second(paths[0])
    assert drafter.look(0, [1, 5000, 2])[1] == 0 and drafter.look(0, [1, 2])[1] > 0


def test_an_ngram_and_a_model(paths: tuple[Path, Path]) -> None:
    requests = [request(p, SAMPLING[i]) for i, p in enumerate(PROMPTS)]
    plain, _ = written(paths[0], requests, None)
    drafts = drafting(NgramDrafter(), second(paths[1]))
    assert written(paths[0], requests, drafts)[0] == plain and drafts.n_drafted


class Slow:
    """Takes its time and is always right, or always wrong."""

    name = "slow"
    trust = (0.7,)

    def __init__(
        self, seconds: float, right: bool, share: float = 0.0, reading: float = 0.01
    ) -> None:
        self.seconds, self.right, self.clock, self.n_asked, self.n_read = seconds, right, 0.0, 0, 0
        self.share, self.reading = share, reading

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        return 0, 30

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        return len(tokens) - self.n_read

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        self.clock += self.reading * self.unread(seq, tokens)
        self.n_read = len(tokens)

    def drop(self, seq: int, start: int, n: int) -> None: ...

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        self.read(seq, tokens)
        self.clock += self.seconds * most
        self.n_asked += 1
        return [0] * most

    def forget(self, seq: int) -> None:
        self.n_read = 0


def race(drafter: Slow, n: int, n_prompt: int = 100, follows: bool = True) -> float:
    """Writes `n` tokens of a prompt; returns the time in steps without drafts."""
    drafts = Drafting([drafter], 10, gain=Gain(), clock=lambda: drafter.clock)
    tokens = [0] * n_prompt
    if follows:
        drafts.follow(0, tokens)
    start, base = drafter.clock, drafter.clock
    while len(tokens) < n_prompt + n:
        base = drafter.clock
        draft: Sequence[int] = ()
        if drafts.rests:
            drafts.rests -= 1
        else:
            draft = drafts.propose([Wanted(0, tokens, 30)], 1, 30)[0]
        batch = 1 + 0.1 * len(draft)
        drafter.clock += batch
        drawn = 1 + (len(draft) if drafter.right else 0)
        tokens += [0] * drawn
        out = [Outcome(0, len(draft), drawn, not drafter.right)] if draft else []
        drafts.note(1 + len(draft), 1, batch, drafter.clock - base, drawn, out)
    return (drafter.clock - start) / (len(tokens) - n_prompt)


def test_the_time_of_the_drafter_is_a_cost() -> None:
    assert race(Slow(0.05, True), 300) < 0.35
    late = Slow(1.2, True)
    assert race(late, 300) < 1.04 and late.n_asked < 20
    wrong = Slow(0.05, False)
    assert race(wrong, 300) < 1.04 and wrong.n_asked < 30


@pytest.mark.parametrize("n_texts", [1, 3])
def test_a_model_about_as_slow_as_the_model_is_not_asked(n_texts: int) -> None:
    """It reads and writes nothing, so that no time is lost; one of half the size is tried."""
    late = Slow(0.8, True, share=0.8)
    assert race(late, 300) == 1 and late.n_asked == late.n_read == 0
    assert race(Slow(0.05, True, share=0.05), 300) < 0.35
    half, wanted = Slow(0.5, True, share=0.5), [Wanted(i, [0] * 9, 30) for i in range(n_texts)]
    for drafter in (late, half):
        drafts = Drafting([drafter], 10, clock=lambda: 0.0)
        assert drafts.unasked == ([late] if drafter is late else [])
        for _ in range(200):
            for text in wanted:
                drafts.follow(text.seq, text.tokens)
            drafts.note(n_texts, n_texts, 1.0, 1.0, n_texts)
            drafts.propose(wanted, n_texts, 30)
    assert late.n_asked == late.n_read == 0 and half.n_asked and half.n_read


def test_an_ngram_drafts_beside_a_model_that_is_not_asked() -> None:
    late = Slow(0.9, True, share=0.9)
    drafts = Drafting([NgramDrafter(), late], 10, clock=lambda: 0.0)
    for _ in range(3):
        drafts.note(1, 1, 1.0, 1.0, 1)
    assert drafts.propose([Wanted(0, [1, 2, 3, 4] * 5, 30)], 1, 30)[0] and not late.n_asked


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.66, 0.7, 0.8, 1.5])
@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_wrong_guesses_of_a_model_cost_three_of_a_hundred(share: float, slower: float) -> None:
    """Whether a prompt was read or not, and if the model takes longer than was expected of it."""
    for reading, n_prompt in ((0.01, 1000), (share / 2, 33), (share, 20)):
        drafter = Slow(share * slower, False, share, reading)
        assert race(drafter, 160, n_prompt) < 1 / 0.97, (reading, n_prompt)
        drafter = Slow(share * slower, False, share, reading)
        assert race(drafter, 160, 50, follows=False) < 1 / 0.97, reading


def test_the_share_of_a_model(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """It is that of the bytes that a token moves: about that of the layers in a deep model."""
    deep = llama(tmp_path / "deep.gguf", **{"llama.block_count": 16})
    model = Model.open(deep)
    context = Context(model, 64, n_outputs=31, n_threads=1)
    drafts = DraftModels(model, DraftOptions(model=paths[0])).drafting(context)
    second = drafts.drafters[1] if drafts is not None else None
    assert drafts is not None and isinstance(second, SecondModel)
    layers = second.context.model.config.n_layer
    assert layers / 16 < second.share < layers / 16 + 0.15 and not drafts.unasked
    own = DraftModels(model, DraftOptions(model=deep))
    with pytest.warns(UserWarning, match="draft model is not asked for guesses"):
        drafts = own.drafting(context)
    second = drafts.drafters[1] if drafts is not None else None
    assert drafts is not None and isinstance(second, SecondModel)
    assert second.share == 1 and drafts.unasked == [second]


def test_prompts_are_not_read_where_drafts_do_not_pay() -> None:
    drafter = Slow(0.05, False)
    drafts = Drafting([drafter], 10, gain=Gain(), clock=lambda: drafter.clock)
    for _ in range(4):
        drafts.gain.note(1, 1, 1.0, 1.0, 1)
    for _ in range(12):
        drafts._sources[0].all.note(0, True)
    drafts.follow(0, [0] * 1000)
    assert drafter.n_read == 0
    drafts.gain.credit.left = 23.0
    drafts.follow(0, [0] * 1000)
    assert drafter.n_read == 1000 and 12 < drafts.gain.credit.left < 14


def other_vocabulary(path: Path, change: int) -> Path:
    names, scores, types = tokens()
    if change < 0:
        names, scores, types = names[:10], scores[:10], types[:10]
    else:
        names[change] = "<other>"
    return llama(path, **{"tokenizer.ggml.tokens": names, "tokenizer.ggml.scores": scores,
                          "tokenizer.ggml.token_type": types})  # fmt: skip


def test_another_vocabulary(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model = Model.open(paths[0])
    for change, what in ((262, "token 262 is '<other>', not"), (-1, "it has 10 tokens, not 274")):
        path = other_vocabulary(tmp_path / f"{change}.gguf", change)
        with pytest.raises(ContextError, match=what) as caught:
            DraftModels(model, DraftOptions(model=path))
        assert str(path) in str(caught.value) and str(paths[0]) in str(caught.value)


@pytest.mark.filterwarnings("ignore:the draft model is not asked")
def test_llm(paths: tuple[Path, Path]) -> None:
    """The texts of an LLM, with every kind of draft; the context of the draft is known."""
    each = [None, DraftOptions(model=paths[0]), DraftOptions(ngram=False, model=paths[1], most=4)]
    texts = []
    for options in each:
        with LLM(paths[0], n_ctx=128, n_threads=1, drafting=options) as llm:
            if llm._loaded is not None and llm._loaded.drafting is not None:
                llm._loaded.drafting.gain = Eager()
            texts.append([
                llm.generate(p, max_tokens=30, temperature=1, seed=2, ignore_eos=True)
                for p in ("the abc", ["the abc the", "abc"])
            ])  # fmt: skip
            own = llm.draft_contexts
            assert list(own) == (["draft model"] if options else [])
            if options:
                assert llm.stats.n_drafted and "draft model" in llm.explain()
                assert own["draft model"].plan.backends[-1] is llm.context.plan.backends[-1]
    assert texts[0] == texts[1] == texts[2]


def test_its_memory_counts(paths: tuple[Path, Path]) -> None:
    model = Model.open(paths[0])
    drafting = DraftOptions(model=paths[1])
    (plan,) = DraftModels(model, drafting).plans(128, 1)
    options: dict[str, Any] = {"n_ctx": 128, "n_outputs": 31}
    alone = sum(need.total for need in prepare(model, **options).needs())
    needed = sum(need.total for need in plan.needs())
    limit = {"cpu": alone + needed - 1}
    prepare(model, **options, memory=limit)
    with pytest.raises(OutOfMemoryError, match="models that draft"):
        prepare(model, **options, memory=limit, beside=[plan])
    with pytest.raises(OutOfMemoryError, match="models that draft"):
        LLM(paths[0], n_ctx=128, memory=limit, drafting=DraftOptions(model=paths[1]))


def test_where_drafts_cannot_be_checked_it_is_not_loaded(paths: tuple[Path, Path]) -> None:
    model = Model.open(paths[0])
    context = Context(model, 64, devices=["reference"])
    options = DraftOptions(ngram=False, model=paths[1])
    with pytest.warns(UserWarning, match="no model drafts: device reference"):
        assert DraftModels(model, options).drafting(context) is None


def test_same() -> None:
    rng = random.Random(1)
    for _ in range(200):
        a = [rng.randrange(3) for _ in range(rng.randrange(9))]
        b = a[: rng.randrange(9)] + [rng.randrange(3) for _ in range(rng.randrange(4))]
        slow = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        assert same(a, b) == (min(len(a), len(b)) if slow is None else slow)
