"""Threads of a context: barriers against nodes, counts for prompts and tokens, stops, memory."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from weft import ThreadOptions
from weft.errors import AbortedError, ContextError, DeviceError
from weft.llm import Context, Model

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/vectors/models/archs/llama3.gguf"
DEMO = ROOT / "examples/weft-demo.gguf"
STORIES = ROOT.parent / "shared/vectors/models/stories260K"
MODELS = [SAMPLE, DEMO, STORIES / "stories260K-F32.gguf", STORIES / "stories260K-Q4_0.gguf"]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("n_threads", [2, 4])
def test_barriers_are_at_most_half_of_the_nodes(path: Path, n_threads: int) -> None:
    if not path.exists():
        pytest.skip(f"no {path.name} here")
    context = Context(Model.open(path), 128, n_ubatch=64, n_threads=n_threads)
    nodes = len(context.plan.plan.schedule.graph.nodes)
    for n_tokens in (64, 7, 1):
        context.cache.clear()
        context.decode(np.full(n_tokens, 5))
        assert context.barriers <= nodes / 2, f"{n_tokens} tokens"
    context.cache.clear()
    context.decode(np.full(64, 5))
    assert context.barriers > 0


def test_prompts_and_tokens_have_threads_of_their_own() -> None:
    model = Model.open(DEMO)
    tokens = np.arange(32) % model.config.n_vocab
    want = Context(model, 64, n_threads=1).decode(tokens, outputs="all")
    for options in (
        {"n_threads": 1, "n_threads_batch": 3},
        {"n_threads": 3, "n_threads_batch": 1},
        {"threads": ThreadOptions(n_threads=2, n_threads_batch=4, poll=0)},
    ):
        context = Context(model, 64, **options)
        (cpu,) = context.program.devices
        assert cpu.pool.size == max(cpu.n_threads, cpu.n_threads_batch)
        got = [context.decode(tokens[:16], outputs="all")]
        got += [context.decode([t]) for t in tokens[16:20]]
        got += [context.decode(tokens[20:], outputs="all")]
        np.testing.assert_allclose(np.concatenate(got), want, rtol=1e-3, atol=1e-3)
        assert cpu.n_threads == 1 or context.barriers > 0 or cpu.n_threads_batch == 1


def test_thread_options_are_checked() -> None:
    model = Model.open(SAMPLE)
    with pytest.raises(ContextError, match="n_threads_batch is 0"):
        Context(model, 32, n_threads_batch=0)
    with pytest.raises(DeviceError, match="not among those"):
        Context(model, 32, threads=ThreadOptions(cpus=(8000,)))


def test_decode_is_stopped_and_the_cache_is_as_it_was() -> None:
    model = Model.open(SAMPLE)
    n = 4096
    context = Context(model, n, n_ubatch=n, n_outputs=1, n_threads=2)
    context.decode([1, 2, 3])
    before = context.cache.pos.copy()
    tokens = np.full(n - 3, 5)
    finished = threading.Event()

    def stop() -> None:
        while not finished.wait(0.001):
            context.abort()

    other = threading.Thread(target=stop)
    other.start()
    try:
        with pytest.raises(AbortedError):
            context.decode(tokens)
    finally:
        finished.set()
        other.join()
    assert (context.cache.pos == before).all()
    context.abort()  # between calls: forgotten
    assert np.isfinite(context.decode([4])).all()


def test_scratch_is_part_of_the_memory_that_is_planned() -> None:
    context = Context(Model.open(SAMPLE), 64, n_threads=3)
    used = [e.scratch_bytes for e in context.regimes[-1].session.executables]  # type: ignore[attr-defined]
    assert context.memory.scratch == max(used) > 0
