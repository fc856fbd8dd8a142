"""Cells that move together: what sequences hold stays, and results do not show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, context, keys_of, made_up
from tests.llm.tiny import metadata, write_model
from tests.profiles import examples
from weft.errors import DeviceError
from weft.llm.cache.cells import Cells
from weft.llm.cache.compaction import moves, pays
from weft.llm.cache.pages import PAGE, STRIP
from weft.llm.compute.context import Context
from weft.llm.model import Model

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    meta = metadata(**{"llama.context_length": 2048})
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf", meta))


def make(model: Model, n_ctx: int = 1024, **options: Any) -> Context:
    return Context(model, n_ctx, n_seq_max=8, n_ubatch=64, **options)


def text(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 259, n)]


def interleaved(context: Context, n: int = 100, n_seq: int = 8) -> None:
    """Texts that take turns, so that their cells lie between those of others."""
    for start in range(0, n, 20):
        for seq in range(n_seq):
            tokens = text(n, seq)[start : start + 20]
            context.decode(tokens, np.arange(start, start + 20), seqs=[[seq]] * 20)


def one(context: Context, seq: int, position: int, token: int = 7) -> np.ndarray:
    return context.decode([token], [position], seqs=[[seq]])


def test_flash_attention_gives_the_same_bits(model: Model) -> None:
    """Several texts, a fork, a part taken back: decoded on with and without compaction."""

    def run(compacts: bool) -> list[np.ndarray]:
        context = make(model)
        interleaved(context)
        context.seq_cp(2, 5) if context.seq_rm(5) is None else None
        for seq in (0, 1, 3, 4):
            context.seq_rm(seq)
        context.seq_rm(6, 70)
        before = context.cache.n_seen
        if compacts:
            assert context.compact() > 0
            assert context.cache.n_seen < before
            assert context.counters.compactions == 1 and context.counters.cells_moved > 0
            assert context.compact() == 0
        rows = [one(context, 2, 100), one(context, 5, 100, 9), one(context, 6, 70)]
        rows += [one(context, 7, p) for p in range(100, 140)]
        rows.append(context.decode(text(90, 9), np.arange(90), seqs=[[0]] * 90))
        return rows

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_flash_it_is_done_where_it_pays(model: Model) -> None:
    context, alone = make(model, flash=False), make(model, flash=False)
    interleaved(context)
    for seq in range(7):
        context.seq_rm(seq)
    seen = context.cache.n_seen
    assert seen >= 8 * 100
    for start in range(0, 100, 20):
        tokens = text(100, 7)[start : start + 20]
        alone.decode(tokens, np.arange(start, start + 20), seqs=[[7]] * 20)
    np.testing.assert_allclose(one(context, 7, 100), one(alone, 7, 100), rtol=1e-4, atol=1e-5)
    assert context.cache.n_seen <= 100 + 2 * STRIP and context.counters.compactions == 1
    one(context, 7, 101)
    context.seq_rm(7, 101)
    one(context, 7, 101)
    assert context.counters.compactions == 1  # nothing to gain


def test_flash_contexts_do_not_compact_by_themselves(model: Model) -> None:
    context = make(model)
    interleaved(context)
    for seq in range(7):
        context.seq_rm(seq)
    one(context, 7, 100)
    assert context.counters.compactions == 0


def test_moved_positions_wait_for_their_rotation(model: Model) -> None:
    def run(compacts: bool) -> np.ndarray:
        context = make(model)
        interleaved(context, 60, 4)
        context.seq_rm(0)
        context.drop_oldest(3, 4, 20)
        if compacts:
            assert context.compact() > 0
        return one(context, 3, 40)

    np.testing.assert_array_equal(run(True), run(False))


def test_states_are_saved_and_loaded_after_it(model: Model) -> None:
    context = make(model)
    interleaved(context)
    for seq in (0, 2, 4, 5):
        context.seq_rm(seq)
    context.compact()
    other = make(model)
    other.load_state(context.save_state(7), 1)
    np.testing.assert_array_equal(one(other, 1, 100), one(context, 7, 100))
    assert context.reuse_prefix(1, text(100, 1)) == 99


def test_cells_of_windows_move_too(tmp_path: Path) -> None:
    arch, changes = RELATIVES["gemma2"]
    meta = keys_of(arch, changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))

    def run(compacts: bool) -> list[np.ndarray]:
        c = context(path, swa_full=False, n_ubatch=4, n_seq_max=6)
        assert c.cache.window is not None
        for start in range(0, 8, 4):
            for seq in range(5):
                c.decode(text(8, seq)[start : start + 4], np.arange(start, start + 4),
                         seqs=[[seq]] * 4)  # fmt: skip
        c.seq_cp(4, 5)
        for seq in range(4):
            c.seq_rm(seq)
        before = c.cache.window.n_seen
        if compacts:
            assert c.compact() > 0
            assert c.cache.window.n_seen < before
        return [one(c, 4, 8), one(c, 5, 8, 9), one(c, 4, 9)]

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_failing_device_empties_the_cache(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(model)
    interleaved(context)
    context.seq_rm(0)

    def fails(*_: object) -> None:
        raise DeviceError("gone")

    monkeypatch.setattr("weft.llm.cache.kv_cache.write_rows", fails)
    with pytest.raises(DeviceError, match="gone"):
        context.compact()
    assert context.cache.n_used == 0


@settings(max_examples=examples(4.0))
@given(
    used=st.lists(st.booleans(), min_size=1, max_size=400),
    unit=st.sampled_from([STRIP, PAGE]),
)
def test_moves_keep_order_and_place_in_the_piece(used: list[bool], unit: int) -> None:
    cells = Cells(len(used))
    at = np.flatnonzero(used)
    if len(at):
        members = np.ones((1, len(at)), np.bool_)
        cells.occupy(at, np.arange(len(at), dtype=np.int32), members)
    source, target = moves(cells, unit)
    assert ((source - target) % unit == 0).all() and (target < source).all()
    after = np.setdiff1d(at, source)
    everything = np.sort(np.concatenate([after, target]))
    assert len(np.unique(everything)) == len(at)
    cells.relocate(source, target)
    assert cells.pos[cells.cells_of(0)].tolist() == list(range(len(at)))
    assert (np.diff(cells.cells_of(0)) > 0).all()
    assert len(moves(cells, unit)[0]) == 0


def test_it_pays_when_half_would_go() -> None:
    cells = Cells(512)
    members = np.ones((1, 512), np.bool_)
    cells.occupy(np.arange(512), np.arange(512, dtype=np.int32), members)
    assert not pays(cells)
    cells.seq_rm(0, 16, 272)
    assert pays(cells) and cells.freed
    small = Cells(128)
    small.occupy(np.array([100]), np.zeros(1, np.int32), members[:, :1])
    assert not pays(small)  # next to nothing to gain
