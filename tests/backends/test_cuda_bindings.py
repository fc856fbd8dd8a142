"""What weft asks of NVIDIA's driver, through the real cuda-bindings, held against a driver that is
not NVIDIA's but as strict as its documentation (fake_cuda)."""

from __future__ import annotations

import gc
import struct
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.fake_cuda.load import Fake, with_fake
from tests.cuda_shim import compile_shim
from tests.cuda_shim.library import runtime_path
from weft import graph as g
from weft.backends import known_backends, make_backend
from weft.backends.cuda import CudaBackend, bindings
from weft.backends.cuda.calls import COPIES, KERNELS, CudaError
from weft.compiler import compile
from weft.execute import Scheduler, Session

N = 64
_TWICE = """
extern "C" __global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""


def cuda(name: str, **options: Any) -> CudaBackend:
    backend = make_backend(name, **options)
    assert isinstance(backend, CudaBackend)
    return backend


def use_twice() -> None:
    """All kernel files are `_TWICE`."""

    def image(self: bindings.Builds, file: str, defines: tuple[str, ...]) -> bytes:
        return f"checks {runtime_path()} {compile_shim(_TWICE).path}".encode() + b"\0"

    bindings.Builds.image = image  # type: ignore[method-assign]


def floats(*values: float) -> Any:
    return np.array(values, np.float32).view(np.uint8)


# ---- what is missing -----------------------------------------------------------------------------


@with_fake(devices=0)
def test_no_gpu(fake: Fake) -> None:
    (info,) = [i for i in known_backends() if i.name.startswith("cuda")]
    assert info.why_not == (
        "the NVIDIA driver does not start (CUDA_ERROR_NO_DEVICE); is there a GPU?"
    )


@with_fake(version=12080)
def test_an_old_driver(fake: Fake) -> None:
    with pytest.raises(weft.DeviceError, match=r"knows CUDA 12\.8 and weft needs 13\.0; install a"):
        make_backend("cuda")


@with_fake(capability=70)
def test_an_old_gpu(fake: Fake) -> None:
    infos = [i for i in known_backends() if i.name.startswith("cuda")]
    assert [i.why_not for i in infos] == ["it has compute capability 7.0; kernels need 7.5"] * 2
    with pytest.raises(weft.DeviceError, match=r"cuda:1 \(Fake 1\) cannot be used: .*kernels need"):
        make_backend("cuda:1")


# ---- calls ---------------------------------------------------------------------------------------


@with_fake()
def test_memory(fake: Fake) -> None:
    infos = [i for i in known_backends() if i.name.startswith("cuda")]
    assert [i.name for i in infos] == ["cuda:0", "cuda:1"] and all(i.available for i in infos)
    assert infos[1].description == "Fake 1 (1.0 GiB; sm_80, 4 units)"
    backend = cuda("cuda:1")
    assert backend.memory_limit() == (1024 - 100 - 256) << 20  # the context's, and what is kept
    memory = backend.buffer_type.allocate(3 << 20)
    assert backend.memory_limit() == (1024 - 100 - 256 - 3) << 20
    assert not memory.read(0, 3 << 20).any()
    data = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8)
    sent = data.copy()
    memory.write(0, sent)
    sent[:] = 0  # the caller may
    for start in range(0, 7000, 64):
        memory.write(start, data[start : start + 64])
    np.testing.assert_array_equal(memory.read(0, 3 << 20), data)
    assert memory.copy_from(0, memory, 1 << 20, 1000)
    np.testing.assert_array_equal(memory.read(0, 1000), data[1 << 20 :][:1000])
    with pytest.raises(weft.OutOfMemoryError, match="bytes left, but 2147483648 were requested"):
        backend.buffer_type.allocate(1 << 31)
    with pytest.raises(weft.OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        backend.driver.create(1 << 31)
    del memory
    gc.collect()
    assert backend.memory_limit() == (1024 - 100 - 256) << 20


@with_fake()
def test_kernels_graphs_and_times(fake: Fake) -> None:
    use_twice()
    backend = cuda("cuda:0")
    driver = backend.driver
    x, y = driver.create(4 * N), driver.create(4 * N)
    kernel = driver.kernel("twice.cu", (), "twice")

    def prepared(source: Any, to: Any, n: int) -> Any:
        kernel.bind([source, to, struct.pack("<i", n)])
        return driver.prepared(kernel, (1,), (128,), None)

    def value(buffer: Any) -> Any:
        return driver.read(buffer, 0, 4 * N).view(np.float32)

    launch = prepared(x, y, N)
    driver.write(x, 0, floats(*range(N)))
    driver.launch(*launch)
    np.testing.assert_array_equal(value(y), 2 * np.arange(N))
    graph = driver.graph([launch, prepared(y, x, N)])
    driver.start(graph)
    driver.start(graph)
    np.testing.assert_array_equal(value(x), 16 * np.arange(N))
    graph.change(1, *prepared(y, x, 1))
    driver.write(x, 0, floats(*[1] * N))
    driver.start(graph)
    assert value(x)[0] == 4 and (value(x)[1:] == 1).all()
    kernel.shared = 60 << 10
    driver.launch(*driver.prepared(kernel, (1,), (128,), None))  # more than 48 KiB, once allowed
    driver.record_times(True)
    driver.launch(*launch)
    begin, end = driver.launch(*launch)
    driver.record.kernel(0, "twice", (begin, end))
    driver.write(x, 0, floats(1))
    spans = driver.record.take()()
    driver.record_times(False)
    assert [s.kind for s in spans] == ["kernel", "to"] and spans[0].begin <= spans[0].end
    with pytest.raises(weft.DeviceError, match="CUDA_ERROR_NOT_FOUND"):
        driver.kernel("twice.cu", (), "thrice")
    assert fake.complaint == "no kernel thrice"
    fake.forget()
    del graph, launch, begin, end
    gc.collect()


@with_fake()
def test_a_fault_loses_one_device(fake: Fake) -> None:
    use_twice()
    drivers = [cuda("cuda:0").driver, cuda("cuda:1").driver]
    buffers = [driver.create(4 * N) for driver in drivers]
    drivers[1].write(buffers[1], 0, floats(3))
    kernel = drivers[0].kernel("twice.cu", (), "twice")
    kernel.bind([buffers[0], buffers[0], struct.pack("<i", N)])
    fake.break_at("twice")
    drivers[0].launch(*drivers[0].prepared(kernel, (1,), (64,), None))
    with pytest.raises(weft.DeviceError, match=r"^cuda:0: .*CUDA_ERROR_ILLEGAL_ADDRESS"):
        drivers[0].wait()
    with pytest.raises(weft.DeviceError, match=r"the device is lost .*ILLEGAL_ADDRESS"):
        drivers[0].read(buffers[0], 0, 4)
    assert drivers[1].read(buffers[1], 0, 4).view(np.float32)[0] == 3
    buffers.clear()
    gc.collect()


@with_fake()
def test_other_libraries_may_change_the_context(fake: Fake) -> None:
    from cuda.bindings import driver

    backend = cuda("cuda:1")
    memory = backend.buffer_type.allocate(64)
    other = driver.cuDevicePrimaryCtxRetain(0)[1]
    for _ in range(2):
        driver.cuCtxSetCurrent(other)
        memory.write(0, np.full(64, 7, np.uint8))
        driver.cuCtxSetCurrent(other)
        assert (memory.read(0, 64) == 7).all()


@with_fake()
def test_the_fake_driver_refuses(fake: Fake) -> None:
    """What it must find: each call here is wrong."""
    calls = [cuda(name).driver.calls for name in ("cuda:0", "cuda:1")]
    here, there = [c.allocate(256) for c in calls]
    pinned = calls[0].pinned(256)
    wrong: list[tuple[Any, str]] = [
        (lambda: calls[0].send(there, pinned), "a copy to no memory of the device"),
        (lambda: calls[0].send(here + 1, pinned), "a copy to no memory of the device"),
        (lambda: calls[0].send(here, np.zeros(9, np.uint8)), "memory that is not pinned"),
        (lambda: calls[0].fetch(here, np.zeros(9, np.uint8)), "memory that is not pinned"),
        (lambda: calls[0].copy(here, there, 8), "outside of the device's memory"),
        (lambda: calls[0].copy_from(calls[1], here, here, 8), "between devices outside"),
        (lambda: calls[0].clear(here + 2, 4), "a memset outside"),
        (lambda: calls[0].free(there), "free of no block"),
    ]
    for call, why in wrong:
        with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
            call()
        assert why in fake.complaint
        fake.forget()


# ---- two lanes -----------------------------------------------------------------------------------


@with_fake(late=1)
def test_only_events_order_lanes(fake: Fake) -> None:
    """Work outside of queues is in order with all; that of queues is not."""
    driver = cuda("cuda:0").driver
    buffer, other = driver.create(4), driver.create(4)
    for seed in range(20):
        fake.set(seed=seed)
        driver.write(buffer, 0, floats(1))
        with driver.in_queue(COPIES):
            driver.write(buffer, 0, floats(2))
            driver.marker()
        driver.copy(other, 0, buffer, 0, 4)
        with driver.in_queue(COPIES):
            driver.write(buffer, 0, floats(3))
            driver.marker()
        driver.write(buffer, 0, floats(4))
        assert driver.read(other, 0, 4).view(np.float32)[0] == 2
        assert driver.read(buffer, 0, 4).view(np.float32)[0] == 4
    fake.trace()
    seen = set()
    for seed in range(20):
        fake.set(seed=seed)
        for lane, n in ((KERNELS, 64), (COPIES, 128)):
            with driver.in_queue(lane):
                driver.write(driver.scratch(lane, n), 0, np.zeros(n, np.uint8))
        driver.wait()
        seen.add(tuple(line for line in fake.trace() if " to " in line))
    assert seen == {("0.0 to 64", "0.1 to 128"), ("0.1 to 128", "0.0 to 64")}


def chain(devices: list[CudaBackend], n_copies: int) -> tuple[Scheduler, weft.Graph, list[Any]]:
    """x -> on each device in turn, twice."""
    scheduler = Scheduler([*devices, "cpu"], n_copies=n_copies)
    x = weft.input("x", (weft.Sym("n", 1, 8), N))
    nodes = [x]
    for i in range(4):
        nodes.append(g.scale(nodes[-1], 1.5 + i).named(f"node {i}"))
    return scheduler, weft.Graph(nodes[-1].as_output("y")), nodes[1:]


@with_fake()
def test_batches_over_two_gpus(fake: Fake) -> None:
    """Several batches under way, in whatever order the streams run: each gets its own results."""
    run_batches(fake, "peer")


@with_fake(peers=0)
def test_batches_over_gpus_that_do_not_reach_each_other(fake: Fake) -> None:
    run_batches(fake, "staged")


def run_batches(fake: Fake, way: str) -> None:
    rng = np.random.default_rng(0)
    overlaps = 0
    for seed in range(3):
        fake.set(seed=seed, late=seed % 2)
        devices = [cuda("cuda:0"), cuda("cuda:1")]
        for n_copies in (1, 2, 4):
            scheduler, graph, nodes = chain(devices, n_copies)
            batches = [
                rng.standard_normal((rng.integers(1, 9), N)).astype(np.float32) for _ in range(12)
            ]
            runs = []
            fake.trace()
            for batch in batches:
                scheduler.reset()
                for i, node in enumerate(nodes):
                    scheduler.set_tensor_backend(node, devices[i % 2])
                runs.append(scheduler.compute_async(graph, {"x": batch}))
            scheduler.synchronize()
            for run, batch in zip(runs, batches, strict=True):
                want = batch * np.float32(np.prod([1.5 + i for i in range(4)]))
                np.testing.assert_allclose(run.outputs["y"].reshape(want.shape), want, rtol=1e-5)
            trace = fake.trace()
            assert {line.split()[1] for line in trace} & {"peer", "staged"} == {way}
            overlaps += early(trace)
            scheduler.close()
    assert overlaps


def early(trace: list[str]) -> int:
    """The inputs that went up before the first GPU had computed its two parts of earlier
    batches."""
    sent = computed = n = 0
    for line in trace:
        if line.startswith("0.1 to"):
            n += computed < 2 * sent
            sent += 1
        computed += line.startswith(("0.0 kernel", "0.0 graph"))
    return n


@with_fake(integrated=1, pageable=1)
def test_weights_in_place(fake: Fake) -> None:
    """A GPU that works in the host's memory reads weights where they are."""
    weights = weft.constant(np.arange(N * N, dtype=np.float32).reshape(N, N), "w")
    x = weft.input("x", (N,))
    graph = weft.Graph(g.add(weights, x).as_output("y"))
    for copy in (False, True):
        backend = cuda("cuda:0", copy_weights=copy)
        backend.kind = "CPU"
        fake.trace()
        session = Session(compile(graph, [backend]))
        got = session.run({"x": np.ones(N, np.float32)})["y"]
        np.testing.assert_array_equal(got.reshape(N, N), np.arange(N * N).reshape(N, N) + 1)
        sent = [int(line.split()[2]) for line in fake.trace() if " to " in line]
        assert (4 * N * N in sent) == copy
