"""One model over several workers: the same bits as on one machine, and few messages for a token."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.cluster.worker_processes import WorkerProcess
from tests.cluster.worker_threads import WorkerThread
from tests.conftest import VECTORS
from tests.waiting import eventually
from tests.worker_processes import lends
from weft.backends import make_backend
from weft.backends.remote import Machine, RemoteBackend, machine_at
from weft.cli.plan_lines import placement_lines
from weft.links.addresses import parse_address
from weft.llm import Context, Model

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/weft-demo.gguf"
SHAPES = ROOT / "examples/shapes/weft-shapes.gguf"
ARCHS = VECTORS / "models/archs"
LLAMA3 = ROOT / "tests/data/vectors/models/archs/llama3.gguf"
SIZES: dict[str, Any] = {"n_ctx": 128, "n_ubatch": 16, "n_seq_max": 3, "n_threads": 1}


Worker = WorkerThread | WorkerProcess


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Three: the first has the files of the examples, the others get what they need."""
    caches = [tmp_path_factory.mktemp(f"cache{i}") for i in range(3)]
    with (
        WorkerThread(caches[0], [ROOT / "examples"]) as a,
        WorkerThread(caches[1]) as b,
        WorkerThread(caches[2]) as c,
    ):
        yield [a, b, c]


def stages(model: Model, workers: Sequence[Worker]) -> dict[str, Any]:
    """Devices and places for consecutive layers of a model on workers."""
    n, k = model.config.n_layer, min(len(workers), model.config.n_layer)
    devices = [make_backend(w.cpu) for w in workers[:k]]
    place = {f"blk.{i}.*": devices[i * k // n].name for i in range(n)}
    if any(name.startswith("output") for name in model.weights):
        place["output*"] = devices[-1].name
    return {"devices": [*devices, "cpu"], "place": place}


def on_both(path: Path, workers: Sequence[Worker], **more: Any) -> tuple[Context, Context]:
    """A context on this machine, and one over the workers."""
    model = Model.open(path)
    sizes = SIZES | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of caches that are smaller than what models know
        here = Context(model, devices=["cpu"], **(sizes | {"n_copies": 1}))
        return here, Context(model, **sizes, **stages(model, workers))


def remote(context: Context) -> list[RemoteBackend]:
    return [b for b in context.plan.backends if isinstance(b, RemoteBackend)]


def tokens(n: int, most: int = 200) -> list[int]:
    return [int(t) for t in np.random.default_rng(n).integers(3, most, n)]


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def test_a_text(workers: list[Worker]) -> None:
    """The very same text; most of it is the workers' doing."""
    model = Model.open(DEMO)
    wanted = {"max_tokens": 30, "temperature": 0}
    here = weft.LLM(DEMO, n_threads=1).generate("What is 88 - 60?", **wanted)
    llm = weft.LLM(DEMO, **stages(model, workers[:2]))
    assert llm.generate("What is 88 - 60?", **wanted) == here
    splits = llm.context.program.splits
    used = [split.device for split in splits]
    assert used == ["cpu", *(w.cpu for w in workers[:2])]


def test_a_token_is_one_wait(workers: list[Worker]) -> None:
    """A frame to each worker, one answer; hidden states go from worker to worker."""
    here, there = on_both(DEMO, workers[:2])
    for context in (here, there):
        context.decode(tokens(20))
        context.decode([5])
    machines = [b.machine for b in remote(there)]
    before = [(m.waits, m.frames) for m in machines]
    for i in range(16):
        same(here.decode([10 + i]), there.decode([10 + i]))
    waits = [m.waits - w for m, (w, _) in zip(machines, before, strict=True)]
    frames = [m.frames - f for m, (_, f) in zip(machines, before, strict=True)]
    assert waits == [0, 16] and max(frames) <= 17, frames


@pytest.mark.parametrize("path", [DEMO, SHAPES, LLAMA3], ids=lambda p: p.stem)
@pytest.mark.parametrize("n_copies", [1, 3])
def test_prompts_and_sequences(workers: list[Worker], path: Path, n_copies: int) -> None:
    """A prompt in ubatches, also several at once; then several sequences; then states."""
    here, there = on_both(path, workers, n_copies=n_copies)
    prompt = tokens(60)
    same(here.decode(prompt, outputs="all"), there.decode(prompt, outputs="all"))
    many: dict[str, Any] = {"seqs": [[1], [2], [0]], "positions": [0, 0, 60], "outputs": "all"}
    same(here.decode([5, 6, 7], **many), there.decode([5, 6, 7], **many))
    state = there.save_state()
    assert state == here.save_state()
    there.load_state(state)
    same(here.decode([9]), there.decode([9]))


def test_shift_and_shared_beginnings(workers: list[Worker]) -> None:
    here, there = on_both(DEMO, workers[:2])
    for context in (here, there):
        context.decode(tokens(40))
        context.seq_cp(0, 1)
        context.seq_rm(0, 8, 20)
        context.seq_add(0, 20, -1, -12)
    same(here.decode([7]), there.decode([7]))
    two: dict[str, Any] = {"seqs": [[1], [0]], "positions": [40, 29], "outputs": "all"}
    same(here.decode([8, 9], **two), there.decode([8, 9], **two))


def test_a_context_beside_another(workers: list[Worker]) -> None:
    """Two contexts of one model at the same workers do not disturb each other."""
    here, one = on_both(DEMO, workers[:2])
    two = Context(one.model, **SIZES, **stages(one.model, workers[:2]))
    for context in (here, one, two):
        context.decode(tokens(30))
    row = here.decode([4])
    same(row, one.decode([4]))
    del one
    same(row, two.decode([4]))


_ARCHS = ["mixtral", "mamba", "mamba2", "gemma3", "lfm2", "qwen3moe", "deepseek2", "gpt2", "bloom"]


@pytest.mark.parametrize("name", _ARCHS)
def test_architectures(workers: list[Worker], name: str) -> None:
    """Mixtures, recurrent models, hybrids, windows, tied outputs: the same bits over stages."""
    path = ARCHS / f"{name}.gguf"
    if not path.exists():
        pytest.skip("the golden models (../shared/vectors) are not part of a public clone")
    here, there = on_both(path, workers)
    prompt = tokens(40, min(here.model.config.n_vocab, 200))
    same(here.decode(prompt, outputs="all"), there.decode(prompt, outputs="all"))
    same(here.decode([7]), there.decode([7]))


def test_weights_are_sent_once(workers: list[Worker], tmp_path: Path) -> None:
    """A worker without the file gets the tensors of its stage, and keeps them; one with it gets
    none."""
    model = Model.open(DEMO)
    with WorkerThread(tmp_path / "cache") as fresh:
        pair = [workers[0], fresh]
        sent = machine_at(("127.0.0.1", workers[0].port)).link.bytes_sent
        context = Context(model, **SIZES, **stages(model, pair))
        needs = [need for need in context.plan.needs() if fresh.cpu in need.devices]
        weights = sum(need.weights + sum(need.repacked.values()) for need in needs)
        kept = sum(p.stat().st_size for p in (tmp_path / "cache/tensors").iterdir())
        machines = [b.machine for b in remote(context)]
        assert 0 < kept <= weights
        assert machines[0].link.bytes_sent - sent < 200_000
        assert 200_000 < kept < machines[1].link.bytes_sent
        first = context.decode(tokens(9))
        before = machines[1].link.bytes_sent
        again = Context(model, **SIZES, **stages(model, pair))
        assert machines[1].link.bytes_sent - before < 200_000
        same(again.decode(tokens(9)), first)


# ---- when a worker dies --------------------------------------------------------------------------


def test_a_dead_worker_is_not_blamed_on_another(tmp_path: Path, workers: list[Worker]) -> None:
    living = machine_at(parse_address(workers[0].address, "machines"))
    with WorkerProcess(tmp_path / "cache") as doomed:
        dead = machine_at(parse_address(doomed.address, "machines"))
        dead.post(["nothing"])
        dead.leave()  # until this thread turns elsewhere
        doomed.kill()
        eventually(lambda: dead.is_lost)
        living.call(["nothing"])
        with pytest.raises(weft.DeviceError, match=doomed.address):
            dead.call(["nothing"])


def test_a_dead_worker_is_named(tmp_path: Path, workers: list[Worker]) -> None:
    model = Model.open(DEMO)
    with WorkerProcess(tmp_path / "cache") as doomed:
        context = Context(model, **SIZES, **stages(model, [workers[0], doomed]))
        context.decode(tokens(9))
        doomed.kill()
        with pytest.raises(weft.DeviceError, match=doomed.address):
            context.decode([5])
        assert context.cache.n_used == 9
    # the worker that lives goes on with others
    here, there = on_both(DEMO, workers[:1])
    same(here.decode(tokens(9)), there.decode(tokens(9)))


def test_a_text_goes_on_without_a_dead_worker(tmp_path: Path, workers: list[Worker]) -> None:
    """With a fallback, the very same tokens."""
    model = Model.open(DEMO)
    with WorkerProcess(tmp_path / "cache") as doomed:
        both = stages(model, [doomed, workers[0]])
        here = Context(model, devices=["cpu"], **SIZES)
        there = Context(model, **SIZES, **both, fallback=["cpu"])
        here.decode(tokens(9))
        there.decode(tokens(9))
        for i in range(6):
            if i == 3:
                doomed.kill()
                with pytest.warns(RuntimeWarning, match=doomed.address):
                    row = there.decode([5 + i])
            else:
                row = there.decode([5 + i])
            same(row, here.decode([5 + i]))
        assert doomed.address in there.fell_back


def test_what_nobody_uses_is_freed(tmp_path: Path) -> None:
    """A worker has all its memory back soon after a context is gone, with or without its link."""
    with WorkerThread(tmp_path / "cache", [ROOT / "examples"], memory=64 << 20) as worker:
        other = RemoteBackend(Machine(("127.0.0.1", worker.port))).memory_type
        kept = [make_backend(worker.cpu)]
        for _ in range(2):
            _, context = on_both(DEMO, [worker])
            context.decode(tokens(9))
            del context
            gc.collect()
            eventually(lambda: lends(other, (64 << 20) - 4096))
            kept.clear()  # and with it the link of the next round


def test_repacking_takes_no_more_than_planned(tmp_path: Path) -> None:
    """A worker that lends what a plan needs has room when weights are repacked after a batch: the
    copies of the largest graph stay where they are."""
    lent = 64 << 20
    with WorkerThread(tmp_path / "cache", [ROOT / "examples"], memory=lent) as worker:
        device = make_backend(worker.cpu)
        more = {"n_copies": 3, "devices": [device, "cpu"], "n_gpu_layers": 1}
        context = Context(Model.open(DEMO), **(SIZES | more), repack_later=True)
        assert context.plan.n_copies == 3
        context.decode(tokens(9))
        memory = device.memory_type
        rest = memory.allocate(device.memory_limit() - 4096)  # there is no room for a copy now
        context.decode(tokens(5))
        del rest
    assert any(
        not layout.name.startswith(device.name) for layout in context.plan.plan.layouts.values()
    )


def test_layers_are_the_cause(workers: list[Worker]) -> None:
    """Where layers are shared out over machines, no plan file and no weight is the reason."""
    device = make_backend(workers[0].cpu)
    context = Context(Model.open(DEMO), **SIZES, devices=[device, "cpu"])
    first, last = placement_lines(context.program)
    assert first.endswith("; because its layer is there"), first
    assert "plan file" not in last


def test_advice_that_helps(workers: list[Worker]) -> None:
    """A number of layers, which are shared out evenly, is advised only where these fit."""
    devices = [make_backend(w.cpu) for w in workers[:2]]
    memory = {devices[0].name: 100_000}
    model = Model.open(DEMO)
    for n in (None, 2, 3):
        given = SIZES | {"devices": [*devices, "cpu"], "memory": memory, "n_gpu_layers": n}
        with pytest.raises(weft.OutOfMemoryError, match="layers fit") as caught:
            Context(model, **given)
        assert "takes what it has room for (fit)" in str(caught.value)
        assert "n_gpu_layers" not in str(caught.value)
    Context(model, **(given | {"n_gpu_layers": None, "fit": True}))
