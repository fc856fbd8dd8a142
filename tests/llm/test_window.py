"""Sliding-window layers with cells of their own: less memory, the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, context, keys_of, made_up
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm.cache.cells import WindowCells
from weft.llm.cache.kv_cache import cache_bytes
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.model import Model

ATOL = 2e-5
WINDOW = 6
TEXT = [int(t) for t in np.random.default_rng(3).integers(3, 100, 44)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    results = {}
    for name in ("gemma2", "gemma3 flags"):
        arch, changes = RELATIVES[name]
        folder, meta = tmp_path_factory.mktemp("model"), keys_of(arch, changes)
        results[name] = write_model(folder / "m.gguf", meta, made_up(configure(folder, meta)))
    return results


@pytest.fixture(scope="module")
def path(paths: dict[str, Path]) -> Path:
    return paths["gemma2"]


def small(path: Path, **options: Any) -> Context:
    return context(path, **({"swa_full": False, "n_ubatch": 3} | options))


def test_memory(path: Path) -> None:
    full, less = context(path, n_ubatch=3, n_seq_max=2), small(path, n_seq_max=2)
    config = less.model.config
    sizes = [less.cache.k[il].ne[1] for il in range(config.n_layer)]
    assert {(n, config.is_windowed(il)) for il, n in enumerate(sizes)} == {
        (48, False),
        (2 * WINDOW + 3, True),
    }
    assert less.memory.cache == less.cache.nbytes < full.memory.cache
    assert less.cache.nbytes == cache_bytes(config, 48, "f32", "f32", 2, 2 * WINDOW + 3)
    # where that would be no less, there is one table
    assert small(path, n_ubatch=42).cache.window is None
    plan = less.plan.to_json()
    assert plan["options"]["swa_full"] is False
    again = Context(Model.open(path), plan=plan, devices=["reference"])
    assert again.cache.nbytes == less.cache.nbytes


@pytest.mark.parametrize("name", ["gemma2", "gemma3 flags"])
@given(
    n_ubatch=st.integers(1, 9),
    cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=5),
    flash=st.booleans(),
)
def test_logits_are_the_same(
    paths: dict[str, Path], name: str, n_ubatch: int, cuts: set[int], flash: bool
) -> None:
    want = context(paths[name]).decode(TEXT, outputs="all")
    ctx = small(paths[name], n_ubatch=n_ubatch, flash=flash)
    assert ctx.cache.window is not None
    ends = [*sorted(cuts), len(TEXT)]
    for a, b in zip([0, *ends], ends, strict=False):
        got = ctx.decode(TEXT[a:b], outputs="all")
        np.testing.assert_allclose(got, want[a:b], atol=ATOL)
    assert ctx.cache.window.n_used <= WINDOW + n_ubatch < ctx.cache.n_used


def test_the_oldest_unseen_cells_go_first() -> None:
    cells = WindowCells(12, 2, window=3)
    first = np.array([[True], [False]])
    order = np.array([4, 0, 2, 5, 1, 3], np.int32)
    cells.occupy(np.arange(6), order, np.repeat(first, 6, axis=1))
    cells.occupy(np.arange(6, 9), np.arange(3, dtype=np.int32), np.repeat(~first, 3, axis=1))
    cells.members[1, 2] = True  # the other sequence sees the token at position 2, too
    assert np.flatnonzero(~cells.seen()[:9]).tolist() == [1, 4, 5, 6]
    assert [cells.in_the_way(n).tolist() for n in (3, 4, 5)] == [[], [1], [1, 6]]
    assert cells.in_the_way(7).tolist() == [1, 6, 4, 5]
    with pytest.raises(ContextError, match="8 tokens do not fit into the 12 cells of the sliding"):
        cells.in_the_way(8)


def test_sequences_in_turn(path: Path) -> None:
    want = context(path).decode(TEXT[:20], outputs="all")
    ctx = small(path, n_seq_max=3)
    ctx.decode(TEXT[:5], seqs=[[0, 1]] * 5)
    for p in range(5, 20):
        seqs = [0, 1] if p < 14 else [0]
        got = ctx.decode([TEXT[p]] * len(seqs), [p] * len(seqs), seqs=[[s] for s in seqs],
                          outputs="all")  # fmt: skip
        np.testing.assert_allclose(got, want[[p] * len(seqs)], atol=ATOL)
        if p == 10:
            ctx.seq_cp(1, 2)
    # sequence 2 has waited since position 11, and nobody has taken what it sees
    got = ctx.decode(TEXT[11:14], range(11, 14), seqs=[[2]] * 3, outputs="all")
    np.testing.assert_allclose(got, want[11:14], atol=ATOL)


def test_what_is_gone_is_not_missed_silently(path: Path) -> None:
    want = context(path).decode(TEXT, outputs="all")
    ctx = small(path)
    ctx.decode(TEXT[:30])
    ctx.seq_rm(0, 28, -1)  # there is room for an ubatch more than is seen
    np.testing.assert_allclose(ctx.decode(TEXT[28:30], outputs="all"), want[28:30], atol=ATOL)
    ctx.seq_rm(0, 20, -1)
    with pytest.raises(ContextError, match="position 20 of sequence 0 sees tokens that sliding"):
        ctx.decode(TEXT[20:21])
    ctx.decode(TEXT[20:22], [40, 41])  # sees nothing that is gone
    assert ctx.reuse_prefix(0, [*TEXT[:18], 3]) == 0
    assert ctx.cache.n_used == ctx.cache.window.n_used == 0  # type: ignore[union-attr]
    ctx.decode(TEXT[:30])
    assert ctx.reuse_prefix(0, TEXT) == 30
    np.testing.assert_allclose(ctx.decode(TEXT[30:], outputs="all"), want[30:], atol=ATOL)


def test_moved_positions(path: Path) -> None:
    full, windowed = context(path), small(path)
    for c in (full, windowed):
        c.decode(TEXT[:40])
        assert c.drop_oldest(0, 4) == 18
    for t in TEXT[:4]:
        np.testing.assert_allclose(windowed.decode([t]), full.decode([t]), atol=ATOL)


@pytest.mark.parametrize("fail_at", [1, 2, 5, 9])
def test_a_failure_leaves_what_is_seen(path: Path, fail_at: int) -> None:
    want = context(path).decode(TEXT, outputs="all")
    ctx = small(path)
    ctx.decode(TEXT[:12])
    window = ctx.cache.window
    assert window is not None
    seen = window.keep(np.flatnonzero(window.seen()))
    run, calls = ctx._graphs.run, []

    def fail_later(*args: Any) -> Any:
        calls.append(args)
        got = run(*args)
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return got

    ctx._graphs.run = fail_later  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ctx.decode(TEXT[12:])
    ctx._graphs.run = run  # type: ignore[method-assign]
    after = window.keep(np.flatnonzero(window.seen()))
    assert sorted(after.pos) == sorted(seen.pos) and (after.cells == seen.cells).all()
    np.testing.assert_allclose(ctx.decode(TEXT[12:], outputs="all"), want[12:], atol=ATOL)


def test_states(path: Path) -> None:
    want = context(path).decode(TEXT, outputs="all")
    a = small(path, n_seq_max=2)
    a.decode(TEXT[:20])
    a.decode(TEXT[:7], range(7), seqs=[[1]] * 7)
    b = small(path, n_seq_max=2, n_ubatch=5)
    b.load_state(a.save_state())
    b.load_state(a.save_state(0), 1)
    for c, seq, start in ((a, 0, 20), (b, 0, 20), (b, 1, 20), (a, 1, 7)):
        part = slice(start, start + 4)
        batch = Batch(TEXT[part], range(start, start + 4), [[seq]] * 4, "all")
        np.testing.assert_allclose(c.decode(batch), want[part], atol=ATOL)
    assert b.reuse_prefix(0, TEXT[:31]) == 24
    with pytest.raises(FormatError, match="its small_window is True, here it is False"):
        context(path).load_state(a.save_state())


def test_too_many_cells_that_are_seen(path: Path) -> None:
    """The same position many times over."""
    ctx = small(path)
    ctx.decode(TEXT[:8])
    before = ctx.cache.pos.copy()
    with pytest.raises(ContextError, match="9 cells of the sliding window"):
        ctx.decode([5] * 12, [8] * 12)
    assert (ctx.cache.pos == before).all()
    ctx.decode([5], [8])


def test_two_devices(path: Path) -> None:
    want = context(path).decode(TEXT, outputs="all")
    ctx = Context(
        Model.open(path), 48, type_k="f32", type_v="f32", n_ubatch=5, swa_full=False,
        devices=["reference", "cpu"], activations="f32", n_gpu_layers=2,
    )  # fmt: skip
    got = [ctx.decode(TEXT[:33], outputs="all"), ctx.decode(TEXT[33:], outputs="all")]
    np.testing.assert_allclose(np.concatenate(got), want, atol=1e-4)
    ctx.drop_oldest()
    full = context(path)
    full.decode(TEXT)
    full.drop_oldest()
    np.testing.assert_allclose(ctx.decode([9]), full.decode([9]), atol=1e-4)


N_SEQ = 3
SEQ = st.integers(0, N_SEQ - 1)
OPS = st.one_of(
    st.tuples(st.just("append"), SEQ, st.integers(1, 7)),
    st.tuples(st.just("cut"), SEQ, st.integers(0, 14)),
    st.tuples(st.just("copy"), SEQ, SEQ),
    st.tuples(st.just("keep"), SEQ),
    st.tuples(st.just("move"), st.integers(1, 5)),
    st.tuples(st.just("div"), SEQ),
    st.tuples(st.just("drop"), SEQ),
    st.tuples(st.just("restore"), SEQ),
    st.tuples(st.just("fail"), SEQ, st.integers(1, 3)),
)


@given(ops=st.lists(OPS, max_size=14), n_ubatch=st.integers(1, 5))
def test_as_with_full_cells(path: Path, ops: list[Any], n_ubatch: int) -> None:
    """The same operations with either kind of cache: the same logits, or an error that says what is
    gone; never logits without it."""
    full = context(path, n_seq_max=N_SEQ, n_ubatch=n_ubatch)
    ctx = small(path, n_seq_max=N_SEQ, n_ubatch=n_ubatch)
    assert ctx.cache.window is not None
    refused = 0
    for name, seq, *args in ops:
        if name == "append":
            refused += not _append(full, ctx, seq, args[0])
        elif name == "fail":
            _fail(ctx, seq, args[0])
        elif name == "restore":
            for c in (full, ctx):
                c.load_state(c.save_state(seq), seq)
        else:
            for c in (full, ctx):
                _change(c, name, seq, *args)
        assert [full.pos_max(s) for s in range(N_SEQ)] == [ctx.pos_max(s) for s in range(N_SEQ)]
        assert ctx.cache.window.n_used <= ctx.cache.window.size
    for seq in range(N_SEQ):
        _append(full, ctx, seq, 2)


def _append(full: Context, ctx: Context, seq: int, n: int) -> bool:
    start = full.pos_max(seq) + 1
    if full.cache.n_used + n > full.n_ctx:
        return True
    batch = Batch(TEXT[:n], range(start, start + n), [[seq]] * n, "all")
    want = full.decode(batch)
    try:
        got = ctx.decode(batch)
    except ContextError as error:
        assert "sliding-window layers have dropped" in str(error)
        for c in (full, ctx):
            c.seq_rm(seq)
        return False
    np.testing.assert_allclose(got, want, atol=ATOL)
    return True


def _fail(ctx: Context, seq: int, at: int) -> None:
    start, run, calls = ctx.pos_max(seq) + 1, ctx._graphs.run, []
    if ctx.cache.n_used + 9 > ctx.n_ctx:
        return

    def fail_later(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        return run(*args)

    ctx._graphs.run = fail_later  # type: ignore[method-assign]
    try:
        ctx.decode(TEXT[:9], range(start, start + 9), seqs=[[seq]] * 9)
    except (KeyboardInterrupt, ContextError):
        return
    finally:
        ctx._graphs.run = run  # type: ignore[method-assign]
    ctx.seq_rm(seq, start, -1)  # two calls at the most: it went through


def _change(c: Context, name: str, seq: int, *args: int) -> None:
    if name == "cut":
        c.seq_rm(seq, args[0], -1)
    elif name == "copy" and seq != args[0]:
        c.seq_rm(args[0])
        c.seq_cp(seq, args[0])
    elif name == "keep":
        c.seq_keep(seq)
    elif name == "move":
        c.seq_add(-1, -1, -1, seq)
    elif name == "div":
        c.seq_div(seq, -1, -1, 2)
    elif name == "drop" and c.pos_max(seq) > 5:
        c.seq_rm(seq, 2, 4)
        c.seq_add(seq, 4, -1, -2)
