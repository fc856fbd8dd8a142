"""Recurrent models, several sequences at once: as many tokens of each in one run of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.engine_requests import finish, request, side_by_side
from tests.llm.made_models import TOKENS, context
from tests.llm.recurrent_texts import NAMES, alone, write_lasting
from tests.profiles import examples
from weft.frontends.gguf import open_gguf
from weft.llm import Tokenizer
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.context import Context
from weft.llm.compute.decoding import split
from weft.llm.compute.graphs import Graphs
from weft.llm.engine import Engine
from weft.llm.model import Model
from weft.llm.models.step import Together, together_sizes
from weft.llm.planning.prepare import prepare

PROMPTS = [TOKENS[:7], TOKENS[3:4], TOKENS[5:17], TOKENS[2:9], TOKENS[9:14]]


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_lasting(tmp_path, request.param)


def several(texts: list[list[int]], starts: list[int]) -> dict[str, object]:
    """The arguments of `decode` for tokens of the first sequences, whose last rows are wanted."""
    each = [(t, p, s) for s, text in enumerate(texts) for p, t in enumerate(text, starts[s])]
    tokens, positions, seqs = zip(*each, strict=True)
    ends = np.cumsum([len(text) for text in texts]) - 1
    outputs = np.isin(np.arange(len(each)), ends)
    return {"tokens": list(tokens), "positions": list(positions),
            "seqs": [[s] for s in seqs], "outputs": outputs}  # fmt: skip


@contextmanager
def counted() -> Iterator[list[int]]:
    """The numbers of sequences of each ubatch that runs."""
    numbers: list[int] = []
    run = Graphs.run

    def count(self: Graphs, ubatch: Ubatch, places: object) -> object:
        numbers.append(ubatch.n_seqs)
        return run(self, ubatch, places)  # type: ignore[arg-type]

    with mock.patch.object(Graphs, "run", count):
        yield numbers


def test_a_token_of_each_is_one_run(path: Path) -> None:
    c = context(path, n_seq_max=5, n_ubatch=40)
    c.warm_up()
    built = c.counters.graphs_built
    texts = [list(p) for p in PROMPTS]
    rows = c.decode(**several(texts, [0] * 5))  # type: ignore[arg-type]
    for step in range(3):
        for row, text in zip(rows, texts, strict=True):
            np.testing.assert_allclose(row, alone(path, text)[0], atol=1e-5)
        new = [[TOKENS[(3 * s + step) % len(TOKENS)]] for s in range(5)]
        with counted() as runs:
            rows = c.decode(**several(new, [len(t) for t in texts]))  # type: ignore[arg-type]
        assert runs == [5]
        for text, tail in zip(texts, new, strict=True):
            text += tail
    assert c.counters.graphs_built == built == 2
    assert c.counters.reallocs == 0


def test_prompts_go_together(path: Path) -> None:
    c = context(path, n_seq_max=3, n_ubatch=24)
    texts = [TOKENS[:8], TOKENS[2:10], TOKENS[4:9]]
    with counted() as runs:
        rows = c.decode(**several(texts, [0] * 3))  # type: ignore[arg-type]
    assert runs[0] > 1 and len(runs) < 3
    for row, text in zip(rows, texts, strict=True):
        np.testing.assert_allclose(row, alone(path, text)[0], atol=1e-5)


def test_forks_step_together(path: Path) -> None:
    """Three that share a state, and the one that stays behind."""
    c = context(path, n_seq_max=4)
    c.decode(TOKENS[:9])
    for s in (1, 2, 3):
        c.seq_cp(0, s)
    ends = [[5], [9], [TOKENS[2]]]
    with counted() as runs:
        rows = c.decode(**several(ends, [9] * 3))  # type: ignore[arg-type]
    assert runs == [3]
    for row, end in zip(rows, ends, strict=True):
        np.testing.assert_allclose(row, alone(path, TOKENS[:9] + end)[0], atol=1e-5)
    late = c.decode([TOKENS[9]], [9], seqs=[[3]])
    np.testing.assert_allclose(late, alone(path, TOKENS[:10]), atol=1e-5)
    c.seq_rm(1)
    c.seq_cp(0, 1)
    rows = c.decode(**several([[6], [7]], [10] * 2))  # type: ignore[arg-type]
    for row, end in zip(rows, (6, 7), strict=True):
        np.testing.assert_allclose(row, alone(path, [*TOKENS[:9], 5, end])[0], atol=1e-5)


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_failure_takes_all_of_them_back(path: Path, fails: int) -> None:
    c = context(path, n_seq_max=3, n_ubatch=6)
    firsts = [TOKENS[:4], TOKENS[4:8], TOKENS[1:5]]
    c.decode(**several(firsts, [0] * 3))  # type: ignore[arg-type]
    slots, before = c.cache.states.slot.copy(), c.cache.pos.copy()  # type: ignore[union-attr]
    ends = [TOKENS[5:10], TOKENS[8:13], TOKENS[6:7]]
    run, calls = Graphs.run, []

    def fail_later(*args: object) -> object:
        calls.append(args)
        if len(calls) == fails:
            raise KeyboardInterrupt
        return run(*args)  # type: ignore[arg-type]

    with mock.patch.object(Graphs, "run", fail_later), pytest.raises(KeyboardInterrupt):
        c.decode(**several(ends, [4] * 3))  # type: ignore[arg-type]
    np.testing.assert_array_equal(c.cache.states.slot, slots)  # type: ignore[union-attr]
    np.testing.assert_array_equal(c.cache.pos, before)
    rows = c.decode(**several(ends, [4] * 3))  # type: ignore[arg-type]
    for row, first, end in zip(rows, firsts, ends, strict=True):
        np.testing.assert_allclose(row, alone(path, first + end)[0], atol=1e-5)


def test_states_of_several_come_back(path: Path) -> None:
    c = context(path, n_seq_max=3)
    firsts = [TOKENS[:4], TOKENS[4:8], TOKENS[1:5]]
    c.decode(**several(firsts, [0] * 3))  # type: ignore[arg-type]
    fresh = context(path, n_seq_max=3)
    fresh.load_state(c.save_state())
    ends = [[5], [9], [7]]
    rows = fresh.decode(**several(ends, [4] * 3))  # type: ignore[arg-type]
    np.testing.assert_array_equal(rows, c.decode(**several(ends, [4] * 3)))  # type: ignore[arg-type]
    for row, first, end in zip(rows, firsts, ends, strict=True):
        np.testing.assert_allclose(row, alone(path, first + end)[0], atol=1e-5)


def test_on_the_native_kernels(path: Path) -> None:
    model = Model.open(path)
    c, one = (Context(model, 48, n_seq_max=n, n_ubatch=20, devices=["cpu"]) for n in (5, 1))
    rows = c.decode(**several(PROMPTS, [0] * 5))  # type: ignore[arg-type]
    for row, text in zip(rows, PROMPTS, strict=True):
        one.clear()
        np.testing.assert_allclose(row, one.decode(text)[0], atol=2e-2)


def test_an_engine_writes_them_together(path: Path) -> None:
    file = open_gguf(path)
    model, tokenizer = Model(file), Tokenizer.from_gguf(file)
    c = Context(model, 128, n_seq_max=5, n_ubatch=20, n_outputs=5, devices=["reference"])
    engine = Engine(c, tokenizer)
    requests = [request(prompt, 8) for prompt in PROMPTS]
    try:
        texts = [finish(engine.generate(r))[0] for r in requests]
        with counted() as runs:
            found = side_by_side(engine, requests)
    finally:
        engine.close()
    assert [text for text, _ in found] == texts
    assert 5 in runs
    assert len(runs) < 5 * 8


def test_why_not_reused(path: Path) -> None:
    c = context(path, n_seq_max=2)
    c.decode([5])
    assert c.why_not_reused() is None
    c.decode([5, 6], [1, 0], seqs=[[0], [1]])
    assert "of several sequences" in str(c.why_not_reused())
    c.decode([5, 6], [2, 1], seqs=[[0], [1]])
    assert c.why_not_reused() is None
    c.decode([5])
    assert "of one sequence again" in str(c.why_not_reused())


def test_a_saved_plan_has_both(path: Path) -> None:
    options = {"n_seq_max": 4, "n_ubatch": 16, "devices": ["reference"]}
    saved = prepare(Model.open(path), n_ctx=48, **options).to_json()  # type: ignore[arg-type]
    c = Context(Model.open(path), plan=saved, devices=["reference"])
    fresh = Context(Model.open(path), 48, **options)  # type: ignore[arg-type]
    batch = several(PROMPTS[:4], [0] * 4)
    np.testing.assert_array_equal(c.decode(**batch), fresh.decode(**batch))  # type: ignore[arg-type]
    assert saved["together"]["splits"]


def test_memory_is_that_of_one_ubatch(path: Path) -> None:
    model = Model.open(path)
    one, many = (
        prepare(model, n_ctx=64, n_ubatch=64, n_outputs=1, n_seq_max=n, devices=["reference"])
        for n in (1, 16)
    )
    # besides, the states that a layer reads and writes
    small, large = (sum(need.compute for need in plan.needs()) for plan in (one, many))
    r = model.config.recurrent
    assert r is not None
    states = r.conv_size + r.state_size + max(r.dilated, default=0)
    assert large < 1.2 * small + 16 * 2 * 4 * states


@settings(max_examples=examples(4.0))
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any),
    n_ubatch=st.integers(1, 24),
    n_outputs=st.integers(1, 8),
    wanted=st.sampled_from(["last", "all", "none", "some"]),
    seed=st.integers(0, 99),
)
def test_every_token_goes_once_and_in_order(
    lengths: list[int], n_ubatch: int, n_outputs: int, wanted: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    first = random.permutation(np.repeat(np.arange(len(lengths)), lengths)).astype(np.int32)
    n = len(first)
    positions = np.zeros(n, np.int32)
    for s in range(len(lengths)):
        positions[first == s] = np.arange(lengths[s])
    outputs = {"all": np.ones(n, np.bool_), "none": np.zeros(n, np.bool_),
               "some": random.random(n) < 0.4,
               "last": positions == np.array(lengths)[first] - 1}[wanted]  # fmt: skip
    members = first == np.arange(len(lengths))[:, None]
    tokens, types = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    batch = Ubatch(tokens, positions, first, members, outputs, np.arange(n), types)
    room = together_sizes(n_ubatch, len(lengths))
    parts = split(batch, n_ubatch, min(n_outputs, n_ubatch), by_sequence=True, together=room)
    seen = [0] * len(lengths)
    for part in parts:
        assert 0 < len(part) <= n_ubatch
        assert part.outputs.sum() <= n_outputs
        assert len(part) % part.n_seqs == 0
        rows = part.first.reshape(part.n_seqs, -1)
        assert (rows == rows[:, :1]).all() and len(set(rows[:, 0].tolist())) == part.n_seqs
        if part.n_seqs > 1:
            assert room is not None
            assert part.n_seqs <= room.n_seqs and rows.shape[1] <= room.n_each
        for s, at in zip(rows[:, 0], part.positions.reshape(part.n_seqs, -1), strict=True):
            assert at.tolist() == list(range(seen[s], seen[s] + len(at)))
            seen[s] += len(at)
        assert (part.tokens == part.rows).all()
    assert seen == lengths


def test_tokens_of_two_sequences_are_split_simply() -> None:
    members = np.array([[1, 1, 0], [1, 0, 1]], np.bool_)
    positions, first = np.array([0, 1, 1], np.int32), np.array([0, 0, 1], np.int32)
    tokens, outputs, types = np.arange(3), members.any(axis=0), np.zeros(3, np.int32)
    batch = Ubatch(tokens, positions, first, members, outputs, np.arange(3), types)
    parts = split(batch, 8, 8, by_sequence=True, together=Together(2, 4))
    assert [(p.n_seqs, p.tokens.tolist()) for p in parts] == [(1, [0]), (1, [1]), (1, [2])]
