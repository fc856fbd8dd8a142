"""Models partly on an OpenCL device: the same tokens wherever things are, and the plan's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.llm.tiny import metadata, weights, write_model, write_wide_model
from weft.backends.opencl import OpenCLBackend
from weft.frontends.gguf.quantize import quantize_file
from weft.graph.size import evaluate
from weft.llm import Context, Model

TOKENS = np.array([1, 262, 263, 264, 265, 266, 267])
# float32 sums in another order
RTOL, ATOL = 1e-4, 2e-5


@pytest.fixture(scope="module")
def device() -> OpenCLBackend:
    return opencl()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """4 layers, 512 wide."""
    return Model.open(write_wide_model(tmp_path_factory.mktemp("wide") / "m.gguf"))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Model:
    meta = metadata(**{"llama.expert_count": 4, "llama.expert_used_count": 2})
    path = tmp_path_factory.mktemp("moe") / "m.gguf"
    return Model.open(write_model(path, meta, weights(meta)))


def context(model: Model, **options: Any) -> Context:
    """Keys and values in float32, so that no rounding on a border is seen in the logits."""
    settings: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
    return Context(model, 48, activations="f32", n_threads=1, **(settings | options))


def greedy(ctx: Context, n: int = 24) -> list[int]:
    """Tokens of the largest logits behind `TOKENS`."""
    logits = ctx.decode(TOKENS)[0]
    results = []
    for _ in range(n):
        results.append(int(logits.argmax()))
        logits = ctx.decode(results[-1:])[0]
    return results


def check_moved(ctx: Context) -> None:
    """The copies of a run are those of the plan, to the byte."""
    for _ in range(2):  # the first run chooses the session
        session = ctx._graphs.session
        before = session.moved.nbytes, session.moved.copies
        ctx.cache.clear()
        ctx.decode(TOKENS)
    assert session is ctx._graphs.session
    program = session.program
    values = {"n_tokens": len(TOKENS), "n_kv": len(TOKENS), "n_outputs": 1}
    copies = [program.tensors[c.src] for split in program.splits for c in split.copies]
    nbytes = 0
    for spec in copies:
        ne = [evaluate(n, values) for n in spec.ne]
        nbytes += int(np.prod(ne)) // spec.dtype.block * spec.dtype.bytes
    assert session.moved.copies - before[1] == len(copies)
    assert session.moved.nbytes - before[0] == nbytes


def counts(most: int, *usual: int) -> list[Any]:
    """Numbers of layers below `most`; those that are not `usual` are tested at length only."""
    devices = pytest.mark.part("devices")
    return [n if n in usual else pytest.param(n, marks=devices) for n in range(most)]


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("n", counts(6, 0, 3, 5))
def test_every_layer_count(wide: Model, device: OpenCLBackend, n: int, flash: bool) -> None:
    want = context(wide, flash=flash)
    ctx = context(wide, flash=flash, devices=[device, "cpu"], n_gpu_layers=n)
    needs = {need.memory: need for need in ctx.plan.needs()}
    assert (needs[device.buffer_type.name].weights == 0) == (n == 0)
    # a token on the border of two may differ where sums are in another order: none is here
    assert greedy(ctx) == greedy(want)
    want.cache.clear()
    ctx.cache.clear()
    rows = [c.decode(TOKENS, outputs="all") for c in (ctx, want)]
    np.testing.assert_allclose(*rows, rtol=RTOL, atol=ATOL)
    check_moved(ctx)


@pytest.mark.parametrize("n", counts(7, 0, 4, 6))
def test_every_layer_count_of_stories(vectors: Path, device: OpenCLBackend, n: int) -> None:
    for kind in ("F32", "F16", "Q8_0", "Q4_0"):
        path = vectors / "models" / "stories260K" / f"stories260K-{kind}.gguf"
        options: dict[str, Any] = {"n_ctx": 128, "activations": "f32", "n_threads": 1}
        texts = []
        for more in ({}, {"devices": [device, "cpu"], "n_gpu_layers": n}):
            llm = weft.LLM(path, **options, **more)
            texts.append(llm.generate("Once upon a time", max_tokens=60, temperature=0))
        assert texts[0] == texts[1], kind


def test_experts_on_the_cpu(moe: Model, device: OpenCLBackend) -> None:
    want = greedy(context(moe))
    ctx = context(moe, devices=[device, "cpu"], place={"blk.*.ffn_*_exps": "cpu"})
    assert greedy(ctx) == want
    schedule = ctx.plan.plan.schedule
    where = {
        n.op.name: schedule.backend_for(n).name  # type: ignore[union-attr]
        for n in schedule.graph.nodes
    }
    assert where["MUL_MAT_ID"] == "cpu" and where["MUL_MAT"] == device.name
    check_moved(ctx)
    assert greedy(context(moe, devices=[device, "cpu"])) == want


@pytest.mark.parametrize("type_k", ["f32", "f16", "q8_0"])
def test_the_cache_on_either_side(wide: Model, device: OpenCLBackend, type_k: str) -> None:
    cache: dict[str, Any] = {"type_k": type_k, "type_v": type_k}
    want = greedy(context(wide, **cache))
    for offload_kv in (True, False):
        ctx = context(wide, devices=[device, "cpu"], offload_kv=offload_kv, **cache)
        assert {c == 0 for c in ctx.plan.homes.caches} == {offload_kv}
        assert greedy(ctx) == want
        check_moved(ctx)


def test_random_placements(wide: Model, device: OpenCLBackend) -> None:
    """Weights on either side at random, tensor by tensor."""
    want = greedy(context(wide), 8)
    names = [n for n in wide.weights if n != "token_embd.weight"]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        place = {name: (device.name if rng.random() < 0.5 else "cpu") for name in names}
        ctx = context(wide, devices=[device, "cpu"], place=place)
        assert greedy(ctx, 8) == want
        check_moved(ctx)


def test_weights_in_buffers_of_their_own(wide: Model) -> None:
    """When the device does not work in the host's memory, weights are sent, with progress."""
    seen: list[tuple[int, int]] = []
    device = opencl(copy_weights=True)
    ctx = context(
        wide, devices=[device, "cpu"], progress=lambda done, total: seen.append((done, total))
    )
    assert greedy(ctx, 8) == greedy(context(wide), 8)
    sent = {need.memory: need.weights for need in ctx.plan.needs()}[device.buffer_type.name]
    assert seen[-1][0] == seen[-1][1] >= sent > 0 and len(seen) > 20
    assert device.memory_type.in_use >= sent


# ---- weights in planes ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blocks(wide: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The wide model in q4_0, with an output of q6_K."""
    path = tmp_path_factory.mktemp("blocks") / "m.gguf"
    quantize_file(wide.file.path, path, "q4_0")
    return Model.open(path)


@pytest.fixture(scope="module")
def planar() -> OpenCLBackend:
    return opencl(planes=True, copy_weights=True)


def test_random_placements_in_planes(blocks: Model, planar: OpenCLBackend) -> None:
    """The logits of weights as they are in the file, wherever they are."""
    names = [n for n in blocks.weights if n != "token_embd.weight"]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        place = {name: (planar.name if rng.random() < 0.5 else "cpu") for name in names}
        options: dict[str, Any] = {"devices": [planar, "cpu"], "place": place}
        made, plain = context(blocks, **options), context(blocks, **options, repack=False)
        in_planes = {
            leaf.name for leaf, to in made.plan.plan.layouts.items() if to.device == planar.name
        }
        there = {n for n in names if place[n] == planar.name}
        assert in_planes == {n for n in there if blocks.weights[n].dtype.is_quantized}
        assert not plain.plan.plan.layouts
        rows = [c.decode(TOKENS, outputs="all") for c in (made, plain)]
        np.testing.assert_allclose(*rows, rtol=RTOL, atol=ATOL)
        made.cache.clear()
        check_moved(made)


def test_bytes_of_planes(blocks: Model) -> None:
    """What was planned is what the device holds, with and without, and progress counts it."""
    seen: list[tuple[int, int]] = []
    device = opencl(planes=True, copy_weights=True)
    options: dict[str, Any] = {"devices": [device, "cpu"]}
    ctx = context(blocks, **options, progress=lambda *now: seen.append(now))
    need = ctx.plan.needs()[0]
    (size,) = need.repacked.values()
    assert seen[-1] == (need.weights + size,) * 2 and len(seen) > 20
    assert device.memory_type.in_use == need.total > size > need.weights
    plain = context(blocks, **options, repack=False)
    assert plain.plan.needs()[0].weights == need.weights + size
    assert plain.plan.needs()[0].total == need.total
    want = greedy(plain, 8)
    assert greedy(ctx, 8) == want
    shared = device.memory_type.in_use
    other = context(blocks, **options)
    assert device.memory_type.in_use == shared + need.cache + need.compute
    del ctx, plain, other
    assert device.memory_type.in_use == 0
    # nor does loading need room that was not planned
    device.memory_type.capacity = need.total
    assert greedy(context(blocks, **options), 8) == want


def test_fit_counts_planes(blocks: Model) -> None:
    device = opencl(planes=True, copy_weights=True)
    options: dict[str, Any] = {"devices": [device, "cpu"], "fit": True}
    whole = context(blocks, **options).plan.needs()[0].total
    ctx = context(blocks, **options, memory={device.name: whole // 2})
    need = ctx.plan.needs()[0]
    assert 0 < (ctx.plan.homes.n_gpu_layers or 0) < 5
    assert device.memory_type.in_use == need.total <= whole // 2 and need.repacked
    with pytest.raises(weft.OutOfMemoryError, match=r"repacked weights(?!.*no-repack)"):
        context(blocks, devices=[device, "cpu"], memory={device.name: whole // 2})


def test_experts_in_planes(tmp_path: Path, planar: OpenCLBackend) -> None:
    meta = metadata(**{
        "llama.expert_count": 4, "llama.expert_used_count": 2, "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
    })  # fmt: skip
    path = write_model(tmp_path / "m.gguf", meta, weights(meta))
    quantize_file(path, tmp_path / "q.gguf", "q8_0")
    model = Model.open(tmp_path / "q.gguf")
    ctx = context(model, devices=[planar, "cpu"])
    assert "blk.1.ffn_up_exps.weight" in {leaf.name for leaf in ctx.plan.plan.layouts}
    assert greedy(ctx) == greedy(context(model, devices=[planar, "cpu"], repack=False))


def test_fit_respects_the_device(wide: Model, device: OpenCLBackend) -> None:
    """It takes as many layers as its memory holds; when it holds none, the error comes before the
    load."""
    whole = context(wide, devices=[device, "cpu"]).plan
    need = {n.memory: n for n in whole.needs()}[device.buffer_type.name]
    limit = (need.weights + need.cache + need.compute) * 2 // 3
    ctx = context(wide, devices=[device, "cpu"], fit=True, memory={device.name: limit})
    n = ctx.plan.homes.n_gpu_layers
    assert 0 < n < 5
    got = {n.memory: n for n in ctx.plan.needs()}[device.buffer_type.name]
    assert got.weights + got.cache + got.compute <= limit
    assert greedy(ctx, 8) == greedy(context(wide), 8)
    in_use = device.memory_type.in_use
    with pytest.raises(weft.OutOfMemoryError, match=rf"{limit} bytes .*; {n} of the 5 layers fit"):
        context(wide, devices=[device, "cpu"], n_gpu_layers=5, memory={device.name: limit})
    with pytest.raises(weft.OutOfMemoryError, match="not even a layer fits there"):
        context(wide, devices=[device, "cpu"], memory={device.name: 1000})
    assert device.memory_type.in_use == in_use


def test_a_weight_that_no_buffer_holds_stays_with_the_host(wide: Model) -> None:
    device = opencl(copy_weights=True)
    device.memory_type.max_size = 600_000
    ctx = context(wide, devices=[device, "cpu"])
    why = "blk.0.attn_q.weight has 1048576 bytes, and opencl makes blocks of at most 600000"
    assert ctx.plan.homes.kept["blk.0.attn_q.weight"] == why
    assert {need.memory: need.weights for need in ctx.plan.needs()}["OpenCL0"] > 0
    assert greedy(ctx, 4) == greedy(context(wide), 4)


def test_contexts_give_their_memory_back(moe: Model) -> None:
    """Weights that were sent, too, though the model stays; two at once have them only once."""
    device = opencl(copy_weights=True)
    ctx = context(moe, devices=[device, "cpu"])
    one, weights = device.memory_type.in_use, ctx.plan.needs()[0].weights
    other = context(moe, devices=[device, "cpu"])
    assert 0 < weights <= one < device.memory_type.in_use <= 2 * one - weights
    want = greedy(ctx, 2)
    del ctx
    assert greedy(other, 2) == want and device.memory_type.in_use <= one + 64
    del other
    left = device.memory_type.in_use  # tables of constants
    assert left < 100
    for _ in range(20):
        assert greedy(context(moe, devices=[device, "cpu"]), 2) == want
        assert device.memory_type.in_use == left


def test_weights_that_are_there_need_no_more_room(moe: Model) -> None:
    """A second context of a model fits where there is room for its cache and compute memory."""
    device = opencl(copy_weights=True)
    ctx = context(moe, devices=[device, "cpu"])
    need = ctx.plan.needs()[0]
    device.memory_type.capacity = device.memory_type.in_use + need.cache + need.compute + 100
    want = greedy(ctx, 2)
    assert greedy(context(moe, devices=[device, "cpu"]), 2) == want
    del ctx
    alone = Model.open(moe.file.path)  # another mapping of the file, so other weights
    two = context(moe, devices=[device, "cpu"])
    with pytest.raises(weft.OutOfMemoryError, match="OpenCL0 memory"):
        context(alone, devices=[device, "cpu"])
    assert greedy(two, 2) == want


def test_contexts_beside_share_the_device() -> None:
    opencl()
    path = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"
    llm = weft.LLM(path, n_ctx=64, devices=["opencl", "cpu"], n_threads=1)
    llm.embed([5, 9, 40])
    with llm._extra().embedding() as beside:
        ours, theirs = (c.plan.backends for c in (llm.context, beside))
    assert ours[0] is theirs[0] and ours[1] is not theirs[1]


def test_the_same_device_twice_is_an_error(moe: Model) -> None:
    opencl()
    with pytest.raises(weft.ScheduleError, match="opencl and opencl:0 are the same device"):
        context(moe, devices=["opencl", "opencl:0", "cpu"])
    with pytest.raises(weft.ScheduleError, match="must be the last of the devices: opencl, cpu"):
        context(moe, devices=["cpu", "opencl"])


def test_a_device_alone_gets_the_cpu_behind_it(wide: Model) -> None:
    opencl()
    ctx = context(wide, devices=["opencl"])
    assert [b.name for b in ctx.plan.backends] == ["opencl", "cpu"]
    assert greedy(ctx, 4) == greedy(context(wide), 4)


def test_states_are_saved_and_loaded(wide: Model, device: OpenCLBackend) -> None:
    ctx = context(wide, devices=[device, "cpu"])
    ctx.decode(TOKENS)
    state = ctx.save_state()
    want = ctx.decode([5])
    other = context(wide, devices=[device, "cpu"], n_gpu_layers=2)
    other.load_state(state)
    np.testing.assert_allclose(other.decode([5]), want, rtol=RTOL, atol=ATOL)
