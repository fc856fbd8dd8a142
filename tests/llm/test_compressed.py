"""Compressed keys: chunks, sequences, forks, states and kept texts are as one text at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.made_models import configure, context, keys_of, made_up
from tests.llm.rare_models import RARE
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm.cache.cells import BlockCells, Cells
from weft.llm.cache.kv_cache import cache_bytes
from weft.llm.cache.snapshots import (
    cut,
    keep_text,
    put_text,
    read_checkpoint,
    share,
    text_bytes,
)
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.model import Model

TEXT = [int(t) for t in np.random.default_rng(3).integers(3, 100, 44)]
ATOL = 5e-5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    meta = keys_of(*RARE["deepseek4"])
    return write_model(folder / "m.gguf", meta, made_up(configure(folder, meta)))


@pytest.fixture(scope="module")
def want(path: Path) -> NDArray[np.float32]:
    return context(path).decode(TEXT, outputs="all")


def small(path: Path, **options: Any) -> Context:
    """A context whose window has cells of its own."""
    return context(path, **({"n_ubatch": 5} | options))


def check(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, atol=ATOL, rtol=0)


def test_memory(path: Path) -> None:
    ctx = small(path, n_seq_max=2)
    cache, config = ctx.cache, ctx.model.config
    assert cache.window is not None and config.compression is not None
    # the longest span is 8 positions, though the window is 6
    assert cache.window.size == 2 * 8 + 5 and cache.k[1].ne[1] == 21
    assert {r: (t.size, t.span) for r, t in cache.blocks.items()} == {4: (16, 8), 8: (10, 8)}
    assert [il in cache.pending for il in range(3)] == [False, True, True]
    assert cache.compressed[1].ne[:2] == (8, 17) and cache.index[1].ne[:2] == (6, 17)
    assert cache.pending[1].ne[0] == 4 * 8 + 4 * 6 and cache.pending[2].ne[0] == 2 * 8
    size = ctx.plan.options.window_size(config)
    assert cache.nbytes == cache_bytes(config, 48, "f32", "f32", 2, size)
    assert 0 <= ctx.memory.cache - cache.nbytes < 64  # leaves begin at multiples
    assert len({t.name for il in range(3) for t in cache.leaves(il)}) == 3 * 2 + 2 + 3
    again = Context(Model.open(path), plan=ctx.plan.to_json(), devices=["reference"])
    assert again.cache.nbytes == cache.nbytes


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("ends", [[44], [1, 3, 4, 8, 9, 20, 44], [7, 8, 31, 44]])
def test_chunks(path: Path, want: NDArray[np.float32], ends: list[int], flash: bool) -> None:
    ctx = small(path, flash=flash)
    for a, b in zip([0, *ends], ends, strict=False):
        check(ctx.decode(TEXT[a:b], outputs="all"), want[a:b])
    assert ctx.cache.blocks[4].n_used == 11 and ctx.cache.blocks[8].n_used == 5


def test_one_token_at_a_time(path: Path, want: NDArray[np.float32]) -> None:
    ctx = small(path)
    for p in range(30):
        check(ctx.decode(TEXT[p : p + 1]), want[p : p + 1])


def test_quantized_keys(path: Path, tmp_path: Path) -> None:
    arch, changes = RARE["deepseek4"]
    wide = {f"attention.{name}": 32 for name in ("key_length", "value_length")}
    meta = keys_of(arch, changes | wide | {"attention.indexer.key_length": 32})
    tensors = made_up(configure(tmp_path, meta))
    file = write_model(tmp_path / "m.gguf", meta, tensors)
    exact = context(file).decode(TEXT, outputs="all")
    ctx = Context(Model.open(file), 48, type_k="q8_0", n_ubatch=5, devices=["cpu"])
    got = ctx.decode(TEXT, outputs="all")
    assert 0 < np.abs(got - exact).mean() < 0.05 * np.abs(exact).mean()
    with pytest.raises(ContextError, match=r"type_k is q8_0, but attention without flash"):
        Context(Model.open(file), 48, type_k="q8_0", flash=False)
    with pytest.raises(ContextError, match="blocks of 32 numbers, but heads of"):
        Context(Model.open(path), 48, type_k="q8_0", devices=["cpu"])


def test_sequences_in_turn(path: Path, want: NDArray[np.float32]) -> None:
    other = TEXT[20:40]
    alone = context(path).decode(other, outputs="all")
    ctx = small(path, n_seq_max=2)
    for p in range(20):
        got = ctx.decode([TEXT[p], other[p]], [p, p], seqs=[[0], [1]], outputs="all")
        check(got, np.stack([want[p], alone[p]]))


def test_forks(path: Path, want: NDArray[np.float32]) -> None:
    """A text that parts from another at every place in a block."""
    ctx = small(path, n_seq_max=2)
    ctx.decode(TEXT[:11])
    for at in range(11, 20):
        ctx.seq_rm(1)
        ctx.seq_cp(0, 1)
        whole = context(path).decode([*TEXT[:at], *range(9, 19)], outputs="all")
        check(ctx.decode(range(9, 19), seqs=[[1]] * 10, outputs="all"), whole[at:])
        check(ctx.decode(TEXT[at : at + 1]), want[at : at + 1])


def test_the_end_is_written_anew(path: Path, want: NDArray[np.float32]) -> None:
    ctx = small(path)
    for at in range(8, 36, 3):
        ctx.decode([50, 51, 52, 53], range(at - 3, at + 1)) if at > 8 else ctx.decode(TEXT[:9])
        ctx.seq_rm(0, at - 3, -1)
        check(ctx.decode(TEXT[at - 3 : at], outputs="all"), want[at - 3 : at])


def test_a_beginning_in_common(path: Path, want: NDArray[np.float32]) -> None:
    ctx = small(path, n_seq_max=2)
    ctx.decode(TEXT[:14], seqs=[[0, 1]] * 14)
    check(ctx.decode(TEXT[14:30], seqs=[[1]] * 16, outputs="all"), want[14:30])
    check(ctx.decode(TEXT[14:20], seqs=[[0]] * 6, outputs="all"), want[14:20])
    ctx.seq_keep(1)
    check(ctx.decode(TEXT[30:40], seqs=[[1]] * 10, outputs="all"), want[30:40])
    assert ctx.cache.blocks[4].n_used == 10


def test_full_of_forks(path: Path) -> None:
    """Every sequence parts in the middle of a block, and all fit."""
    ctx = context(path, n_seq_max=6, n_ubatch=1)
    ctx.decode(TEXT[:3], seqs=[[*range(6)]] * 3)
    for p in range(3, 10):
        ctx.decode([p + s for s in range(6)], [p] * 6, seqs=[[s] for s in range(6)])
    assert ctx.cache.blocks[4].n_used == 6 * 2


@pytest.mark.parametrize("whole", [True, False])
def test_states(path: Path, want: NDArray[np.float32], whole: bool) -> None:
    a = small(path, n_seq_max=2)
    a.decode(TEXT[:17])
    a.decode(TEXT[:9], seqs=[[1]] * 9)
    b = small(path, n_seq_max=3, n_ubatch=7)
    b.decode(TEXT[5:12], seqs=[[2]] * 7)
    if whole:
        b.load_state(a.save_state())
        check(b.decode(TEXT[9:16], seqs=[[1]] * 7, outputs="all"), want[9:16])
    else:
        b.load_state(a.save_state(0), 0)
    check(b.decode(TEXT[17:24], outputs="all"), want[17:24])
    if not whole:
        b.load_state(a.save_state(1), 2)
        check(b.decode(TEXT[9:20], seqs=[[2]] * 11, outputs="all"), want[9:20])
    forged = a.save_state().replace(b'"n_blocks": [', b'"n_blockz": [')
    with pytest.raises(FormatError, match="checksum"):
        b.load_state(forged)


@pytest.mark.parametrize("n", [12, 15, 17])
def test_kept_texts(path: Path, want: NDArray[np.float32], n: int) -> None:
    ctx = small(path, n_seq_max=3)
    cache = ctx.cache
    ctx.decode(TEXT[:n])
    checkpoint = read_checkpoint(cache, 0)
    ctx.decode(TEXT[n:25])
    text = keep_text(cache, 0, b"", 25)
    assert text.nbytes == text_bytes(cache, 25)
    share(cache, 0, 1, n, checkpoint)
    check(ctx.decode(TEXT[n:30], seqs=[[1]] * (30 - n), outputs="all"), want[n:30])
    cut(cache, 0, n, checkpoint)
    check(ctx.decode(TEXT[n:22], outputs="all"), want[n:22])
    ctx.clear()
    put_text(cache, 2, text, n, checkpoint)
    check(ctx.decode(TEXT[n:40], seqs=[[2]] * (40 - n), outputs="all"), want[n:40])


def test_what_cannot_be(path: Path) -> None:
    ctx = small(path, n_seq_max=2)
    ctx.decode(TEXT[:20])
    for call in (
        lambda: ctx.seq_rm(0, 3, 6),
        lambda: ctx.seq_rm(0, 0, 4),
        lambda: ctx.seq_cp(0, 1, 4, 9),
    ):
        with pytest.raises(ContextError, match="whole block of tokens"):
            call()
    for move in (lambda: ctx.seq_add(0, 0, -1, 4), lambda: ctx.seq_div(0, 0, -1, 2)):
        with pytest.raises(ContextError, match="positions of tokens in compressed keys"):
            move()
    with pytest.raises(ContextError, match="compressed keys cannot go on when its context is full"):
        ctx.drop_oldest()
    with pytest.raises(ContextError, match="must go on from 20 without gaps"):
        ctx.decode([5], [22])
    with pytest.raises(ContextError, match="must go on from 0 without gaps"):
        ctx.decode([5, 6], [0, 2], seqs=[[1], [1]])
    with pytest.raises(ContextError, match="chooses experts by tokens"):
        ctx.decode(Batch(embeddings=np.zeros((1, ctx.model.config.n_embd))))
    ctx.decode(TEXT[20:40])
    ctx.seq_rm(0, 9, -1)
    with pytest.raises(ContextError, match="sees tokens that sliding-window layers have dropped"):
        ctx.decode([5])


def test_a_block_that_is_not_whole() -> None:
    cells, table = BlockCells(16, 1, 4, 8), Cells(16)
    one = np.ones((1, 3), np.bool_)
    table.occupy(np.arange(3), np.array([0, 1, 3], np.int32), one)
    with pytest.raises(ContextError, match="position 3 of sequence 0 ends a block of 4 tokens"):
        cells.sources(table, 0, 3)
    table.occupy(np.array([9]), np.array([2], np.int32), one[:, :1])
    assert cells.sources(table, 0, 3).tolist() == [-1, -1, -1, -1, 0, 1, 9, 2]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("hyper_connection.count", 3, "it must be 4"),
        ("attention.sliding_window", 0, "1 or more"),
        ("attention.output_group_count", 3, "a divisor of 4 heads"),
        ("attention.head_count_kv", 4, "a key is the value as well"),
        ("expert_gating_func", 2, "4, with experts in every layer"),
        ("rope.dimension_count", 8, "it must be in 1..6"),
        ("attention.compress_ratios", np.array([0, 4, 1 << 20], np.int32), "at most 4096"),
        ("attention.compress_ratios", np.array([0, 4], np.int32), "an integer for each of 3"),
        ("attention.compress_ratios", np.array([0, 4, 4], np.int32), "in layers with an indexer"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, key: str, value: object, why: str) -> None:
    arch, changes = RARE["deepseek4"]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    file = write_model(tmp_path / "m.gguf", meta | {f"{arch}.{key}": value}, tensors)
    with pytest.raises(FormatError, match=why):
        Model.open(file)


def test_a_table_of_experts_that_are_not(tmp_path: Path) -> None:
    meta = keys_of(*RARE["deepseek4"])
    tensors = made_up(configure(tmp_path, meta))
    name = "blk.0.ffn_gate_tid2eid.weight"
    for bad in (tensors[name] + 5, tensors[name] - 9, tensors[name].astype(np.float32)):
        file = write_model(tmp_path / "m.gguf", meta, tensors | {name: bad})
        with pytest.raises(FormatError, match="i32 numbers of experts from 0 to 4"):
            Model.open(file)
