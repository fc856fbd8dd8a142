"""Sequences of a context: whatever was done to them, logits are those of a fresh run."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.tiny import write_model
from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.model import Model

ATOL = 2e-5
N_SEQ = 3
TEXT = [1, *range(259, 274), 7, 8, 9, 10]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf"))


def make(model: Model, n_ctx: int = 48, **options: Any) -> Context:
    options = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]} | options
    return Context(model, n_ctx, **options)


def fresh_runs(model: Model) -> Any:
    """Last logits of a text in a context of its own."""

    @cache
    def run(text: tuple[int, ...]) -> np.ndarray:
        return make(model, 64).decode(text)[0]

    return run


def decode(context: Context, seq: int, tokens: list[int], start: int) -> np.ndarray:
    n = len(tokens)
    return context.decode(tokens, range(start, start + n), seqs=[[seq]] * n)[0]


# ---- random operations ---------------------------------------------------------------------------

SEQ = st.integers(0, N_SEQ - 1)
WORDS = st.lists(st.sampled_from([5, 6, 259, 260]), min_size=1, max_size=6)
OPS = st.one_of(
    st.tuples(st.just("append"), SEQ, WORDS),
    st.tuples(st.just("cut"), SEQ, st.integers(0, 8)),
    st.tuples(st.just("copy"), SEQ, SEQ, st.integers(1, 12)),
    st.tuples(st.just("keep"), SEQ),
    st.tuples(st.just("move"), st.integers(-4, 6)),
    st.tuples(st.just("reuse"), SEQ, WORDS),
    st.tuples(st.just("restore"), SEQ, SEQ),
    st.tuples(st.just("restore all")),
    st.tuples(st.just("clear")),
)


class Plain:
    """A context, and what its sequences should hold: position of the first token, and tokens."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.texts: list[tuple[int, list[int]]] = [(0, []) for _ in range(N_SEQ)]
        self.moved = False

    @property
    def used(self) -> int:
        return sum(len(text) for _, text in self.texts)

    def apply(self, name: str, *args: Any) -> np.ndarray | None:
        method = getattr(self, "_" + name.replace(" ", "_"))
        return method(*args)  # type: ignore[no-any-return]

    def _append(self, seq: int, words: list[int]) -> np.ndarray | None:
        start, text = self.texts[seq]
        if self.used + len(words) > self.context.n_ctx:
            return None
        self.texts[seq] = start, text + words
        return decode(self.context, seq, words, start + len(text))

    def _cut(self, seq: int, n: int) -> None:
        start, text = self.texts[seq]
        self.context.seq_rm(seq, start + n, -1)
        self.texts[seq] = start, text[:n]

    def _copy(self, src: int, dst: int, n: int) -> None:
        if src == dst:
            return
        start, text = self.texts[src]
        self.context.seq_rm(dst)
        self.context.seq_cp(src, dst, start, start + n)
        self.texts[dst] = start, text[:n]

    def _keep(self, seq: int) -> None:
        self.context.seq_keep(seq)
        self.texts = [t if s == seq else (0, []) for s, t in enumerate(self.texts)]

    def _move(self, by: int) -> None:
        if any(text and start + by < 0 for start, text in self.texts):
            return
        self.context.seq_add(-1, -1, -1, by)
        self.texts = [(start + by, text) if text else (0, []) for start, text in self.texts]
        self.moved |= by != 0

    def _reuse(self, seq: int, words: list[int]) -> np.ndarray | None:
        start, text = self.texts[seq]
        wanted = [*text[: len(text) // 2], *words]
        if self.used - len(text) + len(wanted) > self.context.n_ctx:
            return None
        n = self.context.reuse_prefix(seq, wanted)
        same = [a == b for a, b in zip(text, wanted[:-1], strict=False)]
        common = same.index(False) if False in same else len(same)
        assert n <= (common if start == 0 else 0)
        assert n == common or self.moved
        self.texts[seq] = 0, wanted
        return decode(self.context, seq, wanted[n:], n)

    def _restore(self, src: int, dst: int) -> None:
        start, text = self.texts[src]
        if self.used - len(self.texts[dst][1]) + len(text) > self.context.n_ctx:
            return
        self.context.load_state(self.context.save_state(src), dst)
        self.texts[dst] = start, list(text)

    def _restore_all(self) -> None:
        state = self.context.save_state()
        self.context.clear()
        self.context.load_state(state)

    def _clear(self) -> None:
        self.context.clear()
        self.texts = [(0, []) for _ in range(N_SEQ)]


@given(
    ops=st.lists(st.tuples(st.integers(0, 1), OPS), max_size=12),
    n_ubatch=st.integers(1, 7),
    unified=st.booleans(),
)
def test_against_fresh_runs(model: Model, ops: list[Any], n_ubatch: int, unified: bool) -> None:
    """Two contexts in turn, of other sizes, over one model."""
    fresh = fresh_runs(model)
    both = [
        Plain(make(model, 120, n_seq_max=N_SEQ, n_ubatch=n_ubatch, kv_unified=unified)),
        Plain(make(model, 40, n_seq_max=N_SEQ)),
    ]
    for which, (name, *args) in ops:
        plain = both[which]
        before = [list(text) for _, text in plain.texts]
        if name in ("append", "reuse") and len(before[args[0]]) + 6 > 40:
            continue
        got = plain.apply(name, *args)
        if got is not None:
            want = fresh(tuple(plain.texts[args[0]][1]))
            np.testing.assert_allclose(got, want, atol=ATOL)
        for seq, (start, text) in enumerate(plain.texts):
            ends = (start, start + len(text) - 1) if text else (-1, -1)
            assert (plain.context.pos_min(seq), plain.context.pos_max(seq)) == ends
    for plain in both:
        for seq, (start, text) in enumerate(plain.texts):
            if text and len(text) < 40 and plain.used < plain.context.n_ctx:
                got = decode(plain.context, seq, [7], start + len(text))
                np.testing.assert_allclose(got, fresh((*text, 7)), atol=ATOL)
                plain.texts[seq] = start, [*text, 7]
        counters = plain.context.counters
        assert counters.graphs_built == counters.reserves <= 2  # one, and one that rotates keys


# ---- a common beginning --------------------------------------------------------------------------


def test_a_common_beginning_is_kept(model: Model) -> None:
    context = make(model, n_seq_max=2)
    assert context.reuse_prefix(0, TEXT) == 0
    context.decode(TEXT)
    assert context.reuse_prefix(0, TEXT) == len(TEXT) - 1  # one is left for logits
    context.decode(TEXT[-1:])
    other = [*TEXT[:9], 50, 51]
    assert context.reuse_prefix(0, other) == 9
    assert context.pos_max(0) == 8
    want = make(model).decode(other)
    np.testing.assert_allclose(context.decode(other[9:]), want, atol=ATOL)
    assert context.reuse_prefix(1, other) == 0
    context.seq_cp(0, 1)
    assert context.reuse_prefix(1, [*other, 3]) == len(other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.seq_add(0, 0, -1, 3) or c.seq_add(0, 0, -1, -3),
        lambda c: c.seq_rm(0, 0, 4) or c.decode([9] * 4, range(4)),
        lambda c: c.decode([5], [2]),
        lambda c: c.seq_rm(0, 0, 1),
    ],
    ids=["moved", "computed again", "twice", "no beginning"],
)
def test_what_is_no_beginning_is_not_kept(model: Model, spoil: Any) -> None:
    context = make(model)
    text = [9] * 4 + TEXT
    context.decode(text)
    spoil(context)
    n = context.reuse_prefix(0, [*text, 3])
    assert n <= 4
    got = context.decode([*text, 3][n:], range(n, len(text) + 1))
    np.testing.assert_allclose(got, make(model).decode([*text, 3]), atol=ATOL)


def test_what_other_sequences_saw_is_not_kept(model: Model) -> None:
    """A token of two sequences saw the first one's cells."""
    context = make(model, n_seq_max=2)
    context.decode([5, 6], [0, 0], seqs=[[0], [1]])
    context.decode([7], [1], seqs=[[0, 1]])
    assert context.reuse_prefix(1, [6, 7, 8]) == 0
    assert context.reuse_prefix(0, [5, 7, 8]) == 2
    context.decode([6], [0], seqs=[[1]])
    context.seq_cp(0, 1, 1, -1)  # put together
    assert context.reuse_prefix(1, [6, 7, 8]) == 0


def test_a_beginning_that_was_put_in_front_is_not_kept(model: Model) -> None:
    """What follows was computed without it."""
    context = make(model, n_seq_max=2)
    context.decode([5, 6], [0, 1], seqs=[[0], [0]])
    context.decode([7], [2], seqs=[[1]])
    context.seq_cp(0, 1)
    assert context.reuse_prefix(1, [5, 6, 7, 8]) == 0
    assert context.reuse_prefix(0, [5, 6, 7]) == 2


# ---- a full context ------------------------------------------------------------------------------


def test_the_oldest_make_room(model: Model) -> None:
    """What stays has been computed with what is gone, and moved: as if done by hand."""
    context, by_hand = make(model, 16), make(model, 32)
    for c in (context, by_hand):
        c.decode(TEXT[:16])
    with pytest.raises(ContextError, match="do not fit into the context"):
        context.decode([3])
    assert context.drop_oldest(0, 2) == 7
    assert (context.pos_max(0), context.cache.n_used) == (8, 9)
    by_hand.seq_rm(0, 2, 9)
    # distances are what counts: the first two move up instead
    by_hand.seq_add(0, 0, 2, 7)
    got, want = context.decode([3, 4]), by_hand.decode([3, 4])
    np.testing.assert_allclose(got, want, atol=ATOL)
    assert context.reuse_prefix(0, TEXT) == 2


def test_nothing_to_drop(model: Model) -> None:
    context = make(model, 16, n_seq_max=2)
    context.decode(TEXT[:8], seqs=[[0, 1]] * 8)
    with pytest.raises(ContextError, match="0 tokens cannot be dropped after the first 8 of 8"):
        context.drop_oldest(0, 8)
    with pytest.raises(ContextError, match="shares the tokens"):
        context.drop_oldest(0)
    assert context.pos_max(0) == context.pos_max(1) == 7
    learned = make(model, 16)
    learned.decode(TEXT[:8])
    config = dataclasses.replace(model.config, n_positions=64)
    learned.model = type("Learned", (), {"config": config})()  # type: ignore[assignment]
    with pytest.raises(ContextError, match="learned positions cannot go on"):
        learned.drop_oldest(0)


# ---- cells of one's own --------------------------------------------------------------------------


def test_no_sequence_takes_the_room_of_another(model: Model) -> None:
    context = make(model, 24, n_seq_max=3, kv_unified=False)
    assert context.n_ctx_seq == 8
    decode(context, 0, TEXT[:8], 0)
    with pytest.raises(ContextError, match=r"sequence 0 would have 9 tokens, but each of 3 has 8"):
        decode(context, 0, [3], 8)
    for seq in (1, 2):
        decode(context, seq, TEXT[:8], 0)
    context.seq_rm(0, 4, -1)
    decode(context, 0, TEXT[4:8], 4)
    with pytest.raises(ContextError, match="leave kv_unified on"):
        make(model, 2, n_seq_max=3, kv_unified=False)
