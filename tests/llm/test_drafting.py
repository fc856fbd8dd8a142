"""Drafting changes no text: not its tokens, the bits of its logits, or what the cache holds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.drafted_texts import PROMPTS, SAMPLING, drafting, made, request, written
from tests.llm.tiny import metadata, weights, write_model
from weft.errors import ContextError
from weft.llm import LLM, Context, DraftOptions, Model, SamplingParams
from weft.llm.drafting.ngram import NgramDrafter


class Replay:
    """Knows the text and spoils each third token."""

    name = "replay"
    trust: Sequence[float] = (0.9,)

    def __init__(self, texts: dict[int, list[int]]) -> None:
        self.texts = texts

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        text = next((t for t in self.texts.values() if t[: len(tokens)] == list(tokens)), [])
        self.rest = text[len(tokens) :]
        return 0, len(self.rest)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        at = range(len(tokens), len(tokens) + most)
        return [t if i % 5 else (t + 1) % 270 for i, t in zip(at, self.rest, strict=False)]

    def forget(self, seq: int) -> None:
        pass


class Bad(Replay):
    """Proposes what cannot be, or fails."""

    def __init__(self, draft: Sequence[Any], error: Exception | None = None) -> None:
        self.draft, self.error = draft, error

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        return 0, 9

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        if self.error is not None:
            raise self.error
        return self.draft


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    meta = metadata(**{"llama.context_length": 256})
    return write_model(tmp_path_factory.mktemp("m") / "m.gguf", meta, weights(meta))


def known(prompts: Sequence[Sequence[int]], results: Sequence[tuple[Any, ...]]) -> Replay:
    each = zip(prompts, results, strict=True)
    return Replay({i: [*p, *(row[0] for row in r[0])] for i, (p, r) in enumerate(each)})


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_same_text(llama: Path, prompt: list[int], sampling: SamplingParams) -> None:
    requests = [request(prompt, sampling, penalize_prompt=True)]
    plain, before = written(llama, requests, None)
    for drafter in (NgramDrafter(), known([prompt], plain)):
        drafts = drafting(drafter)
        text, after = written(llama, requests, drafts)
        assert text == plain
        assert drafts.n_drafted > drafts.n_accepted or len(plain[0][0]) < 8
        for name in ("pos", "members"):
            assert np.array_equal(getattr(before.cache, name), getattr(after.cache, name)), name
        used = before.cache.pos >= 0
        assert np.array_equal(before.cache.tokens[used], after.cache.tokens[used])
        assert before.cache.n_seen == after.cache.n_seen
    assert drafts.n_accepted


@pytest.mark.parametrize("options", [{"stop": ("he",)}, {"ignore_eos": True}, {"n": 3}, {"n": 1}])
def test_ends(llama: Path, options: dict[str, Any]) -> None:
    for seed in range(4):
        one = request(PROMPTS[0], SamplingParams(temperature=1, seed=seed), **options)
        plain, _ = written(llama, [one], None)
        text, _ = written(llama, [one], drafting(known([PROMPTS[0]], plain)))
        assert text == plain


def test_a_full_context(llama: Path) -> None:
    """One text ends, the other drops its older half, several times."""
    for options in ({"n": None}, {"n": 150, "n_keep": 3}):
        one = request(PROMPTS[1], ignore_eos=True, **options)  # type: ignore[arg-type]
        plain, _ = written(llama, [one], None, n_ctx=40, n_ubatch=40)
        for drafter in (NgramDrafter(), known([PROMPTS[1]], plain)):
            drafts = drafting(drafter)
            text, _ = written(llama, [one], drafts, n_ctx=40, n_ubatch=40)
            assert text == plain and drafts.n_drafted
        assert plain[0][2] == ("context" if options["n"] is None else "length")


def test_several_texts(llama: Path) -> None:
    """They start and end at different times, and wait for slots and cells."""
    prompts = [[*p, i] for p in PROMPTS for i in (259, 262)]
    requests = [request(p, SAMPLING[i % 3], 10 + 9 * i) for i, p in enumerate(prompts)]
    plain, _ = written(llama, requests, None, n_seq_max=3, n_ctx=1024)
    drafts = drafting(known(prompts, plain))
    text, _ = written(llama, requests, drafts, n_seq_max=3, n_ctx=1024)
    assert text == plain and drafts.n_accepted


@pytest.mark.parametrize("arch", ["mamba", "mamba2", "lfm2"])
def test_recurrent_states(tmp_path: Path, arch: str) -> None:
    """A state goes back to the one before the draft, and right tokens are read again."""
    path = made(tmp_path, arch)
    n_vocab = Model.open(path).config.n_vocab
    prompts = [[t % n_vocab for t in p] for p in PROMPTS]
    requests = [request(p, SAMPLING[i], 25, ignore_eos=True) for i, p in enumerate(prompts)]
    for n in (1, 3):
        plain, _ = written(path, requests, None, n_seq_max=n, n_ctx=512)
        for drafter in (known(prompts, plain), NgramDrafter()):
            drafts = drafting(drafter, n_vocab=n_vocab)
            text, _ = written(path, requests, drafts, n_seq_max=n, n_ctx=512)
            assert text == plain and drafts.n_drafted


def test_a_recurrent_model_reads_a_token_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads right tokens again, nothing is drafted that might send it back once more."""
    path = made(tmp_path, "lfm2")
    n_vocab = Model.open(path).config.n_vocab
    one = request(PROMPTS[0], n=60, ignore_eos=True)
    plain, _ = written(path, [one], None, n_ctx=512)
    decode, columns = Context.decode, []

    def counted(self: Context, batch: Any) -> Any:
        columns.append(len(batch.tokens))
        return decode(self, batch)

    monkeypatch.setattr(Context, "decode", counted)
    drafts = drafting(known([PROMPTS[0]], plain), n_vocab=n_vocab)
    text, _ = written(path, [one], drafts, n_ctx=512)
    wrong = drafts.n_drafted - drafts.n_accepted
    assert text == plain and drafts.n_accepted
    assert sum(columns) <= len(PROMPTS[0]) + 2 * 60 + wrong


def test_sliding_windows(tmp_path: Path) -> None:
    path = made(tmp_path, "gemma2")
    n_vocab = Model.open(path).config.n_vocab
    prompts = [[t % n_vocab for t in p] for p in PROMPTS]
    requests = [request(p, SAMPLING[i], 60, ignore_eos=True) for i, p in enumerate(prompts)]
    for swa_full in (True, False):
        options: dict[str, Any] = {"n_seq_max": 2, "n_ctx": 512, "swa_full": swa_full}
        plain, context = written(path, requests, None, **options)
        drafts = drafting(known(prompts, plain), n_vocab=n_vocab)
        text, _ = written(path, requests, drafts, **options)
        assert text == plain
        assert (context.cache.window is None) == bool(drafts.n_accepted) == swa_full


@pytest.mark.parametrize(
    "bad",
    [
        Bad([7] * 9),
        Bad([-1, 5]),
        Bad([5, 100_000]),
        Bad([5] * 99),
        Bad([]),
        Bad(["x"]),
        Bad([None]),
    ],
)
def test_bad_drafts(llama: Path, bad: Bad) -> None:
    plain, _ = written(llama, [request(PROMPTS[0])], None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert written(llama, [request(PROMPTS[0])], drafting(bad))[0] == plain


def test_a_drafter_that_fails_is_asked_once(llama: Path) -> None:
    plain, _ = written(llama, [request(PROMPTS[0])], None)
    drafts = drafting(Bad([], ValueError("lost")), known([PROMPTS[0]], plain))
    with pytest.warns(UserWarning, match="drafter replay .* failed: ValueError") as caught:
        text, _ = written(llama, [request(PROMPTS[0])], drafts)
    assert text == plain and len(caught) == 1


def test_a_decode_that_fails(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with drafts that fails is computed again without them."""
    plain, _ = written(llama, [request(PROMPTS[0])], None)
    decode = Context.decode
    failed = []

    def fail(self: Context, batch: Any) -> Any:
        if 1 < len(batch.tokens) < 8 and len(failed) < 3:
            failed.append(len(batch.tokens))
            raise ContextError("no")
        return decode(self, batch)

    monkeypatch.setattr(Context, "decode", fail)
    drafts = drafting(known([PROMPTS[0]], plain))
    text, _ = written(llama, [request(PROMPTS[0])], drafts)
    assert text == plain and len(failed) == 3 and drafts.n_accepted


def test_llm(llama: Path) -> None:
    """A text of an LLM, also after one that was left unfinished."""
    texts = []
    for options in (None, DraftOptions(), DraftOptions(most=3, least=2)):
        with LLM(llama, n_ctx=128, n_threads=1, drafting=options) as llm:
            next(llm.generate("the abc the abc", stream=True, max_tokens=60, ignore_eos=True))
            text = [
                llm.generate(
                    f"the abc the abc{end}", max_tokens=60, temperature=t, seed=1, ignore_eos=True
                )
                for end in ("", " the")
                for t in (0, 1)
            ]
            texts.append(text)
            assert llm.stats.n_accepted <= llm.stats.n_drafted
    assert texts[0] == texts[1] == texts[2]


def test_watched_tensors_are_those_of_single_tokens(llama: Path) -> None:
    """Nothing is drafted while a callback watches."""
    plain, _ = written(llama, [request(PROMPTS[0])], None)
    drafts = drafting(known([PROMPTS[0]], plain))
    written(llama, [request(PROMPTS[0])], drafts, eval_callback=lambda tensor, ask: True)
    assert drafts.n_drafted == 0


@pytest.mark.parametrize("options", [{"devices": ["reference"]}, {"activations": "bf16"},
                                     {"flash": False}])  # fmt: skip
def test_where_batches_may_round_otherwise(llama: Path, options: dict[str, Any]) -> None:
    plain, _ = written(llama, [request(PROMPTS[0], n=8)], None, **options)
    drafts = drafting(known([PROMPTS[0]], plain))
    assert written(llama, [request(PROMPTS[0], n=8)], drafts, **options)[0] == plain
    assert drafts.n_drafted == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"most": 0}, "draft of 0"),
        ({"most": 31}, "draft of 31"),
        ({"most": 4, "least": 5}, "shortest draft"),
    ],
)
def test_options_out_of_range(options: dict[str, int], what: str) -> None:
    with pytest.raises(ContextError, match=what):
        DraftOptions(**options)
