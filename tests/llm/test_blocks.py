"""Attention to blocks of positions that an indexer chooses: texts beside others, moved ones, and
contexts in which all blocks fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm import Context, Model

ARCH, CHANGES = OTHERS["minimax-m3"]
ENDS = [TOKENS[8:], TOKENS[6:14]]


def write(folder: Path, **changes: object) -> Path:
    named = {f"attention.indexer.{key}": value for key, value in changes.items()}
    meta = keys_of(ARCH, CHANGES | named)
    return write_model(folder / "m.gguf", meta, made_up(configure(folder, meta)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="module")
def alone(path: Path) -> list[np.ndarray]:
    """The last row of each of two texts with a shared beginning."""
    return [context(path).decode(TOKENS[:8] + end)[0] for end in ENDS]


@pytest.mark.parametrize("n_ubatch", [5, 48])
def test_texts_that_share_a_beginning(path: Path, alone: list[np.ndarray], n_ubatch: int) -> None:
    """A block has cells of both, and cells of one."""
    c = context(path, n_seq_max=2, n_ubatch=n_ubatch)
    c.decode(TOKENS[:8])
    c.cache.seq_cp(0, 1)
    both = [(8 + i, s, t) for s, end in enumerate(ENDS) for i, t in enumerate(end)]
    both.sort()
    positions, seqs, tokens = zip(*both, strict=True)
    last = [p == 7 + len(ENDS[s]) for p, s, _ in both]
    got = c.decode(tokens, positions, seqs=[[s] for s in seqs], outputs=last)
    order = [s for (_, s, _), is_last in zip(both, last, strict=True) if is_last]
    for row, s in zip(got, order, strict=True):
        np.testing.assert_allclose(row, alone[s], atol=1e-4)


def test_states_and_cells_that_move(path: Path, alone: list[np.ndarray]) -> None:
    c = context(path, n_seq_max=2)
    c.decode(TOKENS[:4], seqs=[[1]] * 4)
    c.decode(TOKENS[:8], list(range(8)), seqs=[[0]] * 8)
    state = c.save_state(0)
    c.seq_rm(1)
    c.compact()
    got = c.decode(ENDS[0], 8 + np.arange(len(ENDS[0])))
    np.testing.assert_allclose(got[0], alone[0], atol=1e-4)
    fresh = context(path, n_seq_max=2)
    fresh.load_state(state, 1)
    got = fresh.decode(ENDS[1], 8 + np.arange(len(ENDS[1])), seqs=[[1]] * len(ENDS[1]))
    np.testing.assert_allclose(got[0], alone[1], atol=1e-4)


def test_fewer_blocks_are_another_text(tmp_path: Path, alone: list[np.ndarray]) -> None:
    """All blocks fit in the context: nothing is chosen."""
    whole = context(write(tmp_path, top_k=16)).decode(TOKENS[:8] + ENDS[0])[0]
    assert np.abs(whole - alone[0]).max() > 1e-3
    far = context(write(tmp_path, local_blocks=0, top_k=1)).decode(TOKENS[:8] + ENDS[0])[0]
    near = context(write(tmp_path, local_blocks=1, top_k=1)).decode(TOKENS[:8] + ENDS[0])[0]
    assert np.abs(far - near).max() > 1e-3


@pytest.mark.parametrize("n_ctx", [5, 6, 7, 48])
def test_a_small_context_chooses_as_a_large_one(path: Path, n_ctx: int) -> None:
    """Five tokens fill two blocks, which are all chosen, or parts of three, which are not."""
    small = Context(Model.open(path), n_ctx, type_k="f32", type_v="f32", devices=["reference"])
    for start in (0, 2):
        at = [start + i for i in range(5)]
        want = context(path).decode(TOKENS[5:10], at, outputs="all")
        small.clear()
        got = small.decode(TOKENS[5:10], at, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_positions_that_are_far_apart(path: Path) -> None:
    c = context(path)
    c.decode(TOKENS[:4])
    with pytest.raises(ContextError, match="further apart than the 48 cells"):
        c.decode([5], [60])


def test_an_indexer_has_a_head_for_each_key(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"indexer\.head_count is 3"):
        write(tmp_path, head_count=3)
