"""`Batch`: rows instead of tokens, and what a context says about options and batches that cannot
be; graphs that are reused, and why not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.execute.llama_graph import MODEL
from tests.llm.tiny import metadata, write_model
from tests.llm.tiny import weights as tiny_weights
from weft.errors import AbortedError, ContextError, ScheduleError
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare

TOKENS = [1, *range(259, 274), 7, 8, 9, 10]
ATOL = 1e-5
N_EMBD = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    return tiny_weights(metadata())["token_embd.weight"]


def make(model: Model, n_ctx: int = 32, **options: Any) -> Context:
    options = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]} | options
    return Context(model, n_ctx, **options)


# ---- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [["reference"], ["cpu"], ["reference", "cpu"]])
def test_rows_of_the_embedding_are_as_tokens(
    model: Model, table: np.ndarray, devices: list[str]
) -> None:
    want = make(model).decode(TOKENS, outputs="all")
    context = make(model, n_ubatch=7, devices=devices)
    got = [context.decode(TOKENS[:4], outputs="all")]
    order = [2, 0, 1, *range(3, 12)]  # outputs in the caller's order
    rows = table[[TOKENS[4 + i] for i in order]]
    some = context.decode(
        Batch(embeddings=rows, positions=[4 + i for i in order], outputs=[True] * 8 + [False] * 4)
    )
    np.testing.assert_allclose(some, want[[4 + i for i in order[:8]]], atol=1e-4)
    got.append(context.decode(TOKENS[16:], outputs="all"))
    tokens = np.concatenate(got)
    np.testing.assert_allclose(tokens, want[[*range(4), *range(16, 20)]], atol=1e-4)
    # what rows stood for is not known
    assert context.reuse_prefix(0, TOKENS) == 4


def test_rows_may_be_anything(model: Model, table: np.ndarray) -> None:
    rows = table[[5, 6]] * 0.5 + table[[7, 8]] * 0.5
    context = make(model)
    got = context.decode(Batch(embeddings=rows, outputs="all"))
    other = make(model).decode([5, 6], outputs="all")
    assert got.shape == other.shape and np.abs(got - other).max() > 1e-3


def test_a_batch_says_what_keywords_say(model: Model) -> None:
    a, b = make(model, n_seq_max=2), make(model, n_seq_max=2)
    seqs = [[0, 1]] * 3 + [[1]] * 2
    got = a.decode(Batch(TOKENS[:5], range(5), seqs, [True, False, True, False, True]))
    want = b.decode(TOKENS[:5], range(5), seqs=seqs, outputs=[True, False, True, False, True])
    assert (got == want).all()
    assert (a.cache.members == b.cache.members).all()
    with pytest.raises(ContextError, match="has its positions, seqs and outputs itself"):
        a.decode(Batch(TOKENS[:5]), outputs="all")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch(), "at least one token"),
        (Batch([1], embeddings=np.zeros((1, N_EMBD))), "tokens or embeddings, not both"),
        (Batch(embeddings=np.zeros((1, N_EMBD + 1))), r"rows of 16 numbers.*\[1, 17\]"),
        (Batch(embeddings=np.zeros(N_EMBD)), r"rows of 16 numbers.*\[16\]"),
        (Batch(embeddings=np.zeros((0, N_EMBD))), "at least one"),
        (Batch(embeddings="rows"), "rows of 16 numbers"),
        (Batch(embeddings=[[1.0], [1.0, 2.0]]), "rows of 16 numbers"),
        (Batch([1, 2], outputs=[True] * 3), "outputs must be 2 truth values"),
        (Batch([1, 2], outputs="first"), 'must be "last", "all"'),
    ],
)
def test_batches_that_cannot_be(model: Model, batch: Batch, message: str) -> None:
    context = make(model)
    with pytest.raises(ContextError, match=message):
        context.decode(batch)
    assert context.cache.n_used == 0


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_batch": 8, "n_ubatch": 9}, "n_ubatch is 9, but n_batch is 8"),
        ({"n_batch": "8"}, "n_batch is '8'; it must be a whole number"),
        ({"n_seq_max": 1.5}, "n_seq_max is 1.5"),
        ({"pooling": "mean"}, "create the context with embeddings=True"),
        ({"pooling": "max", "embeddings": True}, "it must be one of none, mean, cls, last"),
        ({"type_k": "q3_K"}, "type_k is q3_K; it must be"),
        ({"type_v": "q8_0", "flash": False}, "leave flash on"),
    ],
)
def test_options_that_cannot_be(model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContextError, match=message):
        make(model, **options)


def test_options_that_nobody_knows(model: Model) -> None:
    with pytest.raises(TypeError, match="no option 'n_context'; did you mean n_ctx"):
        make(model, n_context=3)


def test_a_small_batch_makes_small_ubatches(model: Model) -> None:
    assert make(model, n_batch=8).n_ubatch == 8


def test_pooling_of_a_context(model: Model) -> None:
    context = make(model, embeddings=True, pooling="mean")
    each = context.embed(TOKENS, "none")
    np.testing.assert_allclose(context.embed(TOKENS), each.mean(axis=0), atol=ATOL)


@pytest.mark.parametrize("offload_kv", [True, False])
def test_where_the_cache_lives(model: Model, offload_kv: bool) -> None:
    want = make(model).decode(TOKENS, outputs="all")
    ctx = make(model, devices=["reference", "cpu"], activations="f32", offload_kv=offload_kv)
    cache = {r["memory"]: r["bytes"] for r in ctx.plan.memory_rows() if r["buffer"] == "cache"}
    types = [b.buffer_type.name for b in ctx.plan.backends]
    assert cache == {types[0 if offload_kv else 1]: ctx.cache.nbytes}
    np.testing.assert_allclose(ctx.decode(TOKENS, outputs="all"), want, atol=1e-4)
    ctx.seq_rm(0, 0, 3)
    ctx.seq_add(0, 3, -1, -3)  # keys are rotated where they are
    other = make(model)
    other.decode(TOKENS)
    other.seq_rm(0, 0, 3)
    other.seq_add(0, 3, -1, -3)
    np.testing.assert_allclose(ctx.decode([3]), other.decode([3]), atol=1e-4)


def test_a_cache_in_host_memory_contradicts_a_plan_file(model: Model) -> None:
    saved = prepare(model, n_ctx=32, devices=["reference"]).to_json()
    with pytest.raises(ScheduleError, match="leave out n_gpu_layers, offload_kv"):
        prepare(model, plan=saved, devices=["reference"], offload_kv=False)


# ---- graphs --------------------------------------------------------------------------------------


def test_counters_stand_still_after_a_warm_up(model: Model, table: np.ndarray) -> None:
    context = make(model, n_seq_max=2, n_ubatch=9)
    context.warm_up(shift=True, embeddings=True)
    assert context.cache.n_used == 0
    counters = context.counters
    before = counters.graphs_built, counters.reserves, counters.reallocs
    assert before[:2] == (3, 3)
    for n in (1, 9, 4, 1, 12):
        context.decode(TOKENS[:n])
        assert context.why_not_reused() is None
        context.decode(Batch(embeddings=table[TOKENS[:n]]))
        context.seq_add(0, 0, -1, 2)
        context.decode([5], [0], seqs=[[1]])
        assert context.why_not_reused() == "the input is tokens again, after embeddings"
        context.clear()
    assert before == (counters.graphs_built, counters.reserves, counters.reallocs)
    context.decode(TOKENS)
    with pytest.raises(ContextError, match="while its cache is empty"):
        context.warm_up()
    assert make(model, warm_up=True).counters.graphs_reused >= 3


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_graphs_share_their_memory(tmp_path: Path, device: str) -> None:
    """Graphs that come later may need bigger arenas (here to decode keys); nobody keeps the old."""
    wide = metadata(**{"llama.embedding_length": 128})
    model = Model.open(write_model(tmp_path / "m.gguf", wide))
    context = make(model, 512, n_ubatch=1, devices=[device], type_k="q8_0")
    want = context.decode(TOKENS[:5])
    context.clear()
    context.warm_up(shift=True, embeddings=True)
    graphs = context._graphs
    assert context.counters.reallocs == graphs._arenas.reallocs > 0
    blocks = [memory for _, memory in graphs._arenas._blocks.values()]
    assert graphs._shift is not None
    for session in (*graphs._sessions(), graphs._shift):
        for spec, memory in zip(session.program.buffers, session._bound.memories, strict=True):
            assert spec.kind != "arena" or any(memory is block for block in blocks)
    assert (context.decode(TOKENS[:5]) == want).all()


def test_why_a_graph_was_not_reused(model: Model, table: np.ndarray) -> None:
    context = make(model)
    context.decode(TOKENS[:5])
    assert context.why_not_reused() is None
    context.seq_add(0, 0, -1, 2)
    context.decode([3])
    assert context.why_not_reused() == "a graph was built: positions were moved for the first time"
    context.decode(Batch(embeddings=table[:2]))
    assert "embeddings are given for the first time" in str(context.why_not_reused())
    context.decode([3])
    context.decode([3])
    assert context.why_not_reused() is None


def test_a_size_that_is_placed_otherwise(model: Model) -> None:
    pytest.importorskip("scipy_openblas32", reason="needs scipy-openblas32")
    context = make(Model.open(MODEL), 96, n_ubatch=48, devices=["blas", "cpu"], n_threads=1)
    context.decode(np.full(40, 5))
    assert context.why_not_reused() is None
    context.decode([5])
    assert context.why_not_reused() == (
        "n_tokens is 1: devices place up to 31 otherwise than up to 48"
    )
    context.decode([5])
    assert context.why_not_reused() is None
    assert context.counters.graphs_built == 3


def test_two_contexts_in_turn(model: Model) -> None:
    """A, B, A again: sizes and contexts alternate, each result is that of a context of its own."""
    rng = np.random.default_rng(0)
    a, b = make(model, 40, n_ubatch=8), make(model, 24, n_ubatch=5, n_seq_max=2)
    for _ in range(12):
        for context in (a, b, a):
            n = int(rng.integers(1, 12))
            ids = rng.integers(3, 274, n)
            context.clear()
            got = context.decode(ids, outputs="all")
            np.testing.assert_allclose(got, make(model).decode(ids, outputs="all"), atol=ATOL)
    assert a.counters.graphs_built == b.counters.graphs_built == 1


def test_abort_from_another_thread_leaves_the_cache(model: Model) -> None:
    context = make(model, n_ubatch=1)
    context.decode(TOKENS[:4])
    run, ran = context._graphs.run, threading.Event()

    def slow(*args: Any) -> Any:
        if context.cache.n_used > 6:
            thread = threading.Thread(target=context.abort)
            thread.start()
            thread.join()
            ran.set()
        return run(*args)

    context._graphs.run = slow  # type: ignore[method-assign]
    with pytest.raises(AbortedError):
        context.decode(TOKENS[4:])
    assert ran.is_set() and context.pos_max(0) == 3
    context._graphs.run = run  # type: ignore[method-assign]
    got = context.decode(TOKENS[4:], outputs="all")
    np.testing.assert_allclose(got, make(model).decode(TOKENS, outputs="all")[4:], atol=ATOL)


# ---- positions that nobody gives ----


def test_positions_follow_the_sequence_of_each_token(model: Model) -> None:
    context, alone = make(model, n_seq_max=3), make(model)
    context.decode(TOKENS[:6])
    context.decode(TOKENS[:3], seqs=[[2]] * 3)
    got = context.decode([5], seqs=[[2]])
    alone.decode(TOKENS[:3])
    np.testing.assert_allclose(got, alone.decode([5]), atol=ATOL)
    assert [context.cache.pos_max(seq) for seq in range(3)] == [5, -1, 3]
    # in one call: each follows its own, and a token of several moves all of them on
    context.decode([6, 7, 8, 9, 10], seqs=[[2], [0], [1], [2, 1], [1]])
    assert [context.cache.pos_max(seq) for seq in range(3)] == [6, 6, 5]
    alone.decode([6, 9])
    last = context.decode([11], seqs=[[2]])
    np.testing.assert_allclose(last, alone.decode([11]), atol=ATOL)


@pytest.mark.parametrize("devices", [["reference"], ["cpu"]])
def test_a_single_token_follows_its_sequence(model: Model, devices: list[str]) -> None:
    context = make(model, n_seq_max=2, devices=devices)
    context.decode(TOKENS[:6])
    for i, token in enumerate(TOKENS[:4]):
        context.decode([token], seqs=[[1]])
        assert context.cache.pos_max(1) == i and context.cache.pos_max(0) == 5
    with pytest.raises(ContextError, match="sequence"):
        context.decode([5], seqs=[[2]])
