"""`Context.decode`: how a batch is cut must never show, and a failure must leave nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.tiny import metadata, write_model
from weft import quants
from weft.errors import ContextError, DeviceError, OutOfMemoryError
from weft.free_memory import available_bytes
from weft.llm.cache import memory
from weft.llm.compute import graphs as graphs_module
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.planning import plan as plan_module

TOKENS = [1, *range(259, 274), 7, 8, 9, 10]
ATOL = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf"))


def make(model: Model, n_ctx: int = 32, **options: object) -> Context:
    options = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]} | options
    return Context(model, n_ctx, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(model: Model) -> np.ndarray:
    """Logits of TOKENS in one ubatch."""
    return make(model).decode(TOKENS, outputs="all")


@given(
    n_ubatch=st.integers(1, 20),
    n_outputs=st.integers(1, 20),
    cuts=st.sets(st.integers(1, len(TOKENS) - 1), max_size=3),
    wanted=st.lists(st.booleans(), min_size=len(TOKENS), max_size=len(TOKENS)),
)
def test_cuts_do_not_show(
    model: Model,
    whole: np.ndarray,
    n_ubatch: int,
    n_outputs: int,
    cuts: set[int],
    wanted: list[bool],
) -> None:
    context = make(model, n_ubatch=n_ubatch, n_outputs=n_outputs)
    ends = [*sorted(cuts), len(TOKENS)]
    rows = [
        context.decode(TOKENS[a:b], outputs=wanted[a:b])
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    np.testing.assert_allclose(np.concatenate(rows), whole[wanted], atol=ATOL)
    assert context.counters.graphs_built == 1


@pytest.mark.parametrize("seq", [0, 2])
def test_a_single_token_however_it_is_said(model: Model, seq: int) -> None:
    """Lists of one token have a way of their own; it must not show."""
    ways: list[dict[str, object]] = [
        {"tokens": TOKENS[4:5], "positions": [4], "seqs": [[seq]]},
        {"tokens": tuple(TOKENS[4:5]), "positions": (4,), "seqs": ((seq,),), "outputs": [True]},
        {"tokens": np.array(TOKENS[4:5]), "positions": np.array([4]), "seqs": [[seq]]},
        {"tokens": TOKENS[4:5], "positions": range(4, 5), "seqs": [range(seq, seq + 1)]},
        {"tokens": TOKENS[4:5], "positions": [4], "seqs": [[seq]], "outputs": np.array([True])},
    ]
    results = []
    for way in ways:
        context = make(model, n_seq_max=3)
        context.decode(TOKENS[:4], seqs=[[0, 2]] * 4)
        rows = context.decode(**way)  # type: ignore[arg-type]
        cells = context.cache
        assert rows.shape == (1, model.config.n_vocab)
        kept = (cells.pos, cells.members, cells.tokens, cells.shift, cells.serial)
        results.append([rows, *(a.copy() for a in kept), cells.n_seen, cells.find_free(1)])
        before = rows.copy()
        context.decode([7], [5], seqs=[[seq]])
        assert (rows == before).all()  # a copy
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    if seq == 0:
        context = make(model)
        context.decode(TOKENS[:4])
        np.testing.assert_array_equal(context.decode(TOKENS[4:5]), results[0][0])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"tokens": [-1]}, "token ids are"),
        ({"tokens": [10**9]}, "token ids are"),
        ({"tokens": [5], "positions": [-1]}, "positions must be"),
        ({"tokens": [5], "seqs": [[1]]}, "not in 0..0"),
        ({"tokens": [5], "seqs": [[]]}, "seqs must name"),
        ({"tokens": [5], "outputs": "none"}, "outputs is"),
        ({"tokens": [True]}, "list of at least one token id"),
    ],
)
def test_a_wrong_single_token(model: Model, wrong: dict[str, object], match: str) -> None:
    context = make(model, 4)
    context.decode(TOKENS[:3])
    with pytest.raises(ContextError, match=match):
        context.decode(**wrong)  # type: ignore[arg-type]
    assert context.cache.n_used == 3
    context.decode([5])
    with pytest.raises(ContextError, match="1 tokens do not fit"):
        context.decode([5])


@given(order=st.permutations(range(len(TOKENS))), n_ubatch=st.integers(1, 20))
def test_order_in_a_batch_does_not_show(
    model: Model, whole: np.ndarray, order: list[int], n_ubatch: int
) -> None:
    context = make(model, n_ubatch=n_ubatch)
    got = context.decode([TOKENS[i] for i in order], order, outputs="all")
    np.testing.assert_allclose(got, whole[order], atol=ATOL)


@given(data=st.data())
def test_sequences_do_not_see_each_other(
    model: Model, whole: np.ndarray, data: st.DataObject
) -> None:
    """The same text in three sequences, interleaved at random, next to a shared beginning."""
    context = make(model, 64, n_seq_max=3, n_ubatch=data.draw(st.integers(1, 9)))
    shared = data.draw(st.integers(0, 5))
    if shared:
        context.decode(TOKENS[:shared], seqs=[[0, 1, 2]] * shared)
    todo = [(s, p) for s in range(3) for p in range(shared, len(TOKENS))]
    todo = data.draw(st.permutations(todo))
    rest = todo[: data.draw(st.integers(1, len(todo)))]
    rest = [(s, p) for s, p in rest if all((s, q) in rest for q in range(shared, p))]
    if not rest:
        return
    got = context.decode(
        [TOKENS[p] for _, p in rest],
        [p for _, p in rest],
        seqs=[[s] for s, _ in rest],
        outputs="all",
    )
    np.testing.assert_allclose(got, whole[[p for _, p in rest]], atol=ATOL)


def test_the_last_row_is_the_default(model: Model, whole: np.ndarray) -> None:
    context = make(model)
    np.testing.assert_allclose(context.decode(TOKENS[:9]), whole[8:9], atol=ATOL)
    np.testing.assert_allclose(context.decode(TOKENS[9:10]), whole[9:10], atol=ATOL)
    assert context.decode(TOKENS[10:12], outputs=[False, False]).shape == (0, whole.shape[1])


def test_rows_belong_to_the_caller(model: Model) -> None:
    context = make(model)
    first = context.decode(TOKENS[:4])
    kept = first.copy()
    context.decode(TOKENS[4:8])
    assert (first == kept).all()


def test_rollback_equals_a_fresh_context(model: Model, whole: np.ndarray) -> None:
    context = make(model)
    context.decode([*TOKENS[:6], 50, 51, 52])
    context.cache.seq_rm(0, 6, -1)
    np.testing.assert_allclose(context.decode(TOKENS[6:], outputs="all"), whole[6:], atol=ATOL)


@pytest.mark.parametrize("n_ubatch", [3, 20])
def test_moved_positions_keep_their_distances(
    model: Model, whole: np.ndarray, n_ubatch: int
) -> None:
    """Rotary attention sees distances only: a whole text moved along gives the same logits."""
    context = make(model, n_ubatch=n_ubatch)
    context.decode(TOKENS[:8])
    context.cache.seq_add(0, 0, -1, 30)
    context.cache.seq_add(0, 0, -1, -13)
    got = context.decode(TOKENS[8:12], range(25, 29), outputs="all")
    np.testing.assert_allclose(got, whole[8:12], atol=ATOL)
    context.cache.seq_add(0, 0, -1, -17)
    assert (context.cache.pos_min(0), context.cache.pos_max(0)) == (0, 11)
    got = context.decode(TOKENS[12:], outputs="all")
    np.testing.assert_allclose(got, whole[12:], atol=ATOL)
    assert context.counters.graphs_built == 2


def test_ctrl_c_and_abort_wait_until_keys_are_rotated(
    model: Model, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(model)
    context.decode(TOKENS[:8])
    ends = 0

    class Interrupted(graphs_module.Session):
        def execute(self, values: Mapping[str, int]) -> None:
            nonlocal ends
            signal.raise_signal(signal.SIGINT)
            context.abort()
            super().execute(values)
            ends += 1

    monkeypatch.setattr(graphs_module, "Session", Interrupted)
    context.cache.seq_add(0, 0, -1, 3)
    with pytest.raises(KeyboardInterrupt):
        context.decode(TOKENS[8:9])
    assert ends == 1 and not context.cache.has_shift
    assert (context.cache.pos_min(0), context.cache.pos_max(0)) == (3, 10)
    monkeypatch.undo()
    got = context.decode(TOKENS[8:], outputs="all")
    np.testing.assert_allclose(got, whole[8:], atol=ATOL)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("kernel")])
def test_a_failed_rotation_empties_the_cache(
    model: Model, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    context = make(model)
    context.decode(TOKENS[:8])
    context.cache.seq_add(0, 4, -1, 2)

    class Interrupted(graphs_module.Session):
        def execute(self, values: object) -> None:
            raise error

    monkeypatch.setattr(graphs_module, "Session", Interrupted)
    with pytest.raises(type(error)):
        context.decode(TOKENS[8:9])
    assert context.cache.n_used == 0
    np.testing.assert_allclose(context.decode(TOKENS, outputs="all"), whole, atol=ATOL)


def test_f16_cache_is_close(model: Model, whole: np.ndarray) -> None:
    got = make(model, type_k="f16", type_v="f16").decode(TOKENS, outputs="all")
    assert 0 < np.abs(got - whole).max() < 0.05


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Heads of 32, a block each."""
    path = tmp_path_factory.mktemp("model") / "wide.gguf"
    return Model.open(write_model(path, metadata(**{"llama.embedding_length": 128})))


def _relative(error: np.ndarray, x: np.ndarray) -> float:
    return float(np.sqrt(np.square(error).mean() / np.square(x).mean()))


@pytest.mark.parametrize("dtype", ["bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_small_caches_are_close(wide: Model, dtype: str) -> None:
    def run(device: str, **types: str) -> np.ndarray:
        options = {"devices": [device]} | ({"activations": "f32"} if device == "cpu" else {})
        context = make(wide, **options, **types)
        first = context.decode(TOKENS[:9], outputs="all")
        # keys are rotated where they are stored
        context.cache.seq_rm(0, 0, 3)
        context.cache.seq_add(0, 3, -1, -3)
        return np.concatenate([first, context.decode(TOKENS[9:], outputs="all")])

    exact = run("reference")
    got = run("reference", type_k=dtype, type_v=dtype)
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    rounding = _relative(quants.decode(quants.encode(x, dtype), dtype, 32) - x, x)
    # two layers, keys and values, and keys once more when they are rotated
    assert 0 < _relative(got - exact, exact) < 5 * rounding
    native = run("cpu", type_k=dtype, type_v=dtype)
    # a number that falls on the edge between two steps may be stored as either
    assert _relative(native - got, exact) < 0.2 * rounding


def test_small_values_need_flash(wide: Model) -> None:
    keys = make(wide, type_k="q8_0", flash=False).decode(TOKENS, outputs="all")
    exact = make(wide, flash=False).decode(TOKENS, outputs="all")
    assert 0 < np.abs(keys - exact).max() < 0.1 * exact.std()
    with pytest.raises(ContextError, match=r"type_v is q8_0.*leave flash on"):
        make(wide, type_v="q8_0", flash=False)


def test_heads_must_be_whole_blocks(model: Model) -> None:
    with pytest.raises(ContextError, match=r"type_k is q8_0.*blocks of 32.*have 4"):
        make(model, type_k="q8_0")


def test_a_full_context(model: Model) -> None:
    context = make(model, 8)
    context.decode(TOKENS[:6])
    with pytest.raises(ContextError, match=r"3 tokens do not fit.*2 of its 8 cells"):
        context.decode(TOKENS[6:9])
    assert context.cache.n_used == 6
    context.decode(TOKENS[6:8])


@pytest.mark.parametrize("error", [KeyboardInterrupt, DeviceError("kernel")])
def test_a_failure_leaves_the_cache_as_it_was(
    model: Model, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    context = make(model, n_ubatch=4)
    context.decode(TOKENS[:5])
    run, calls = context._session.execute, []

    def fail_second(values: dict[str, int]) -> None:
        calls.append(values)
        if len(calls) == 2:
            raise error
        run(values)

    monkeypatch.setattr(context._session, "execute", fail_second)
    before = context.cache.pos.copy(), context.cache.members.copy()
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        context.decode(TOKENS[5:])
    assert (context.cache.pos == before[0]).all()
    assert (context.cache.members == before[1]).all()
    np.testing.assert_allclose(context.decode(TOKENS[5:], outputs="all"), whole[5:], atol=ATOL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one token"),
        (([1.5],), "at least one token"),
        (([[1, 2]],), "at least one token"),
        (([1] * 20,), "20 tokens in one call, but n_batch is 16"),
        (([274],), r"0\.\.273, got 274"),
        (([-1],), r"0\.\.273, got -1"),
        (([1, 2], [0]), "2 numbers from 0"),
        (([1], [-1]), "1 numbers from 0"),
    ],
)
def test_arguments_that_cannot_be(model: Model, arguments: tuple, message: str) -> None:
    context = make(model, n_batch=16)
    with pytest.raises(ContextError, match=message):
        context.decode(*arguments)
    assert context.cache.n_used == 0


def test_sequences_that_cannot_be(model: Model) -> None:
    context = make(model)
    with pytest.raises(ContextError, match=r"sequences \[1\] of token 0 are not in 0\.\.0"):
        context.decode([1], seqs=[[1]])
    with pytest.raises(ContextError, match="at least one sequence"):
        context.decode([1], seqs=[[]])


@pytest.mark.parametrize("name", ["n_ctx", "n_batch", "n_ubatch", "n_outputs", "n_seq_max"])
def test_options_that_cannot_be(model: Model, name: str) -> None:
    with pytest.raises(ContextError, match=f"{name} is 0; it must be 1 or more"):
        make(model, **{name: 0})


def test_too_little_memory_is_said_before_anything_is_made(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was allocated")

    monkeypatch.setattr(memory, "available_bytes", lambda: 5000)
    monkeypatch.setattr(plan_module, "KVCache", unreachable)
    with pytest.raises(OutOfMemoryError, match=r"8192 bytes .* are needed .*5000 bytes"):
        make(model, 64)
    monkeypatch.undo()
    # the cache would fit, what is computed would not
    monkeypatch.setattr(memory, "available_bytes", lambda: 10000)
    monkeypatch.setattr(graphs_module.ArenaPool, "reserve", unreachable)
    with pytest.raises(OutOfMemoryError, match=r"cache 8\.00 KiB, compute .*10000 bytes"):
        make(model, 64)


def test_the_plan_is_what_is_used(model: Model) -> None:
    context = make(model)
    assert context.memory.cache == context.cache.nbytes
    assert context.memory.weights + context.memory.repacked == model.weights.nbytes
    assert context.memory.compute == context._session.arenas.nbytes


def test_available_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\n")
    assert available_bytes(tmp_path) == 4096
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 4096
    (group / "memory.max").write_text("3000\n")
    (group / "memory.current").write_text("2500\n")
    (group / "memory.stat").write_text("anon 2000\ninactive_file 100\n")
    assert available_bytes(tmp_path) == 600
