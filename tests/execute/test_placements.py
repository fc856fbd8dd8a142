"""One llama graph over several devices: every placement gives the logits of a single device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.execute.llama_graph import BATCHES, LlamaGraph
from tests.execute.stub_devices import AsyncDevice, Device, cpu
from tests.waiting import eventually
from weft.backends import make_backend
from weft.backends.base import Backend
from weft.execute import Scheduler
from weft.graph import Tensor

# Devices run the same kernels here, in the same order: nothing may differ at all.
EXACT = 0.0


@pytest.fixture(scope="module", params=[True, False], ids=["flash", "softmax"])
def flash(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def expected(flash: bool) -> list[NDArray[np.float32]]:
    """Logits of each batch from one device."""
    return _run(LlamaGraph(flash=flash), [cpu()], {})


def _run(
    llama: LlamaGraph,
    devices: Sequence[Backend],
    pins: Mapping[Tensor, int],
    *,
    n_copies: int = 1,
    memory: Any = "best",
    overlap: bool = False,
    sizes: Sequence[int] = BATCHES,
) -> list[NDArray[np.float32]]:
    """Logits of each batch; counts copies against the plan."""
    results = []
    with Scheduler(devices, n_copies, memory=memory) as scheduler:
        planned = 0
        runs = []
        for inputs in llama.batches(sizes):
            scheduler.reset()
            for tensor, device in pins.items():
                scheduler.set_tensor_backend(tensor, device)
            if overlap:
                runs.append(scheduler.compute_async(llama.graph, inputs))
            else:
                assert scheduler.compute(llama.graph, inputs)
                results.append(scheduler.get("logits"))
            planned += sum(len(split.inputs) for split in scheduler.schedule.splits)
        results += [run.outputs["logits"] for run in runs]
        scheduler.synchronize()
        assert scheduler.copies == planned
        assert scheduler.reallocs <= 1 + (n_copies > 1)  # the first allocation; a rotation at most
        if any(len(split.inputs) for split in scheduler.schedule.splits):
            assert scheduler.copied_bytes > 0
    return results


def _same(
    got: Sequence[NDArray[Any]],
    want: Sequence[NDArray[Any]],
    rtol: float = EXACT,
    atol: float = EXACT,
) -> None:
    assert [g.shape for g in got] == [w.shape for w in want]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


@pytest.mark.parametrize("overlap", [False, True], ids=["one by one", "overlapped"])
@pytest.mark.parametrize("n_copies", [1, 4])
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_layers_live_on_a_device(
    layers: int, n_copies: int, overlap: bool, flash: bool, expected: list[NDArray[Any]]
) -> None:
    """Weights and cache of the first layers are in a device's memory, as `-ngl` would place them;
    the schedule follows the weights, and nothing is pinned."""
    llama = LlamaGraph(flash=flash)
    device = Device("gpu")
    for il in range(layers):
        llama.place(il, device.buffer_type)
    _same(_run(llama, [device, cpu()], {}, n_copies=n_copies, overlap=overlap), expected)
    assert bool(device.begun) == (layers > 0)


@pytest.mark.parametrize("n_copies", [1, 4])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_three_devices_in_a_chain(
    first: int, n_copies: int, flash: bool, expected: list[NDArray[Any]]
) -> None:
    """Layers before `first` on one device, the others on a second, embedding and logits on the
    host; copies go from device to device."""
    llama = LlamaGraph(flash=flash)
    devices = [Device("gpu0"), Device("gpu1"), cpu()]
    for il in range(3):
        llama.place(il, devices[il >= first].buffer_type)
    _same(_run(llama, devices, {}, n_copies=n_copies, overlap=True), expected)
    assert all(device.begun for device in devices[: 1 + (first < 3)])


long = pytest.mark.part("faults")


@pytest.mark.parametrize("memory", ["best", pytest.param("ggml", marks=long)])
def test_cut_before_every_node(memory: str, flash: bool) -> None:
    """All nodes before the cut on one device, all after it on the other; what writes the cache
    stays where the cache is."""
    sizes = (3, 1)
    expected = _run(LlamaGraph(flash=flash), [cpu()], {}, sizes=sizes)
    llama = LlamaGraph(flash=flash)  # what earlier runs left in the cache is masked
    nodes = llama.graph.nodes
    n_nodes = len(nodes)
    cuts = 0
    for cut in range(0, n_nodes + 1, 2 if memory == "ggml" else 1):
        if cut < n_nodes and nodes[cut].op.is_view:
            continue  # the same splits as the next cut
        pins = {t: int(i >= cut) for i, t in enumerate(nodes) if _is_free(t)}
        _same(_run(llama, [Device("gpu"), cpu()], pins, memory=memory, sizes=sizes), expected)
        cuts += 1
    assert cuts > 20


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=long) for seed in range(4, 24))]
)
def test_every_node_anywhere(seed: int, flash: bool, expected: list[NDArray[Any]]) -> None:
    """Each node on a device drawn by lot, four copies, batches overlapped."""
    llama = LlamaGraph(flash=flash)
    devices = [Device("gpu0"), Device("gpu1"), cpu()]
    rng = np.random.default_rng(seed)
    pins = {t: int(rng.integers(3)) for t in llama.graph.nodes if _is_free(t)}
    n_copies = 1 + 3 * (seed % 2)
    memory = ("best", "ggml")[seed // 2 % 2]
    _same(_run(llama, devices, pins, n_copies=n_copies, memory=memory, overlap=True), expected)


def _is_free(node: Tensor) -> bool:
    """Whether a node may run anywhere: views follow their base, cache writes the cache."""
    return not node.op.is_view and (node.view_src is None or node.view_src.buffer is None)


@pytest.mark.parametrize("overlap", [False, True], ids=["one by one", "overlapped"])
@pytest.mark.parametrize("n_copies", [1, 3])
def test_devices_with_queues_of_their_own(
    n_copies: int, overlap: bool, flash: bool, expected: list[NDArray[Any]]
) -> None:
    """Runs return before they are done, and each takes a while."""
    for seed in range(3):
        llama = LlamaGraph(flash=flash)
        devices = [AsyncDevice("gpu0", seconds=1e-3), AsyncDevice("gpu1", seconds=1e-3), cpu()]
        rng = np.random.default_rng(seed)
        pins = {t: int(rng.integers(3)) for t in llama.graph.nodes if _is_free(t)}
        got = _run(llama, devices, pins, n_copies=n_copies, overlap=overlap, sizes=(5, 1, 4))
        _same(got, expected[:3])


# -- the devices of this package -------------------------------------------------------------------


def _real(names: str) -> list[Backend]:
    backends: list[Backend] = []
    for name in names.split(","):
        if name == "blas":
            pytest.importorskip("scipy_openblas32", reason="needs scipy-openblas32")
            backends.append(make_backend("blas", min_batch=1, n_threads=1))
        else:
            backends.append(make_backend(name, **({"n_threads": 1} if name == "cpu" else {})))
    return backends


@pytest.mark.parametrize("n_copies", [pytest.param(1, marks=long), 4])
@pytest.mark.parametrize("layers", [0, pytest.param(1, marks=long), 2, 3])
@pytest.mark.parametrize("names", ["reference,cpu", "blas,cpu", "reference,blas,cpu"])
def test_real_devices(
    names: str, layers: int, n_copies: int, flash: bool, expected: list[NDArray[Any]]
) -> None:
    """The first layers' weights and cache in the first device's memory (or, where that is the
    host's, pinned to it where it takes them); kernels differ, so do the last bits."""
    llama = LlamaGraph(flash=flash)
    devices = _real(names)
    pins = {}
    if devices[0].buffer_type.is_host:
        pins = {
            t: 0
            for t, il in llama.layer_of().items()
            if il < layers and _is_free(t) and devices[0].supports_op(t)
        }
    else:
        for il in range(layers):
            llama.place(il, devices[0].buffer_type)
    got = _run(llama, devices, pins, n_copies=n_copies, overlap=n_copies > 1)
    _same(got, expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=long) for seed in range(2, 8))])
@pytest.mark.parametrize("names", ["reference,cpu", "reference,blas,cpu"])
def test_real_devices_anywhere(
    names: str, seed: int, flash: bool, expected: list[NDArray[Any]]
) -> None:
    """Each node on a device drawn by lot among those that take it."""
    llama = LlamaGraph(flash=flash)
    devices = _real(names)
    rng = np.random.default_rng(seed)
    pins = {}
    for t in llama.graph.nodes:
        takers = [i for i, d in enumerate(devices) if d.supports_op(t)]
        if _is_free(t):
            pins[t] = int(rng.choice(takers))
    got = _run(llama, devices, pins, n_copies=1 + seed % 2, overlap=True)
    _same(got, expected, rtol=1e-3, atol=2e-4)


def test_batches_overlap() -> None:
    """The second device works on a batch while the first has the next: it waits for that."""
    llama = LlamaGraph()
    first, second = Device("gpu0"), Device("gpu1")
    devices = [first, second, cpu()]
    for il in range(3):
        llama.place(il, devices[il >= 1].buffer_type)
    # the host only looks embeddings up, else its last split would hold up its next batch
    pins = {t: 1 for t, il in llama.layer_of().items() if il == 3 and _is_free(t)}
    _run(llama, devices, pins, sizes=BATCHES[:1])
    splits, others = first.begun, second.begun  # of a batch
    first.begun = second.begun = 0

    def until_the_next_batch_is_there() -> None:
        batch = -(-second.begun // others)
        eventually(lambda: batch == len(BATCHES) or first.begun > splits * batch)

    second.during = until_the_next_batch_is_there
    _run(llama, devices, pins, n_copies=4, overlap=True)
    assert (first.begun, second.begun) == (splits * len(BATCHES), others * len(BATCHES))
