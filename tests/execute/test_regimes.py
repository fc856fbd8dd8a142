"""The regimes of a context: a plan for each range of batch sizes, none ever made again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.execute.llama_graph import MODEL
from tests.execute.stub_devices import Device, cpu
from weft.execute import ArenaPool, Session, arena_bytes
from weft.graph import upper
from weft.graph.tensor import Tensor
from weft.llm import Context, Model


def _big_products(node: Tensor) -> bool:
    """What a device takes that only pays off for 32 tokens and more, as ggml's BLAS."""
    return node.op.name == "MUL_MAT" and upper(node.ne[1]) >= 32


def _devices(which: str) -> list[Any]:
    if which == "blas":
        pytest.importorskip("scipy_openblas32", reason="needs scipy-openblas32")
        return ["blas", "cpu"]
    if which == "device":
        return [Device("gpu", takes=_big_products, offloads=_big_products), cpu()]
    return [which]


def _state(context: Context) -> tuple[Any, ...]:
    counters = context.counters
    memories = [m.nbytes for regime in context.regimes for m in regime.session._bound.memories]
    return counters.graphs_built, counters.reserves, counters.reallocs, memories


@pytest.mark.parametrize("which", ["cpu", "blas"])
def test_a_thousand_batch_sizes_plan_nothing(which: str) -> None:
    rng = np.random.default_rng(0)
    model = Model.open(MODEL)
    context = Context(
        model, 96, n_ubatch=48, n_seq_max=2, n_threads=1, devices=_devices(which), type_k="f32"
    )
    before = _state(context)
    assert before[2] == 0
    used = set()
    for _ in range(1000):
        n = int(rng.choice([1, 1, 1, 2, 7, 31, 32, 33, 48, int(rng.integers(1, 90))]))
        if context.cache.n_used + n > 96:
            context.cache.clear()
        outputs = rng.random(n) < 0.3
        logits = context.decode(rng.integers(0, 320, n), outputs=outputs)
        assert len(logits) == outputs.sum()
        used.add(n)
    assert len(used) > 40
    assert _state(context) == before
    assert context.counters.graphs_reused >= 1000


@pytest.mark.parametrize("which", ["device", "blas"])
def test_small_batches_have_plans_of_their_own(which: str) -> None:
    model = Model.open(MODEL)
    context = Context(model, 64, n_ubatch=48, n_threads=1, devices=_devices(which), type_k="f32")
    assert [r.max_tokens for r in context.regimes] == [31, 48]
    small, big = context.regimes
    assert {s.device for s in small.program.splits} < {s.device for s in big.program.splits}
    assert context.counters.graphs_built == context.counters.reserves == 3
    # both lie in the same blocks
    assert context.memory.compute == arena_bytes(small.program, big.program)
    blocks = [
        {id(b.buffer_type): memory
         for b, memory in zip(r.program.buffers, r.session._bound.memories, strict=True)
         if b.kind == "arena"}
        for r in (small, big)
    ]  # fmt: skip
    shared = blocks[0].keys() & blocks[1].keys()
    assert shared and all(blocks[0][key] is blocks[1][key] for key in shared)


@pytest.mark.parametrize("which", ["device", "blas", "cpu"])
def test_logits_do_not_depend_on_the_regime(which: str) -> None:
    """One token at a time, in small parts, and all at once, on either side of the bound."""
    model = Model.open(MODEL)
    tokens = np.random.default_rng(1).integers(0, 320, 45)
    options: dict[str, Any] = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}
    want = Context(model, 64, devices=[cpu()], **options).decode(tokens, outputs="all")
    for parts in ([45], [31, 14], [32, 1, 12], [1] * 45):
        context = Context(model, 64, devices=_devices(which), **options)
        start, rows = 0, []
        for n in parts:
            rows.append(context.decode(tokens[start : start + n], outputs="all"))
            start += n
        # float32 sums in another order
        np.testing.assert_allclose(np.concatenate(rows), want, rtol=1e-3, atol=1e-4)


def test_one_device_has_one_regime() -> None:
    context = Context(Model.open(MODEL), 64, n_threads=1)
    assert len(context.regimes) == 1 and context.counters.graphs_built == 1


def test_pools_grow_and_say_so() -> None:
    """A block that must grow is replaced; who reserves the largest first never sees that."""
    model, device = Model.open(MODEL), cpu()
    small, big = (Context(model, 64, n_ubatch=n, devices=[device]).program for n in (2, 32))
    pool = ArenaPool()
    first = Session(small, pool)
    held = first._bound.memories[0]
    Session(big, pool)
    assert pool.reallocs == 1 and held is first._bound.memories[0]
    pool = ArenaPool()
    pool.reserve(small, big)
    for program in (small, big, small):
        Session(program, pool)
    assert pool.reallocs == 0 and pool.nbytes == arena_bytes(small, big)
