"""Updates of a watched cache: each is a record that says what the tables of cells show."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.engine_requests import finish, request
from tests.llm.llama_models import RELATIVES
from tests.llm.lost_device import Lost
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.prefix_texts import END, make_lasting, words
from tests.llm.tiny import metadata, write_model
from weft import bounds
from weft.errors import ContextError, DeviceError
from weft.llm import LLM, Context, KVCache, Model, Tokenizer
from weft.llm.cache.cells import Cells, WindowCells
from weft.llm.cache.events import COLUMNS, USUAL, CacheEvent, CellRanges
from weft.llm.engine import Engine

TEXT = words(1, 60)
SYMBOLS = string.digits + string.ascii_letters + "~~"
ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    meta = metadata(**{"llama.context_length": 2048})
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", meta)


def watched(path: Path, n_ctx: int = 128, **options: Any) -> Context:
    context = Context(Model.open(path), n_ctx, **{"n_seq_max": 3, "n_threads": 1} | options)
    context.watch_cache()
    return context


def said(context: Context | LLM, *kinds: str) -> list[str]:
    context = getattr(context, "context", context)
    events = context.cache_events
    return [e.text for e in events if (e.kind in kinds if kinds else e.kind != "built")]


def numbers(ranges: CellRanges) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]


def test_each_verb_in_words(path: Path) -> None:
    context = watched(path)
    context.decode(TEXT[:28])
    context.decode([TEXT[28]])
    context.seq_cp(0, 1, 0, 20)
    context.decode([7, 8], [20, 29], seqs=[[1], [0]])
    assert context.reuse_prefix(1, TEXT[:14]) == 13
    context.seq_rm(0, 20, 24)
    context.seq_add(0, 24, -1, -4)
    context.decode([9])
    context.seq_div(0, 20, 24, 2)
    context.seq_keep(1)
    context.clear()
    context.clear()  # nothing is left to change
    assert said(context) == [
        "seq 0 takes cells 0-27 for positions 0-27 (28 tokens)",
        "seq 0 takes cell 28 for position 28 (1 token)",
        "seq 1 shares cells 0-19 of seq 0 for positions 0-19 (20 tokens)",
        "seqs 0-1 take cells 29, 68 for positions 29, 20 (2 tokens)",
        "seq 1 goes on behind 13 tokens that it has, and loses cells 13-19, 68",
        "seq 0 loses cells 20-23 with positions 20-23 (4 tokens)",
        "seq 0: positions 24-29 minus 4; keys of cells 24-29 are rotated before the next batch",
        "keys of cells 24-29 of seq 0 are rotated to positions 20-25",
        "seq 0 takes cell 30 for position 26 (1 token)",
        "seq 0: positions 20-23 divided by 2; "
        "keys of cells 24-27 are rotated before the next batch",
        "seq 0 loses cells 0-19, 24-30 with positions 0-19, 10, 10-11, 11, 24-26 (27 tokens)",
        "every cell is free, 13 cells of seq 1 were used",
    ]
    assert [e.n_saved for e in context.cache_events if e.n_saved] == [20, 13]
    assert [e.number for e in context.cache_events] == list(range(1, context.n_cache_events + 1))


def test_costs(path: Path) -> None:
    """Bytes are those of the rows of keys and values, of all layers."""
    context = watched(path, type_v="f32")
    row = context.cache.nbytes // context.cache.size
    context.decode(TEXT[:10])
    context.seq_add(0, 4, -1, 2)
    context.decode([5])
    events = {e.kind: e for e in context.cache_events}
    assert events["taken"].nbytes == row and events["shifted"].nbytes == 10 * row // 3
    assert context.cache_events[1].nbytes == 10 * row and events["added"].nbytes == 0
    assert all(e.microseconds > 0 for e in context.cache_events[1:])
    built = [e for e in context.cache_events if e.kind == "built"]
    assert "of up to 128 tokens is there" in built[0].text
    assert built[0].microseconds == 0 < built[1].microseconds and built[0].nbytes > 0
    assert "because positions were moved for the first time" in built[1].text
    assert context.cache_events[1].cost.startswith("10 of 128 cells used, ")


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q4_0", "f16"), ("f32", "bf16")])
def test_costs_in_other_types(types: tuple[str, str]) -> None:
    context = watched(DEMO, type_k=types[0], type_v=types[1])
    context.decode(TEXT[:10])
    context.seq_cp(0, 1)
    data = context.save_state(1)
    context.clear()
    context.load_state(data, 2)
    row = context.cache.nbytes // context.cache.size
    costs = [(e.kind, e.nbytes // row) for e in context.cache_events[1:]]
    assert costs == [("taken", 10), ("shared", 0), ("kept", 10), ("cleared", 0), ("restored", 10)]
    assert all(e.nbytes % row == 0 for e in context.cache_events[1:])


class Before:
    """What a table of cells held."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.pos, self.members = cells.pos.copy(), cells.members.copy()

    def changed(self) -> list[int]:
        differs = (self.pos != self.cells.pos) | (self.members != self.cells.members).any(0)
        return np.flatnonzero(differs).tolist()


def check_map(event: CacheEvent, cells: Cells) -> None:
    """The map has a character for the sequences of each piece of cells."""
    unit = event.map_unit
    assert len(event.map) <= COLUMNS and len(event.map) == -(-cells.n_seen // unit)
    for i, what in enumerate(event.map):
        piece = cells.members[:, i * unit : (i + 1) * unit]
        owners = [np.flatnonzero(column).tolist() for column in piece.T]
        symbols = {SYMBOLS[each[0]] if len(each) == 1 else "+" for each in owners if each}
        assert what == (symbols.pop() if len(symbols) == 1 else "+" if symbols else ".")


@pytest.mark.parametrize("seed", range(6))
def test_events_say_what_the_tables_show(path: Path, seed: int) -> None:
    rnd = np.random.default_rng(seed)
    context = watched(path, n_ctx=600, n_ubatch=32, flash=seed % 2 == 0)
    cache = context.cache
    for _ in range(40):
        n, before = context.n_cache_events, Before(cache)
        seq, other = rnd.permutation(3)[:2].tolist()
        a, b = sorted(rnd.integers(0, 40, 2).tolist())
        choice = rnd.integers(0, 9)
        if choice < 3:
            tokens = words(seed, int(rnd.integers(1, 30)))
            context.decode(tokens, seqs=[[seq]] * len(tokens))
        elif choice == 3:
            context.seq_rm(seq, a, b)
        elif choice == 4:
            context.seq_rm(other)
            context.seq_cp(seq, other, 0, b)
        elif choice == 5:
            context.seq_add(seq, a, -1, 1)
        elif choice == 6:
            context.compact()
        elif choice == 7:
            context.seq_keep(seq)
        elif cache.pos_max(seq) > 3:
            context.load_state(context.save_state(seq), other)
        new = [e for e in context.cache_events[n:] if e.kind != "built"]
        found = {cell for e in new for cell in numbers(e.cells)}
        if not any(e.n_more or e.kind in ("moved", "compacted", "restored") for e in new):
            assert set(before.changed()) <= found
        if new:
            check_map(new[-1], cache)
            assert (new[-1].n_used, new[-1].size) == (cache.n_used, 600)
            assert new[-1].n_read[1] == cache.n_read
    for one, after in pairwise(context.cache_events):
        assert after.n_read[0] == one.n_read[1] and one.seconds <= after.seconds


def test_nothing_changes_in_what_is_watched(path: Path) -> None:
    context, plain = watched(path), watched(path)
    plain.watch_cache(0)
    assert type(plain.cache) is KVCache and type(context.cache) is not KVCache
    for tokens in (TEXT[:30], TEXT[30:31], TEXT[31:40]):
        assert np.array_equal(context.decode(tokens), plain.decode(tokens))
    assert plain.cache_events == () and plain.n_cache_events == 0
    context.watch_cache(0)
    assert type(context.cache) is KVCache and not hasattr(context.cache, "log")
    context.decode([5])
    assert context.cache_events == ()


def test_the_last_updates_are_kept(path: Path) -> None:
    context = watched(path)
    context.decode(TEXT[:5])
    context.watch_cache(3)  # begins anew, with the cache as it is
    assert [e.kind for e in context.cache_events] == ["built"]
    assert context.cache_events[0].map == "00000"
    for token in range(5, 12):
        context.decode([token])
    assert [e.number for e in context.cache_events] == [6, 7, 8]
    assert context.n_cache_events == 8 and USUAL <= bounds.CACHE_EVENTS
    for n in (-1, bounds.CACHE_EVENTS + 1):
        with pytest.raises(ContextError, match=f"{n} updates of the cache"):
            context.watch_cache(n)


def test_the_stats_of_an_engine_are_a_copy(path: Path) -> None:
    context = Context(Model.open(path), 64, n_threads=1)
    engine = Engine(context, Tokenizer.from_gguf(context.model.file))
    before = engine.stats
    assert before == engine.stats
    finish(engine.generate(request([1, 5, 6], 3)))
    after = engine.stats
    assert before != after and before.ended == {} and after.ended == {"length": 1}
    assert before.text_sizes != after.text_sizes and after.generated_tokens == 3
    engine.close()


def test_many_ranges(path: Path) -> None:
    """Of cells here and there, the first ranges are named, and how many there are more."""
    context = watched(path)
    context.decode([5] * 100, np.arange(100) // 2, seqs=[[0], [1]] * 50, outputs="last")
    context.seq_cp(0, 2)
    context.seq_rm(0)
    for position in range(0, 50, 2):
        context.seq_rm(2, position, position + 1)
    context.seq_rm(2)
    last = context.cache_events[-1]
    assert len(last.cells) == bounds.CACHE_EVENT_RANGES and last.n_more == 9
    assert last.n_cells == 25 and "and 9 more ranges with positions" in last.text


def test_moved_and_compacted(path: Path) -> None:
    context = watched(path, n_ctx=512, n_ubatch=64, flash=False)
    for start in range(0, 120, 20):
        for seq in range(3):
            tokens = words(seq, 140)[start : start + 20]
            context.decode(tokens, np.arange(start, start + 20), seqs=[[seq]] * 20)
    context.seq_rm(0)
    context.seq_rm(1)
    context.decode([5], [120], seqs=[[2]])  # compacts by itself
    (compacted,) = [e for e in context.cache_events if e.kind == "compacted"]
    before, after = compacted.n_read
    assert after < before / 2 and compacted.n_cells == context.counters.cells_moved > 0
    assert f"attention reads {after} cells instead of {before}" in compacted.cost
    assert compacted.nbytes == compacted.n_cells * context.cache.nbytes // 512
    context.compact()
    assert said(context)[-1] == "there is no gap to remove"


def test_a_sequence_without_room_moves(path: Path) -> None:
    context = watched(path, n_ctx=256)
    for seq, n in ((0, 60), (1, 130)):
        context.decode(words(seq, n), range(n), seqs=[[seq]] * n)
    context.seq_rm(1, 0, 64)
    for position in range(60, 70):
        context.decode([5], [position], seqs=[[0]])
    context.decode(words(4, 60), range(60), seqs=[[2]] * 60)
    for position in range(70, 110):
        context.decode([5], [position], seqs=[[0]])
    moved = [e for e in context.cache_events if e.kind == "moved"]
    for event in moved:
        assert event.seqs == (0,) and event.n_saved == 0 < event.nbytes
        assert "where there is room behind" in event.text


def test_a_call_that_fails(path: Path) -> None:
    lost = Lost()
    context = watched(path, devices=[lost, "cpu"])
    context.decode(TEXT[:10])
    lost.lose("run", once=True)
    with pytest.raises(DeviceError):
        context.decode(TEXT[10:14])
    assert said(context)[1:] == [
        "seq 0 takes cells 10-13 for positions 10-13 (4 tokens)",
        "seq 0 gives back cells 10-13 with positions 10-13 (4 tokens), as if never taken",
    ]
    assert context.cache_events[-1].map == "0" * 10
    with pytest.raises(ContextError, match="sequence 7"):
        context.seq_rm(7)
    context.decode(TEXT[10:12])  # notes go on
    assert said(context)[-1] == "seq 0 takes cells 10-11 for positions 10-11 (2 tokens)"


def test_after_a_fallback(path: Path) -> None:
    lost = Lost()
    context = watched(path, devices=[lost, "cpu"], fallback=["cpu"])
    context.decode(TEXT[:10])
    n = context.n_cache_events
    lost.lose("run")
    with pytest.warns(RuntimeWarning, match="going on with cpu"):
        context.decode([5])
    assert context.fell_back and context.n_cache_events > n
    assert said(context)[-1] == "seq 0 takes cell 10 for position 10 (1 token)"


def test_a_window_has_cells_of_its_own(tmp_path: Path) -> None:
    arch, changes = RELATIVES["gemma2"]
    meta = keys_of(arch, changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
    context = watched(path, n_ctx=48, n_seq_max=1, swa_full=False, n_ubatch=3)
    window = context.cache.window
    assert isinstance(window, WindowCells)
    for token in TEXT[:20]:
        context.decode([token])
    own = [e for e in context.cache_events if e.table == "window"]
    assert {e.size for e in own} == {window.size} and {e.kind for e in own} == {"taken", "dropped"}
    assert own[-1].text.startswith("window: seq 0 takes cell ")
    assert "no next token sees them" in next(e.text for e in own if e.kind == "dropped")
    check_map(own[-1], window)
    rows = [e.nbytes for e in context.cache_events if e.kind == "taken"]
    sizes = context.cache.nbytes - 48 * rows[0], window.size * rows[1]
    assert sizes[0] == sizes[1] > 0
    context.seq_rm(0)
    assert [(e.kind, e.table) for e in context.cache_events[-2:]] == [
        ("removed", "cells"), ("removed", "window"),
    ]  # fmt: skip
    context.watch_cache(0)
    assert type(window) is WindowCells


@pytest.mark.parametrize("name", ["mamba", "qwen35", "lfm2"])
def test_recurrent_states(name: str, tmp_path: Path) -> None:
    """A state counts among the bytes, and a checkpoint is a copy that is kept."""
    llm = LLM(make_lasting(name, tmp_path), n_threads=1, n_ctx=256, n_seq_max=1, drafting=None)
    llm.context.watch_cache()
    talk = [1, *words(1, 20), END, 9, 11]
    llm.generate(talk, max_tokens=4, ignore_eos=True)
    llm.generate([*talk, 5, 6, END, *words(2, 20)], max_tokens=2, ignore_eos=True)
    assert llm.stats.n_cached == len(talk)
    states = llm.context.cache.states
    assert states is not None
    state = sum(t.max_bytes // states.n_slots for t in states.tensors)
    taken = next(e for e in llm.context.cache_events if e.kind == "taken")
    assert (taken.nbytes - state) % taken.n_cells == 0 <= taken.nbytes - state
    kept = [e for e in llm.context.cache_events if e.kind == "kept"]
    assert any(f"to a checkpoint after {len(talk)} tokens" in e.text for e in kept)
    assert all(e.nbytes >= state for e in kept if "checkpoint" in e.text)
    reused = [e.n_saved for e in llm.context.cache_events if e.kind == "reused"]
    assert reused == [len(talk)]


def test_prefixes(path: Path, tmp_path: Path) -> None:
    """Texts are kept and come back, from memory and from a folder, and say what that saves."""
    options: dict[str, Any] = {"n_threads": 1, "n_ctx": 256, "n_seq_max": 1, "cache_dir": tmp_path}
    first, second = [1, *words(1, 40)], [1, *words(2, 40)]
    with LLM(path, **options) as llm:
        llm.context.watch_cache()
        for text in (first, second, first):
            llm.generate(text, max_tokens=2, ignore_eos=True)
        saved = [e for e in llm.context.cache_events if e.n_saved]
        assert llm.stats.n_cached == saved[-1].n_saved == 40
        assert saved[-1].kind == "restored" and "back from host memory" in saved[-1].text
        assert "to host memory and the folder (42 tokens)" in said(llm, "kept")[0]
        row = llm.context.cache.nbytes // 256
        assert saved[-1].nbytes == 40 * row
    with LLM(path, **options) as llm:
        llm.context.watch_cache()
        llm.generate(second, max_tokens=2, ignore_eos=True)
        (restored,) = [e for e in llm.context.cache_events if e.kind == "restored"]
        assert (restored.n_saved, restored.seqs) == (40, (0,))
        assert "back from the folder" in restored.text


def test_texts_share_their_beginning(path: Path) -> None:
    llm = LLM(path, n_threads=1, n_ctx=512, n_seq_max=3)
    llm.context.watch_cache()
    start = [1, *words(3, 50)]
    llm.generate([*start, 3], max_tokens=3, ignore_eos=True)
    llm.generate([[*start, 4], [*start, 5]], max_tokens=3, ignore_eos=True)
    saved = [(e.kind, e.n_saved) for e in llm.context.cache_events if e.n_saved]
    assert sorted(saved) == [("reused", 51), ("shared", 51)]
    shared = next(e for e in llm.context.cache_events if e.kind == "shared")
    assert (
        shared.map.startswith("+" * 51)
        and f"shares cells 0-50 of seq {shared.seqs[0]}" in shared.text
    )


def test_saved_states(path: Path) -> None:
    context = watched(path)
    context.decode(TEXT[:9])
    data = context.save_state(0)
    context.load_state(data, 0)  # to the same cells
    kept, restored = context.cache_events[-2:]
    assert kept.text == "seq 0 is copied as a saved state" and kept.nbytes == restored.nbytes > 0
    assert restored.kind == "restored" and restored.n_saved == restored.n_cells == 9


def test_the_counters_are_a_copy(path: Path) -> None:
    context = watched(path)
    before = context.counters
    context.decode([5])
    context.compact()
    after = context.counters
    assert before != after and before.graphs_reused == 0 and before.compactions == 0
    assert (after.graphs_reused, after.compactions) == (1, 1)
    after.graphs_reused = 99
    assert context.counters.graphs_reused == 1


CODE = """
import sys
from weft.llm import Context, Model
context = Context(Model.open(sys.argv[1]), 64, n_threads=1)
context.decode([1, 5, 6])
context.decode([7])
context.seq_rm(0, 0, 2)
print(len(context.cache_events), "weft.llm.cache.watched" in sys.modules)
"""


@pytest.mark.parametrize("level", ["", "1", "2"])
def test_the_environment_prints_them(path: Path, level: str) -> None:
    env = os.environ | {"WEFT_CACHE_DEBUG": level}
    command = [sys.executable, "-c", CODE, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == (["4", "True"] if level else ["0", "False"]), done.stderr
    lines = done.stderr.splitlines()
    if not level:
        assert lines == []
        return
    told = [line for line in lines if line.startswith("cache: ")]
    assert len(told) == 4 and "cache: the graph of up to 64 tokens is there" in told[0]
    assert told[1].startswith("cache: seq 0 takes cells 0-2 for positions 0-2 (3 tokens); 3 of 64")
    maps = [line for line in lines if line not in told]
    want = ["       0 000", "       0 0000", "       0 ..00"]
    assert maps == (want if level == "2" else [])


def test_many_sequences_have_characters(path: Path) -> None:
    context = watched(path, n_ctx=640, n_seq_max=64, n_ubatch=64)
    for seq, symbol in enumerate(SYMBOLS):
        context.decode([5, 6], seqs=[[seq]] * 2)
        assert context.cache_events[-1].map == symbol * 2
        context.clear()
    context.decode([5] * 64, [0] * 64, seqs=[[seq] for seq in range(64)])
    last = context.cache_events[-1]
    assert last.text.startswith("seqs 0-63 take cells ") and "+" in last.map
    check_map(last, context.cache)


def test_long_maps_have_lines(path: Path) -> None:
    context = watched(path, n_ctx=2000, n_ubatch=64)
    context.decode(words(1, 100))
    first, second = context.cache_events[-1].map_lines
    assert first == f"{0:>8} {'0' * 64}" and second == f"{64:>8} {'0' * 36}"
    context.decode(words(2, 1500), range(1500), seqs=[[1]] * 1500)
    last = context.cache_events[-1]
    assert last.map_unit > 1 and last.map_lines[1].startswith(f"{64 * last.map_unit:>8} ")
    check_map(last, context.cache)
