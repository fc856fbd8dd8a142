"""Recurrent layers: one state a sequence, through forks, failures, removals and saved states."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.recurrent_texts import NAMES, alone, write_lasting
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm.compute.context import Context
from weft.llm.compute.graphs import Graphs
from weft.llm.model import Model

HALF = len(TOKENS) // 2


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_lasting(tmp_path, request.param)


def test_earlier_tokens_matter(path: Path) -> None:
    off = alone(path, TOKENS) - alone(path, [TOKENS[-4], *TOKENS[1:]])
    assert np.abs(off).max() > 1e-5


def test_sequences_of_a_batch_are_as_if_alone(path: Path) -> None:
    c = context(path, n_seq_max=3)
    texts = [TOKENS[:9], TOKENS[9:10], TOKENS[5:]]
    each = [(t, p, s) for s, text in enumerate(texts) for p, t in enumerate(text)]
    each.sort(key=lambda token: (token[1], token[2]))  # interleaved
    tokens, positions, seqs = zip(*each, strict=True)
    last = [p == len(texts[s]) - 1 for _, p, s in each]
    got = c.decode(tokens, positions, seqs=[[s] for s in seqs], outputs=last)
    order = [s for (_, _, s), is_last in zip(each, last, strict=True) if is_last]
    for row, s in zip(got, order, strict=True):
        np.testing.assert_allclose(row, alone(path, list(texts[s]))[0], atol=1e-4)


@pytest.mark.parametrize("n_ubatch", [1, 3, 64])
def test_tokens_of_two_sequences(path: Path, n_ubatch: int) -> None:
    """A shared beginning and two ends, in one batch."""
    c = context(path, n_seq_max=2, n_ubatch=min(n_ubatch, 48))
    ends = [TOKENS[HALF:], TOKENS[HALF - 3 :]]
    tokens = [*TOKENS[:HALF], *ends[0], *ends[1]]
    positions = [*range(HALF), *(HALF + i for end in ends for i in range(len(end)))]
    seqs = [[1, 0]] * HALF + [[0]] * len(ends[0]) + [[1]] * len(ends[1])
    last = np.zeros(len(tokens), np.bool_)
    last[[HALF + len(ends[0]) - 1, -1]] = True
    got = c.decode(tokens, positions, seqs=seqs, outputs=last)
    for row, end in zip(got, ends, strict=True):
        np.testing.assert_allclose(row, alone(path, TOKENS[:HALF] + end)[0], atol=1e-4)


def test_a_fork_goes_on_by_itself(path: Path) -> None:
    c = context(path, n_seq_max=2)
    c.decode(TOKENS[:HALF])
    c.cache.seq_cp(0, 1)
    for s, end in enumerate((TOKENS[HALF:], TOKENS[HALF - 2 :])):
        positions = HALF + np.arange(len(end))
        got = c.decode(end, positions, seqs=[[s]] * len(end))
        np.testing.assert_allclose(got, alone(path, TOKENS[:HALF] + end), atol=1e-4)


def test_a_removed_sequence_starts_anew(path: Path) -> None:
    want = alone(path, TOKENS)
    for forget in ("seq_rm", "clear", "seq_keep"):
        c = context(path, n_seq_max=2)
        c.decode(TOKENS[3:])
        {
            "seq_rm": lambda c=c: c.cache.seq_rm(0),
            "clear": c.cache.clear,
            "seq_keep": lambda c=c: c.cache.seq_keep(1),
        }[forget]()
        np.testing.assert_allclose(c.decode(TOKENS), want, atol=1e-4)


def test_a_failed_decode_leaves_the_state(path: Path) -> None:
    c = context(path, n_ubatch=4)
    c.decode(TOKENS[:HALF])
    run, calls = Graphs.run, []

    def fail_later(*args: object) -> object:
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return run(*args)  # type: ignore[arg-type]

    with mock.patch.object(Graphs, "run", fail_later), pytest.raises(KeyboardInterrupt):
        c.decode(TOKENS)
    assert len(calls) == 2
    np.testing.assert_allclose(c.decode(TOKENS[HALF:]), alone(path, TOKENS), atol=1e-4)


def test_parts_of_a_sequence_stay(path: Path) -> None:
    c = context(path, n_seq_max=2)
    c.decode(TOKENS)
    with pytest.raises(ContextError, match="seq_rm of a part"):
        c.cache.seq_rm(0, 5, -1)
    with pytest.raises(ContextError, match="seq_cp of a part"):
        c.cache.seq_cp(0, 1, 0, 5)
    assert c.cache.n_used == len(TOKENS)
    c.cache.seq_rm(1, 0, 3)  # there is nothing of it


def test_saved_states(path: Path) -> None:
    c = context(path, n_seq_max=2)
    c.decode(TOKENS[:HALF])
    c.decode(TOKENS[:3], [0, 1, 2], seqs=[[1]] * 3)
    whole, one = c.save_state(), c.save_state(0)
    want = alone(path, TOKENS)
    fresh = context(path, n_seq_max=2)
    fresh.load_state(whole)
    np.testing.assert_allclose(fresh.decode(TOKENS[HALF:]), want, atol=1e-4)
    moved = context(path, n_seq_max=2)
    moved.load_state(one, 1)
    end = TOKENS[HALF:]
    got = moved.decode(end, HALF + np.arange(len(end)), seqs=[[1]] * len(end))
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ssm.time_step_rank": 5}, "time_step_rank is 5"),
        ({"ssm.group_count": 3}, "group_count is 3"),
        ({"ssm.conv_kernel": 1}, "conv_kernel is 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], match: str
) -> None:
    arch, base = OTHERS["mamba2 groups"]
    with pytest.raises(FormatError, match=match):
        configure(tmp_path, keys_of(arch, base | changes))


def test_a_common_beginning_is_all_or_nothing(path: Path) -> None:
    c = context(path)
    c.decode(TOKENS[:HALF])
    assert c.reuse_prefix(0, TOKENS) == HALF
    np.testing.assert_allclose(c.decode(TOKENS[HALF:]), alone(path, TOKENS), atol=1e-4)
    assert c.reuse_prefix(0, TOKENS) == 0
    assert c.cache.n_used == 0
    np.testing.assert_allclose(c.decode(TOKENS), alone(path, TOKENS), atol=1e-4)
    with pytest.raises(ContextError, match="recurrent states cannot go on"):
        c.drop_oldest()
    assert c.pos_max(0) == len(TOKENS) - 1


def test_states_stay_with_their_sequences_when_cells_move(path: Path) -> None:
    c = context(path, n_seq_max=2)
    c.decode(TOKENS[:HALF] + TOKENS[:4], [*range(HALF), *range(4)],
             seqs=[[0]] * HALF + [[1]] * 4)  # fmt: skip
    c.seq_rm(0)
    c.compact()
    rest = TOKENS[4:]
    got = c.decode(rest, np.arange(4, len(TOKENS)), seqs=[[1]] * len(rest))
    np.testing.assert_allclose(got, alone(path, TOKENS), atol=1e-4)


def test_a_token_is_the_same_among_how_many(path: Path) -> None:
    """Vectors and what is left behind them round alike: a batch has the bits of single steps."""
    tokens = [*TOKENS, *TOKENS, *TOKENS, *TOKENS][:40]
    one = Context(Model.open(path), 48)
    rows = np.concatenate([one.decode([t]) for t in tokens])
    for n in (2, 7, 8, 9, 15, 16, 17, 24, 31, 40):
        together = Context(Model.open(path), 48).decode(tokens[:n], outputs="all")
        assert np.array_equal(together.view(np.int32), rows[:n].view(np.int32)), n


def test_older_files_have_the_inputs_of_delta_nets_in_one_matrix(tmp_path: Path) -> None:
    """For each key head, its query, its key, and the values and gates that share it."""
    arch, changes = OTHERS["qwen3next"]
    meta = keys_of(arch, changes)
    c = configure(tmp_path, meta)
    tensors = {n: a for n, a in made_up(c).items() if not n.endswith("attn_gate.bias")}
    want = context(write_model(tmp_path / "m.gguf", meta, tensors)).decode(TOKENS)
    assert c.recurrent is not None
    d, n_k = c.recurrent.d_state, c.recurrent.n_group
    old: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("attn_qkv.weight"):
            q, k, v = np.split(array, [d * n_k, 2 * d * n_k])
            z = tensors[name.replace("qkv", "gate")]
            each = [part.reshape(n_k, -1, c.n_embd) for part in (q, k, v, z)]
            joined = np.concatenate(each, axis=1).reshape(-1, c.n_embd)
            old[name.replace("attn_qkv", "ssm_in")] = joined
        elif not name.endswith("attn_gate.weight"):
            old[name] = array
    got = context(write_model(tmp_path / "old.gguf", meta, old)).decode(TOKENS)
    np.testing.assert_allclose(got, want, atol=1e-5)
