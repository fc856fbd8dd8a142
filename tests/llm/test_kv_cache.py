"""Cells, sequences and masks, against a dictionary that remembers everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, keys_of
from tests.llm.tiny import metadata, write_model
from tests.profiles import examples
from weft import _native
from weft.errors import ContextError, OutOfMemoryError
from weft.frontends.gguf import open_gguf
from weft.llm.cache.kv_cache import KVCache, cache_bytes
from weft.llm.config import ModelConfig
from weft.llm.config_keys import read_config

SIZE, N_SEQ = 12, 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    path = tmp_path_factory.mktemp("config") / "m.gguf"
    write_model(path, metadata(), {"x": np.zeros(1, np.float32)})
    return read_config(open_gguf(path))


def put(cache: KVCache, positions: list[int], seqs: list[set[int]]) -> np.ndarray:
    cells = cache.find_free(len(positions))
    members = np.array([[s in seq for seq in seqs] for s in range(cache.n_seq_max)])
    cache.occupy(cells, np.array(positions, np.int32), members)
    return cells


def test_memory(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE, type_k="f32", type_v="f16")
    assert [t.ne for t in cache.k] == [(8, SIZE, 1, 1)] * 2
    assert (cache.k[0].dtype.name, cache.v[0].dtype.name) == ("f32", "f16")
    assert cache.nbytes == cache_bytes(config, SIZE, "f32", "f16") == 2 * SIZE * 8 * (4 + 2)


def test_types_that_cannot_be_cached(config: ModelConfig) -> None:
    with pytest.raises(ContextError, match="type_v is q6_K; it must be f16 or f32"):
        KVCache(config, SIZE, type_v="q6_K")
    with pytest.raises(ContextError, match="type_k: unknown type 'q4'"):
        KVCache(config, SIZE, type_k="q4")


def test_no_room(config: ModelConfig) -> None:
    with pytest.raises(OutOfMemoryError, match="cache_k_0"):
        KVCache(config, 1 << 58)


def test_a_full_cache_says_both_numbers(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE)
    put(cache, list(range(10)), [{0}] * 10)
    with pytest.raises(ContextError, match=r"3 tokens do not fit.*: 2 of its 12 cells"):
        cache.find_free(3)
    assert cache.find_free(2).tolist() == [10, 11]


def test_holes_are_filled_first(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE)
    put(cache, list(range(8)), [{0}] * 8)
    cache.seq_rm(0, 2, 4)
    assert (cache.n_used, cache.n_seen) == (6, 8)
    assert put(cache, [8, 9, 10], [{0}] * 3).tolist() == [2, 3, 8]
    assert (cache.n_used, cache.n_seen) == (9, 9)


def test_an_unknown_sequence(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE, n_seq_max=N_SEQ)
    with pytest.raises(ContextError, match=r"sequence 3 is not in 0\.\.2"):
        cache.seq_cp(0, 3)


OPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 20), st.sets(st.integers(0, N_SEQ - 1), min_size=1)),
    st.tuples(st.just("rm"), st.integers(-1, N_SEQ - 1), st.integers(-1, 20), st.integers(-1, 20)),
    st.tuples(
        st.just("cp"),
        st.integers(0, N_SEQ - 1),
        st.integers(0, N_SEQ - 1),
        st.integers(-1, 20),
        st.integers(-1, 20),
    ),
    st.tuples(st.just("keep"), st.integers(0, N_SEQ - 1)),
    st.tuples(
        st.just("add"),
        st.integers(-1, N_SEQ - 1),
        st.integers(-1, 20),
        st.integers(-1, 20),
        st.integers(-9, 9),
    ),
    st.tuples(
        st.just("div"),
        st.integers(-1, N_SEQ - 1),
        st.integers(-1, 20),
        st.integers(-1, 20),
        st.integers(1, 4),
    ),
    st.tuples(st.just("release"), st.integers(0, SIZE - 1)),
    st.tuples(st.just("clear")),
)


@settings(max_examples=examples(4.0))
@given(ops=st.lists(OPS, max_size=25), window=st.integers(0, 6), at=st.integers(0, 20))
def test_against_a_plain_model(config: ModelConfig, ops: list[tuple], window: int, at: int) -> None:
    """Cells as a dict of (position, members), and the attention rule written out."""
    cache = KVCache(config, SIZE, n_seq_max=N_SEQ)
    cells: dict[int, tuple[int, set[int]]] = {}
    moved: dict[int, int] = {}

    def in_range(pos: int, p0: int, p1: int) -> bool:
        return pos >= max(p0, 0) and (p1 < 0 or pos < p1)

    for name, *args in ops:
        if name == "put":
            if len(cells) < SIZE:
                (cell,) = put(cache, [args[0]], [args[1]]).tolist()
                assert cell == min(set(range(SIZE)) - set(cells))
                cells[cell] = (args[0], set(args[1]))
                moved[cell] = 0
        elif name == "rm":
            cache.seq_rm(*args)
            for pos, members in cells.values():
                if in_range(pos, *args[1:]):
                    members -= set(range(N_SEQ)) if args[0] < 0 else {args[0]}
        elif name == "cp":
            cache.seq_cp(*args)
            for pos, members in cells.values():
                if args[0] in members and in_range(pos, *args[2:]):
                    members.add(args[1])
        elif name in ("add", "div"):
            seq, p0, p1, n = args
            (cache.seq_add if name == "add" else cache.seq_div)(seq, p0, p1, n)
            for c, (pos, members) in cells.items():
                if in_range(pos, p0, p1) and (seq < 0 or seq in members):
                    new = pos + n if name == "add" else pos // n
                    cells[c] = (new, members if new >= 0 else set())
                    moved[c] = moved.get(c, 0) + new - pos
        elif name == "keep":
            cache.seq_keep(args[0])
            for _, members in cells.values():
                members &= {args[0]}
        elif name == "release":
            cache.release(np.array(args))
            cells.pop(args[0], None)
        else:
            cache.clear()
            cells.clear()
            moved.clear()
        cells = {c: (pos, members) for c, (pos, members) in cells.items() if members}

        assert cache.n_used == len(cells)
        assert all(cache.shift[c] == moved.get(c, 0) for c in cells)
        assert cache.has_shift or not any(moved.get(c) for c in cells)
        assert cache.n_seen == max(cells, default=-1) + 1
        for s in range(N_SEQ):
            pos = [p for p, members in cells.values() if s in members]
            assert (cache.pos_min(s), cache.pos_max(s)) == (
                min(pos, default=-1),
                max(pos, default=-1),
            )

    n_kv = max(cache.n_seen, 1)
    positions = np.array([at, at + 1, 0], np.int32)
    seqs = np.array([0, 1, 2], np.int32)
    mask = np.empty((3, n_kv), np.float16)
    cache.fill_mask(mask, positions, seqs, window)
    for row, p, s in zip(mask, positions.tolist(), seqs.tolist(), strict=True):
        for c, value in enumerate(row):
            pos, members = cells.get(c, (0, set()))
            seen = s in members and pos <= p and (window == 0 or p - pos < window)
            assert value == (0.0 if seen else -np.inf)
    for causal in (True, False):
        cache.fill_mask(mask, positions, seqs, window, causal=causal)
        out = np.empty(3 * n_kv, np.float16)
        writer = _native.MaskWriter(cache.pos, cache.members, out.view(np.uint16), window, causal)
        writer.all(n_kv, positions, seqs)
        assert (out.reshape(3, n_kv) == mask).all()
        for row, p, s in zip(mask, positions.tolist(), seqs.tolist(), strict=True):
            writer.one(n_kv, p, s)
            assert (out[:n_kv] == row).all()


@pytest.mark.parametrize("kind", ["causal", "chunked", "both sides"])
def test_masks_of_every_window(config: ModelConfig, kind: str) -> None:
    """The rule of attention, written out for each token and cell."""
    cache = KVCache(config, SIZE, n_seq_max=2)
    put(cache, [3, 0, 1, 2, 9, 4, 7, 5, 6, 0, 1], [{0}] * 9 + [{1}, {0, 1}])
    tokens = [(p, s) for p in range(12) for s in range(2)]
    positions, seqs = np.array(tokens, np.int32).T
    out = np.empty((len(tokens), SIZE), np.float16)
    for window in range(12):
        for distances in (False, True):
            cache.fill_mask(
                out, positions, seqs, window, distances=distances,
                causal=kind != "both sides", chunked=kind == "chunked",
            )  # fmt: skip
            for row, (p, s) in zip(out, tokens, strict=True):
                for c, value in enumerate(row):
                    pos = int(cache.pos[c])
                    near = {
                        "causal": 0 <= p - pos and (window == 0 or p - pos < window),
                        "chunked": pos <= p and (window == 0 or pos // window == p // window),
                        "both sides": window == 0 or abs(p - pos) <= window // 2,
                    }[kind]
                    seen = cache.members[s, c] and near
                    assert value == ((-abs(p - pos) if distances else 0) if seen else -np.inf)
        if kind == "chunked":
            continue
        cache.fill_mask(out, positions, seqs, window, causal=kind == "causal")
        written = np.empty(out.size, np.uint16)
        writer = _native.MaskWriter(cache.pos, cache.members, written, window, kind == "causal")
        writer.all(SIZE, positions, seqs)
        assert (written == out.view(np.uint16).reshape(-1)).all()
        for row, (p, s) in zip(out, tokens, strict=True):
            writer.one(SIZE, p, s)
            assert (written[:SIZE] == row.view(np.uint16)).all()


def test_moves_of_positions_add_up(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE, n_seq_max=2)
    put(cache, list(range(6)), [{0}, {0}, {0, 1}, {1}, {0}, {0}])
    cache.shifted()
    cache.seq_add(0, 2, -1, 4)
    cache.seq_add(1, -1, 7, -2)
    cache.seq_div(0, 4, 9, 2)
    assert cache.pos.tolist()[:6] == [0, 1, 2, 1, 4, 9]
    assert cache.shift.tolist()[:6] == [0, 0, 0, -2, 0, 4]
    assert cache.serial.tolist()[:6] == [1, 1, -1, -1, -1, -1] and cache.has_shift
    cache.shifted()
    assert not cache.shift.any() and not cache.has_shift
    cache.seq_add(0, 0, 2, -1)
    assert cache.pos.tolist()[:3] == [-1, 0, 2] and cache.find_free(1).tolist() == [0]


def test_cells_of_a_window_follow_the_others(tmp_path: Path) -> None:
    """Whatever is done to sequences is done to both tables."""
    arch, changes = RELATIVES["gemma2"]
    meta = keys_of(arch, changes)
    windowed = configure(tmp_path, meta)
    rng = np.random.default_rng(0)
    for _ in range(40):
        cache = KVCache(windowed, SIZE, n_seq_max=N_SEQ, window_size=SIZE)
        window = cache.window
        assert window is not None
        for _ in range(6):
            kind, seq, other = int(rng.integers(8)), *rng.integers(N_SEQ, size=2).tolist()
            p0, p1 = sorted(rng.integers(-1, SIZE, 2).tolist())
            if kind < 2 and cache.n_used + 3 <= SIZE:
                start = cache.pos_max(seq) + 1
                members = np.zeros((N_SEQ, 3), np.bool_)
                members[[seq, other]] = True
                for table in (cache, window):
                    positions = np.arange(start, start + 3, dtype=np.int32)
                    table.occupy(table.find_free(3), positions, members)
            elif kind == 2:
                cache.seq_rm(seq, p0, p1)
            elif kind == 3:
                cache.seq_cp(seq, other, p0, p1)
            elif kind == 4:
                cache.seq_add(seq, p0, p1, other - 1)
            elif kind == 5:
                cache.seq_div(seq, p0, p1, 2)
            elif kind == 6 and not (cache.members.sum(axis=0) > 1).any():
                cache.take_back(seq, p0)
            elif kind == 7 and other == 0:
                cache.clear()
            elif kind == 7:
                cache.seq_keep(seq)
                cache.shifted()
            for name in ("pos", "members", "shift", "mixed", "n_seen", "has_shift"):
                assert np.array_equal(getattr(cache, name), getattr(window, name)), (kind, name)
            assert cache.can_cut(seq, p1)


def test_masks_that_do_not_fit_are_refused(config: ModelConfig) -> None:
    cache = KVCache(config, SIZE, n_seq_max=N_SEQ)
    out = np.zeros(2 * SIZE, np.uint16)
    writer = _native.MaskWriter(cache.pos, cache.members, out, 0, True)
    positions = np.zeros(3, np.int32)
    for call in (
        lambda: writer.one(SIZE + 1, 0, 0),
        lambda: writer.one(-1, 0, 0),
        lambda: writer.one(SIZE, 0, N_SEQ),
        lambda: writer.one(SIZE, 0, -1),
        lambda: writer.all(SIZE, positions, positions),
        lambda: writer.all(SIZE, positions[:2], positions[:1]),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        _native.MaskWriter(cache.pos[1:], cache.members, out, 0, True)
