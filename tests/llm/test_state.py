"""Saved states: decoding goes on as if nothing had happened, and only good states are taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import metadata, write_model
from weft.errors import ContextError, FormatError
from weft.llm import Context, Model

TOKENS = [1, *range(259, 270)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf"))


def make(model: Model, n_ctx: int = 24, **options: object) -> Context:
    return Context(model, n_ctx, devices=["reference"], **options)  # type: ignore[arg-type]


def test_a_fresh_context_goes_on_exactly(model: Model) -> None:
    a = make(model, n_seq_max=2)
    a.decode(TOKENS[:8])
    a.cache.seq_rm(0, 3, 5)  # a hole, so that the cells move
    a.cache.seq_cp(0, 1, 0, 3)
    a.cache.seq_add(0, 5, -1, -2)  # keys that are still to be rotated
    state = a.save_state()
    b = make(model, 16, n_seq_max=2)
    b.decode([5, 6, 7])
    b.load_state(state)
    for seq in (0, 1):
        assert (b.cache.pos_min(seq), b.cache.pos_max(seq)) == (
            a.cache.pos_min(seq),
            a.cache.pos_max(seq),
        )
    for seq, position in ((0, 6), (1, 3)):
        x, y = (c.decode([9], [position], seqs=[[seq]]) for c in (a, b))
        assert (x == y).all()


def test_one_sequence_under_another_number(model: Model) -> None:
    a = make(model)
    a.decode(TOKENS[:7])
    b = make(model, n_seq_max=3)
    b.decode(TOKENS[5:9], seqs=[[0, 2]] * 4)
    b.load_state(a.save_state(0), 2)
    assert (b.cache.pos_max(0), b.cache.pos_max(2)) == (3, 6)
    want = a.decode([9])
    np.testing.assert_allclose(b.decode([9], [7], seqs=[[2]]), want, atol=1e-5)


def test_an_empty_state(model: Model) -> None:
    a, b = make(model), make(model)
    b.decode(TOKENS)
    b.load_state(a.save_state())
    assert b.cache.n_used == 0


@pytest.mark.parametrize("at", [0, 10, 40, -1])
def test_a_damaged_state_is_refused(model: Model, at: int) -> None:
    context = make(model)
    context.decode(TOKENS)
    state = bytearray(context.save_state())
    state[at] ^= 1
    with pytest.raises(FormatError, match=r"damaged|not a saved context state"):
        context.load_state(bytes(state))
    with pytest.raises(FormatError, match=r"damaged|not a saved context state"):
        context.load_state(bytes(state[:at]))
    assert context.cache.n_used == len(TOKENS)


def test_a_forged_state_is_refused(model: Model) -> None:
    """The checksum is right, the header lies."""
    context = make(model)
    context.decode(TOKENS)
    body = context.save_state()[:-32]
    for old, new in (
        (b'"n_cells": 12', b'"n_cells": 99'),
        (b'"n_cells": 12', b'"n_cells": -1'),
        (b'"n_cells"', b'"n_calls"'),
        (b'"version": 3', b'"version": 9'),
        (b'{"version', b'["version'),
    ):
        forged = body.replace(old, new)
        assert forged != body
        with pytest.raises(FormatError, match="save it again"):
            context.load_state(forged + hashlib.sha256(forged).digest())
    assert context.cache.n_used == len(TOKENS)


@pytest.mark.parametrize(
    ("array", "dtype", "value", "what"),
    [
        (0, "<i4", -5, "position of cell 0"),
        (0, "<i4", 2**31 - 1, "position of cell 0"),
        (1, "<i4", -2, "token of cell 0"),
        (1, "<i4", 1 << 20, "token of cell 0"),
        (2, "<i8", 2**63 - 1, "time of cell 0"),
        (2, "<i8", -2, "time of cell 0"),
        (3, "u1", 0, "sequence of cell 0"),
    ],
)
def test_a_forged_table_is_refused(
    model: Model, array: int, dtype: str, value: int, what: str
) -> None:
    """The header is right, the table of cells lies; what runs goes on as before."""
    context = make(model)
    context.decode(TOKENS)
    state = context.save_state()
    n, body = len(TOKENS), bytearray(state[:-32])
    at = 12 + int.from_bytes(body[8:12], "little") + (0, 4 * n, 8 * n, 16 * n)[array]
    new = np.array([value], dtype).tobytes()
    body[at : at + len(new)] = new
    with pytest.raises(FormatError, match=f"forged: the {what}"):
        context.load_state(bytes(body) + hashlib.sha256(body).digest())
    assert context.save_state() == state
    other = make(model)
    other.decode(TOKENS)
    assert (context.decode([5]) == other.decode([5])).all()


def test_a_header_nested_without_end(model: Model) -> None:
    body = b"weft-kv\0" + (100_000).to_bytes(4, "little") + b"[" * 100_000
    with pytest.raises(FormatError, match="no header"):
        make(model).load_state(body + hashlib.sha256(body).digest())


def test_a_foreign_state_is_refused(model: Model, tmp_path: Path) -> None:
    context = make(model)
    context.decode(TOKENS)
    meta = metadata(**{"llama.rope.freq_base": 500.0})
    other = Model.open(write_model(tmp_path / "m.gguf", meta))
    with pytest.raises(FormatError, match="another model or cache: its model"):
        make(other).load_state(context.save_state())
    with pytest.raises(FormatError, match="its type_v is f16, here it is f32"):
        make(model, type_v="f32").load_state(context.save_state())
    with pytest.raises(FormatError, match="2 sequences and cannot be loaded as one"):
        context.load_state(make(model, n_seq_max=2).save_state(), 0)


def test_a_state_without_room_changes_nothing(model: Model) -> None:
    a = make(model, n_seq_max=2)
    a.decode(TOKENS)
    b = make(model, 12, n_seq_max=2)
    b.decode(TOKENS[:4], seqs=[[0, 1]] * 4)
    with pytest.raises(ContextError, match="12 cells, there is room for 8"):
        b.load_state(a.save_state(0), 1)
    assert (b.cache.pos_max(0), b.cache.pos_max(1)) == (3, 3)
    a.decode([1], [0], seqs=[[1]])
    with pytest.raises(ContextError, match="13 cells, there is room for 12"):
        b.load_state(a.save_state())
    with pytest.raises(ContextError, match="has 2 sequences, the context 1"):
        make(model).load_state(a.save_state())
    assert (b.cache.pos_max(0), b.cache.pos_max(1)) == (3, 3)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "bf16", "f32"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_caches_of_other_types(tmp_path: Path, dtype: str, device: str) -> None:
    """Whole and by sequence, into contexts of other sizes: the rows go over bit by bit."""
    meta = metadata(**{"llama.embedding_length": 128})
    wide = Model.open(write_model(tmp_path / "m.gguf", meta))

    def context(n_ctx: int, **options: object) -> Context:
        return Context(
            wide, n_ctx, n_seq_max=3, type_k=dtype, type_v=dtype, devices=[device], **options
        )  # type: ignore[arg-type]

    a = context(32)
    a.decode(TOKENS, seqs=[[0, 2]] * len(TOKENS))
    a.decode(TOKENS[:5], range(5), seqs=[[1]] * 5)
    a.seq_rm(0, 4, 7)
    b, c = context(64, n_ubatch=3), context(20)
    b.decode([5, 6])
    b.load_state(a.save_state())
    c.decode([5, 6], seqs=[[2]] * 2)
    c.load_state(a.save_state(0), 1)
    at = len(TOKENS)
    want = a.decode([9], [at])
    for got in (b.decode([9], [at]), c.decode([9], [at], seqs=[[1]])):
        # the same rows in other cells: sums in another order
        np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
    assert b.reuse_prefix(2, [*TOKENS, 3]) == len(TOKENS)
    assert b.reuse_prefix(1, [*TOKENS[:5], 3]) == 5
    assert b.reuse_prefix(0, [*TOKENS, 3]) == 4
    assert c.save_state(2) == c.save_state(2)
    with pytest.raises(FormatError, match="its type_k is"):
        make(wide, type_k="f16" if dtype != "f16" else "f32").load_state(a.save_state())
    with pytest.raises(ContextError, match="there is room for 8"):
        context(8).load_state(a.save_state())
