"""Experts that stay in the file beyond a budget: the same bits at any budget, and honest errors."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.in_process import weft
from tests.llm.tiny import metadata, weights
from weft import LLM, quants
from weft.backends import make_backend
from weft.backends.cpu.experts import ExpertArena
from weft.dtype import DTYPES
from weft.errors import ContextError, FormatError, OutOfMemoryError
from weft.frontends.gguf.writer import write_gguf
from weft.llm import Context, Model
from weft.llm.cache import memory as memory_module
from weft.llm.engine import Engine
from weft.llm.planning.explain import memory_lines
from weft.native import _native
from weft.serve.metrics import HttpMetrics, exposition

TOKENS = [1, *range(5, 30)]
SIZES = {
    "llama.embedding_length": 64, "llama.feed_forward_length": 96, "llama.block_count": 3,
    "llama.expert_count": 12, "llama.expert_used_count": 3,
}  # fmt: skip
EACH = 96 * 64
TARGETS = [name for name, score in _native.targets() if score]


def write(path: Path, dtype: str = "q8_0", down: str = "q4_0", **changes: Any) -> Path:
    """A mixture whose `ffn_down` may have another type, so that slots have two sizes."""
    meta = metadata(**(SIZES | changes))
    meta["llama.context_length"] = 64
    rows = []
    for name, a in weights(meta).items():
        wanted = down if "ffn_down_exps" in name else dtype
        kind = wanted if "_exps" in name else "f32"
        data = a.tobytes() if kind == "f32" else quants.encode(a, DTYPES[kind]).tobytes()
        rows.append((name, kind, a.shape[::-1], data))
    write_gguf(path, meta, rows)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("experts") / "m.gguf")


def context(path: Path, **options: Any) -> Context:
    return Context(Model.open(path), 48, **({"n_threads": 2} | options))


def logits(ctx: Context) -> NDArray[np.float32]:
    """Those of a prompt, of tokens after it one by one, and of several together."""
    rows = [ctx.decode(TOKENS, outputs="all")]
    rows += [ctx.decode([token]) for token in (7, 21, 9)]
    rows.append(ctx.decode([11, 12, 13, 14], outputs="all"))
    return np.concatenate(rows)


def arena_of(ctx: Context) -> ExpertArena:
    assert ctx.plan.experts is not None
    return ctx.plan.experts


def least_of(path: Path) -> int:
    with pytest.raises(ContextError, match=r"^expert_budget is 1 bytes") as caught:
        context(path, expert_budget=1)
    found = re.search(r"give it (\d+) or more", str(caught.value))
    assert found is not None
    return int(found[1])


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("repack", [True, False])
def test_the_bits_are_those_without_a_budget(path: Path, target: str, repack: bool) -> None:
    def devices(n_threads: int) -> dict[str, Any]:
        return {"devices": [make_backend("cpu", target=target, n_threads=n_threads)]}

    wanted = logits(context(path, repack=repack, **devices(2)))
    least = least_of(path)
    for budget, n_threads in ((least, 1), (least, 3), (3 * least, 2), ("1M", 2)):
        for policy in ("auto", "lru", "predict"):
            ctx = context(
                path, repack=repack, expert_budget=budget, expert_policy=policy,
                **devices(n_threads),
            )  # fmt: skip
            same_bits(logits(ctx), wanted)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4_0", "q4_1"])
def test_formats(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "m.gguf", dtype, dtype)
    wanted = logits(context(path))
    ctx = context(path, expert_budget=least_of(path))
    same_bits(logits(ctx), wanted)
    assert arena_of(ctx).stats.misses > 0


def test_the_least_budget_has_the_experts_of_a_token(path: Path) -> None:
    least = least_of(path)
    q8_0, q4_0 = (DTYPES[t].row_bytes(EACH) for t in ("q8_0", "q4_0"))
    assert least == 3 * (q8_0 + q4_0)
    ctx = context(path, expert_budget=least)
    assert arena_of(ctx).pools == {q8_0: 3, q4_0: 3}
    with pytest.raises(ContextError, match=rf"{least - 1} bytes.*give it {least} or more"):
        context(path, expert_budget=least - 1)


def test_slots_are_shared_out_by_need(path: Path) -> None:
    everything = context(path, expert_budget="1G")
    n = 3 * 12
    assert sorted(arena_of(everything).pools.values()) == [n, 2 * n]
    assert arena_of(everything).nbytes == arena_of(everything).all_bytes
    half = arena_of(context(path, expert_budget=arena_of(everything).nbytes // 2))
    assert half.nbytes <= half.budget
    assert all(abs(slots - all_ / 2) <= 1 for slots, all_ in zip(
        half.pools.values(), (2 * n, n), strict=True))  # fmt: skip


def test_hits_and_misses_are_counted(path: Path) -> None:
    ctx = context(path, expert_budget="1G")
    ctx.decode(TOKENS)
    first = arena_of(ctx).stats
    assert first.hits == 0 and first.misses > 0 and first.nbytes > 0
    ctx.clear()
    ctx.decode(TOKENS)
    again = arena_of(ctx).stats - first
    assert again.misses == 0 and again.nbytes == 0 and again.hits == first.misses
    assert again.hit_rate == 1
    assert f"{first.misses * 2} in memory" in arena_of(ctx).about()


def test_weights_that_wait_leave_experts_to_the_budget(path: Path) -> None:
    wanted = logits(context(path))
    ctx = context(path, expert_budget=least_of(path), repack_later=True)
    first = ctx.decode(TOKENS, outputs="all")
    assert arena_of(ctx).stats.misses > 0
    same_bits(first, wanted[: len(TOKENS)])
    ctx.clear()
    same_bits(logits(ctx), wanted)


def test_the_plan_counts_the_arena(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, plain = context(path, expert_budget=40_000), context(path)
    arena = arena_of(ctx)
    rows = {(row["buffer"], row["memory"]): row["bytes"] for row in ctx.plan.memory_rows()}
    assert rows["experts", "CPU_EXPERTS"] == arena.nbytes == ctx.memory.experts
    assert ctx.memory.weights + ctx.memory.repacked < plain.memory.weights + plain.memory.repacked
    needs, before = ctx.plan.needs(), plain.plan.needs()
    assert sum(n.total for n in needs) == sum(n.total for n in before) + arena.nbytes - (
        sum(leaf.nbytes for name, leaf in plain.model.weights.items() if "_exps" in name)  # type: ignore[misc]
    )
    assert any(line.startswith("experts") for line in memory_lines(ctx.plan, 0))
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 100_000)
    with pytest.raises(OutOfMemoryError, match=r"experts .*expert_budget"):
        context(path, expert_budget="1G")


def test_contexts_share_experts(path: Path) -> None:
    model, least = Model.open(path), least_of(path)
    wanted = logits(context(path))
    options: dict[str, Any] = {"n_threads": 1, "expert_budget": least}
    contexts = [Context(model, 48, **options) for _ in range(3)]
    assert len({id(arena_of(ctx)) for ctx in contexts}) == 1
    assert arena_of(Context(model, 48, **options | {"expert_budget": 2 * least})) is not arena_of(
        contexts[0]
    )

    def work(ctx: Context) -> list[NDArray[np.float32]]:
        results = []
        for _ in range(4):
            ctx.clear()
            results.append(logits(ctx))
        return results

    with ThreadPoolExecutor(len(contexts)) as pool:  # they wait for each other's slots
        for results in pool.map(work, contexts, timeout=120):
            for rows in results:
                same_bits(rows, wanted)


def test_a_file_that_was_cut_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.gguf")
    whole = path.read_bytes()
    wanted = logits(context(path))
    ctx = context(path, expert_budget=least_of(path))
    tensors = ctx.model.file.tensors
    last = max(tensors, key=lambda name: tensors[name].offset)
    assert last == "blk.2.ffn_down_exps.weight"  # nothing that is read in place is behind it
    os.truncate(path, tensors[last].offset)
    with pytest.raises(FormatError, match=r"cut\.gguf: expert \d+ of blk.*the file ends at"):
        logits(ctx)
    with path.open("r+b") as file:
        file.write(whole)
    ctx.clear()
    same_bits(logits(ctx), wanted)


def test_a_file_that_was_removed_is_still_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    wanted = logits(context(path))
    ctx = context(path, expert_budget=least_of(path))
    path.unlink()
    same_bits(logits(ctx), wanted)


def test_models_and_options_that_a_budget_is_not_for(tmp_path: Path, path: Path) -> None:
    dense = write(tmp_path / "dense.gguf", **{
        "llama.expert_count": 0, "llama.expert_used_count": 0
    })  # fmt: skip
    with pytest.raises(ContextError, match=r"expert_budget.*dense\.gguf has no experts"):
        context(dense, expert_budget="1M")
    for budget, why in (("lots", "not a size"), (0, "1 or more"), ("-1", "not a size")):
        with pytest.raises(ContextError, match=f"expert_budget.*{why}"):
            context(path, expert_budget=budget)
    with pytest.raises(ContextError, match=r"expert_policy.*lru"):
        context(path, expert_budget="1M", expert_policy="fifo")
    with pytest.raises(ContextError, match="give a budget"):
        context(path, expert_policy="lru")


def test_a_policy_is_chosen_by_simulation(path: Path) -> None:
    ctx = context(path, expert_budget=3 * least_of(path))
    arena = arena_of(ctx)
    assert arena.policy == "auto"
    wanted = context(path)
    for i in range(300):  # a review comes after 128 steps
        if i % 40 == 0:
            ctx.clear()
            wanted.clear()
        same_bits(ctx.decode([5 + i % 7]), wanted.decode([5 + i % 7]))
    assert re.fullmatch(r"(lru|lfu|predict) \(chosen\)", arena.policy_now)


def test_routing_is_recorded_and_simulated(path: Path, tmp_path: Path) -> None:
    ctx = context(path, expert_budget="1G")
    arena = arena_of(ctx)
    arena.record()
    logits(ctx)
    routing = arena.recorded()
    assert routing.n_experts == (12, 12, 12) and routing.n_steps == 3 * 5
    rates = arena.simulated(routing)
    # with memory for all, an expert is missing once; the arena counts its three matrices
    assert rates["lru"] == pytest.approx(arena.stats.hit_rate)
    assert set(rates) == {"lru", "lfu", "predict", "best"}
    arena.record(False)
    ctx.decode([3])
    assert arena.recorded().n_steps == 0
    other = write(tmp_path / "other.gguf", **{"llama.expert_count": 8})
    with pytest.raises(FormatError, match=r"12, 12, 12 experts.*the model has 8, 8, 8"):
        arena_of(context(other, expert_budget="1G")).simulated(routing)


def test_commands(path: Path, tmp_path: Path) -> None:
    record = tmp_path / "routing"
    done = weft("experts", path, "-p", "x", "-n", "20", "--save", record, "-c", "48")
    assert done.returncode == 0 and "best" in done.stdout and "100%" in done.stdout
    done = weft("experts", path, "--routing", record, "--expert-budget", "120K", "--json")
    row = json.loads(done.stdout)["rows"][0]
    assert row["bytes"] <= 120 << 10 and 0 < row["lru"] <= row["best"] <= 1
    done = weft("explain", path, "--brief", "--expert-budget", "120K", "--routing", record)
    assert f"lru {row['lru']:.1%}" in done.stdout and f"at best {row['best']:.1%}" in done.stdout
    done = weft("explain", path, "--routing", record)
    assert done.returncode == 1 and "give a budget" in done.stderr
    done = weft("experts", path)
    assert done.returncode == 1 and "--routing" in done.stderr
    done = weft("run", path, "-p", "x", "-n", "4", "-v", "--expert-budget", "120K")
    assert re.search(r"experts: slots for .* in memory; .* GB read", done.stderr)


def test_texts_written_together(path: Path) -> None:
    prompts = [[1, 5, 6, 7], [1, 5, 6, 9, 11], [1, 20, 21]]
    options: dict[str, Any] = {"n_ctx": 96, "n_threads": 2, "n_seq_max": 3}
    with LLM(path, **options) as plain, LLM(path, expert_budget=40_000, **options) as llm:
        for _ in range(2):  # the second time, prompts are in the cache
            wanted = plain.generate(prompts, max_tokens=10, temperature=0)
            assert llm.generate(prompts, max_tokens=10, temperature=0) == wanted


def test_texts_and_metrics(path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 48, "n_threads": 1}
    with LLM(path, **options) as plain, LLM(path, expert_budget=40_000, **options) as llm:
        wanted = plain.generate([1, 5, 6, 7], max_tokens=12, temperature=0)
        for _ in range(2):  # the second time, the prompt is kept
            assert llm.generate([1, 5, 6, 7], max_tokens=12, temperature=0) == wanted
        assert "experts" in llm.explain(brief=True) and "in memory" in llm.explain(brief=True)
        engine = Engine(llm.context, llm.tokenizer)
        try:
            text = exposition(engine, HttpMetrics())
        finally:
            engine.close()
    found = re.search(r"^weft_expert_misses_total (\d+)", text, re.MULTILINE)
    assert found is not None and int(found[1]) > 0
