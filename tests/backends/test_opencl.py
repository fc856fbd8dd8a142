"""OpenCL devices: finding them, memory, launches, kernels that do not build, devices that fail."""

from __future__ import annotations

import builtins
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.backends.opencl as opencl_backends
from tests.backends.opencl_device import opencl
from tests.execute.stub_devices import Device, Type
from weft import graph as g
from weft.backends import known_backends, make_backend
from weft.backends.kernels import assembly
from weft.backends.kernels.compiling import Compiling
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.kernels.ops import find_family
from weft.backends.kernels.support import supports
from weft.backends.memory import DirectMemory
from weft.backends.opencl import OpenCLBackend, builds, devices, probe
from weft.compiler import compile
from weft.execute import Scheduler, Session

N = 64


@pytest.fixture(scope="module")
def device() -> OpenCLBackend:
    return opencl()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for what is kept between runs."""
    for module in (probe, builds):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    return tmp_path


def alone(backend: OpenCLBackend) -> OpenCLBackend:
    """Makes the device the only one of a list."""
    backend.kind = "CPU"
    return backend


def doubled(rows: int = 8) -> weft.Graph:
    x = weft.input("x", (weft.Sym("n", 1, rows), N))
    return weft.Graph(g.add(x, x).named("sum").as_output("y"))


# ---- finding devices -----------------------------------------------------------------------------


def test_devices_are_listed(device: OpenCLBackend) -> None:
    infos = [info for info in known_backends() if info.name.startswith("opencl:")]
    assert any(info.available for info in infos)
    for info in infos:
        assert info.available == (info.why_not == "")
        assert "GiB" in info.description and "units" in info.description


def test_a_number_that_there_is_not(device: OpenCLBackend) -> None:
    for name in ("opencl:99", "opencl:x", "opencl:²"):
        with pytest.raises(weft.DeviceError, match=rf"no device {name}; .* has opencl:0 \("):
            make_backend(name)
    assert make_backend("opencl:0").name == "opencl:0"


def test_unknown_options(device: OpenCLBackend) -> None:
    with pytest.raises(weft.ArgumentError, match="no option 'n_threads'; it has activations,"):
        make_backend("opencl", n_threads=1)
    with pytest.raises(weft.ArgumentError, match=r"limits of .* no option"):
        make_backend("opencl", limits={"speed": 9})
    with pytest.raises(weft.DeviceError, match="limits are 32; give sizes by name"):
        make_backend("opencl", limits=32)
    with pytest.raises(weft.DeviceError, match="limit lanes is 3; it must be a power of two"):
        make_backend("opencl", limits={"lanes": 3})


def test_without_pyopencl(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "pyopencl":
            raise ModuleNotFoundError("No module named 'pyopencl'", name=name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    devices.find_devices.cache_clear()
    try:
        with pytest.raises(weft.DeviceError, match=r"'pyopencl'.*pip install 'weft\[opencl\]'"):
            make_backend("opencl")
        (info,) = [i for i in known_backends() if i.name.startswith("opencl")]
        assert not info.available and "weft[opencl]" in info.why_not
    finally:
        devices.find_devices.cache_clear()


def test_a_device_that_its_driver_cannot_describe(
    device: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed with the reason; the others work."""
    cl = pytest.importorskip("pyopencl")

    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise cl.Error("clGetDeviceInfo failed: INVALID_VALUE")

    class Platform:
        name = "Two"

        def get_devices(self) -> list[Any]:
            return [Odd(), device.device.handle]

    class Library:
        def get_platforms(self) -> list[Platform]:
            return [Platform()]

        def __getattr__(self, name: str) -> Any:
            return getattr(cl, name)

    monkeypatch.setattr(devices, "library", Library)
    monkeypatch.setattr(devices, "why_unusable", lambda p, d, key: "")
    monkeypatch.setattr(opencl_backends, "find_devices", devices.find_devices.__wrapped__)
    odd, good = opencl_backends.describe()
    assert not odd.available and "INVALID_VALUE" in odd.why_not
    assert (good.name, good.available) == ("opencl:1", True)


def test_rules_need_no_device() -> None:
    assert supports(doubled().outputs["y"], "opencl")
    refused = supports(g.quantize(weft.input("x", (4, 256)), "q8_K"), "opencl")
    assert not refused
    assert refused.why == (
        "QUANTIZE on opencl: products make bytes of activations, or read them as they are"
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("raise SystemExit('clang: error: unknown target CPU generic')", "error: unknown target"),
        ("import os; os.abort()", r"ended the process \(signal 6\)"),
        ("import time; time.sleep(60)", "did not finish"),
    ],
)
def test_a_compiler_that_is_broken(
    device: OpenCLBackend, monkeypatch: pytest.MonkeyPatch, cache: Path, script: str, why: str
) -> None:
    """It is tried in another process, and the answer is kept."""
    monkeypatch.setattr(probe, "_SCRIPT", script)
    monkeypatch.setattr(probe, "_SECONDS", 1)
    with pytest.raises(weft.DeviceError, match=f"cannot be used.*{why}"):
        make_backend("opencl:0")
    with pytest.raises(weft.DeviceError, match=f"no opencl device can be used.*{why}"):
        make_backend("opencl")
    assert not any(i.available for i in known_backends() if i.name.startswith("opencl"))
    monkeypatch.setattr(probe, "_SCRIPT", "")
    with pytest.raises(weft.DeviceError, match=why):
        make_backend("opencl:0")
    (cache / "probed.json").write_text("damaged")
    assert make_backend("opencl:0").name == "opencl:0"


# ---- memory --------------------------------------------------------------------------------------


def test_memory_says_what_is_left() -> None:
    memory = opencl().memory_type
    memory.capacity = 1000
    first = memory.allocate(600)
    with pytest.raises(weft.OutOfMemoryError, match="400 of 1000 bytes left, but 500 were"):
        memory.allocate(500)
    del first
    assert memory.in_use == 0 and memory.allocate(1000).nbytes == 1000


def test_bytes_go_within_the_device(device: OpenCLBackend) -> None:
    a, b = (device.buffer_type.allocate(100) for _ in range(2))
    a.write(0, np.arange(100, dtype=np.uint8))
    assert isinstance(b, DirectMemory)
    assert b.copy_from(10, a, 50, 20)
    assert b.read(0, 40).tolist() == [0] * 10 + [*range(50, 70)] + [0] * 10
    other = opencl().buffer_type.allocate(100)
    assert not b.copy_from(0, other, 0, 10)
    with pytest.raises(weft.DeviceError, match="access to bytes 90"):
        b.copy_from(0, a, 90, 20)


def test_what_is_sent_may_change_at_once(device: OpenCLBackend) -> None:
    """Copies go through staging memory, in more pieces than there is room for at a time."""
    data = np.random.default_rng(0).integers(0, 256, (20 << 20) + 5, np.uint8)
    block = device.buffer_type.allocate(data.nbytes + 3)
    sent = data.copy()
    block.write(3, sent)
    sent[:] = 0
    assert (block.read(3, data.nbytes) == data).all() and not block.read(0, 3).any()


def test_a_plan_that_exceeds_a_block_gets_several(device: OpenCLBackend) -> None:
    backend = alone(opencl())
    backend.memory_type.max_size = 3 * 8 * N * 4
    x = weft.input("x", (8, N))
    layers = [g.silu(g.scale(x, float(i))).named(f"l{i}") for i in range(6)]
    y = layers[0]
    for layer in layers[1:]:
        y = g.add(y, layer)
    graph = weft.Graph(*(t.as_output(t.name) for t in layers), y.as_output("y"))
    program = compile(graph, [backend])
    arenas = [b for b in program.buffers if b.kind == "arena" and b.size]
    assert len(arenas) > 1 and all(b.size <= backend.memory_type.max_size for b in arenas)
    data = np.random.default_rng(0).standard_normal((8, N)).astype(np.float32)
    want = sum(i * data / (1 + np.exp(-i * data)) for i in range(6))
    np.testing.assert_allclose(Session(program).run({"x": data})["y"], want, rtol=1e-4, atol=1e-5)


def test_weights_are_used_where_they_are() -> None:
    """A device that works in the host's memory takes constant weights without a copy."""
    backend = alone(opencl())
    if not backend.memory_type.shares:
        pytest.skip(f"{backend.device.name} has memory of its own")
    w = np.eye(N, dtype=np.float32)
    x = weft.input("x", (2, N))
    graph = weft.Graph(g.mul_mat(weft.constant(w, "w"), x).as_output("y"))
    session = Session(compile(graph, [backend]))
    assert backend.memory_type.in_use < w.nbytes
    data = np.random.default_rng(0).standard_normal((2, N)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": data})["y"], data, rtol=1e-6)


# ---- launches ------------------------------------------------------------------------------------


def test_only_what_depends_on_a_symbol_is_made_again() -> None:
    backend = alone(opencl())
    n, m = weft.Sym("n", 1, 8), weft.Sym("m", 1, 8)
    x, y = weft.input("x", (n, N)), weft.input("y", (m, N))
    z = weft.input("z", (3, N))
    nodes = [g.silu(t).as_output(name) for t, name in ((x, "a"), (y, "b"), (z, "c"))]
    session = Session(compile(weft.Graph(*nodes), [backend]))
    (executable,) = session.executables
    assert isinstance(executable, KernelExecutable)

    def launches() -> list[Any]:
        return [step.ready for step in executable._steps]

    executable.run({"n": 2, "m": 3})
    first = launches()
    executable.run({"n": 2, "m": 3})
    assert all(a is b for a, b in zip(first, launches(), strict=True))
    executable.run({"n": 4, "m": 3})
    changed = [a is not b for a, b in zip(first, launches(), strict=True)]
    assert sum(changed) == 1
    assert executable.n_launches == 3


def test_an_index_out_of_range_is_an_error(device: OpenCLBackend) -> None:
    backend = alone(opencl())
    rows = weft.input("rows", (3,), "i32")
    table = weft.constant(np.ones((5, N), np.float32), "table")
    program = compile(weft.Graph(g.get_rows(table, rows).named("picked").as_output("y")), [backend])
    session = Session(program)
    for bad in (5, -1, 2**31 - 1):
        with pytest.raises(
            weft.DeviceError, match=rf"GET_ROWS\(table, rows\) -> .*: index {bad} is outside 0..4"
        ):
            session.run({"rows": np.array([0, bad, 1], np.int32)})
    assert (session.run({"rows": np.array([0, 4, 1], np.int32)})["y"] == 1).all()


# ---- kernels -------------------------------------------------------------------------------------


def test_every_kernel_file_is_known() -> None:
    """Each file of the folder is used by an op or to repack weights, or a header of one that is."""
    folder = Path(assembly.__file__).parent / "sources"
    text = "".join(p.read_text() for p in (folder.parent / "ops").glob("*.py"))
    text += (folder.parent / "planes.py").read_text()
    for path in folder.glob("*.cl"):
        assert f'"{path.name}"' in text, path.name
    headers = {name for names in assembly._HEADERS.values() for name in names} | {"common.h"}
    assert {p.name for p in folder.glob("*.h")} == headers
    assert find_family("MUL_MAT") is not None and find_family("NONE") is None


def test_programs_are_kept_on_disk(cache: Path) -> None:
    for compiled, loaded in ((1, 0), (0, 1)):
        backend = alone(opencl())
        session = Session(compile(doubled(), [backend]))
        x = np.ones((2, N), np.float32)
        assert (session.run({"x": x})["y"] == 2).all()
        assert (backend.driver.programs.compiled, backend.driver.programs.loaded) == (
            compiled,
            loaded,
        )
    (binary,) = cache.glob("*.bin")
    binary.write_bytes(b"damaged")
    backend = alone(opencl())
    Session(compile(doubled(), [backend])).run({"x": x})
    assert backend.driver.programs.compiled == 1


@pytest.mark.parametrize(("log", "said"), [
    ("norm.cl:12:5: error: no such type\n", "norm.cl line 12: no such type"),
    ("clBuildProgram failed: BUILD_PROGRAM_FAILURE - x\n\nBuild on <Device>:\n\n"
     "Error(s) while linking:\nCannot find symbol f\n(options: -DX)", "Error(s) while linking:; "
     "Cannot find symbol f"),
    ("clBuildProgram failed: OUT_OF_HOST_MEMORY", "clBuildProgram failed: OUT_OF_HOST_MEMORY"),
])  # fmt: skip
def test_what_a_compiler_says(log: str, said: str) -> None:
    assert builds._first_error(log) == said


def test_a_kernel_that_does_not_build(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, line and device are named, with the node that needs it; others still run."""
    real = assembly.source_of
    backend = alone(opencl())

    def broken(file: str) -> str:
        return real(file) + ("\n#line 77\nnonsense here;\n" if file == "unary.cl" else "")

    monkeypatch.setattr(builds, "source_of", broken)
    x = weft.input("x", (2, N))
    program = compile(weft.Graph(g.silu(x).as_output("y")), [backend])
    with pytest.raises(weft.DeviceError) as caught:
        Session(program).run({"x": np.ones((2, N), np.float32)})
    message = str(caught.value)
    assert "unary.cl line 77: " in message and backend.device.name in message
    assert "split 0 on opencl (node y)" in message
    assert (
        Session(compile(doubled(), [backend])).run({"x": np.ones((2, N), np.float32)})["y"] == 2
    ).all()


# ---- faults --------------------------------------------------------------------------------------

FAULTS = {
    "create": "OUT_OF_RESOURCES|buffer",
    "build": "binary.cl",
    "write": "copy of .* to the device",
    "launch": r"ADD\(.*\) -> y",
    "wait": "waiting",
    "read": "copy of .* from the device",
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults_of_the_driver(what: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a DeviceError; another session goes on, and so does this one when it is over."""
    backend = opencl()
    cl = pytest.importorskip("pyopencl")
    host = make_backend("cpu", n_threads=1)
    x = np.ones((2, N), np.float32)
    other_device = alone(opencl())
    other = Session(compile(doubled(), [other_device]))
    other.run({"x": x})

    class Broken:
        """pyopencl whose calls of one kind fail."""

        def __getattr__(self, name: str) -> Any:
            if name in calls:
                return fail
            return getattr(cl, name)

    def fail(*args: Any, **keywords: Any) -> Any:
        raise cl.RuntimeError("clSomething failed: OUT_OF_RESOURCES")

    calls = {
        "create": ("Buffer",),
        "build": (),
        "write": ("enqueue_copy",),
        "launch": ("enqueue_nd_range_kernel",),
        "wait": (),
        "read": ("enqueue_copy",),
    }[what]
    graph = doubled()
    pins = {node: backend for node in graph.nodes}
    program = compile(graph, [backend, host], assign=pins)
    session = Session(program)
    session.run({"x": x})
    with monkeypatch.context() as patch:
        if what == "build":
            patch.setattr(backend.driver, "compiling", Compiling(backend.name))
            patch.setattr(builds, "library", lambda: _Compiler(cl))
        elif what == "wait":
            patch.setattr(backend.driver, "queue", _Queue(backend.driver.queue, cl))
        else:
            patch.setattr(backend.driver, "_cl", Broken())
        with pytest.raises(weft.DeviceError, match=FAULTS[what]):
            if what in ("create", "build"):
                Session(program).run({"x": x})
            elif what == "wait":
                backend.make_queue().synchronize()
            elif what == "read":
                session.output("y", {"n": 2})
            else:
                session.run({"x": x})
        assert (other.run({"x": x})["y"] == 2).all()
    assert (session.run({"x": x})["y"] == 2).all()


class _Compiler:
    def __init__(self, cl: Any) -> None:
        self._cl = cl

    def Program(self, *args: Any) -> Any:
        raise self._cl.RuntimeError("clBuildProgram failed: BUILD_PROGRAM_FAILURE")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cl, name)


class _Queue:
    def __init__(self, inner: Any, cl: Any) -> None:
        self._inner, self._cl = inner, cl

    def finish(self) -> None:
        raise self._cl.RuntimeError("clFinish failed: OUT_OF_RESOURCES")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_thousand_sessions_with_weights_of_their_own() -> None:
    """The weights' array stays; what was sent of it goes with each session."""
    backend = alone(opencl(copy_weights=True))
    w = weft.constant(np.ones((N, N), np.float32), "w")
    x = weft.input("x", (2, N))
    program = compile(weft.Graph(g.mul_mat(w, x).as_output("y")), [backend])
    Session(program)
    left = backend.memory_type.in_use
    for i in range(1000):
        session = Session(program)
        assert backend.memory_type.in_use > left + 4 * N * N
        if i % 200 == 0:
            assert (session.run({"x": np.ones((2, N), np.float32)})["y"] == N).all()
        del session
        assert backend.memory_type.in_use == left


# ---- overlap -------------------------------------------------------------------------------------


def test_batches_overlap(device: OpenCLBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two copies of each crossing tensor, the device ends batch 2 before the host has begun
    its part of batch 1 in earnest: that part waits for it."""
    reached = threading.Event()
    runs: list[int] = []
    real = KernelExecutable.run

    def run(self: KernelExecutable, values: Any) -> None:
        real(self, values)
        device.driver.wait()
        runs.append(1)
        if len(runs) == 2:
            reached.set()

    monkeypatch.setattr(KernelExecutable, "run", run)
    overlapped: list[bool] = []

    class Host(Device):
        def lower(self, program: Any, split: int, memories: Any) -> Any:
            inner = super().lower(program, split, memories)

            class Waiting:
                def run(self, values: Any) -> None:
                    overlapped.append(reached.wait(30))
                    inner.run(values)

            return Waiting()

    host = Host("host", "CPU", Type("host", is_host=True))
    x = weft.input("x", (4, N))
    first = g.silu(x).named("first")
    last = g.scale(first, 2.0).as_output("y")
    with Scheduler([device, host], n_copies=2) as scheduler:
        results = []
        data = [np.full((4, N), i, np.float32) for i in (1, 2)]
        graph = weft.Graph(last)
        for batch in data:
            scheduler.reset()
            scheduler.set_tensor_backend(first, 0)
            scheduler.set_tensor_backend(last, 1)
            results.append(scheduler.compute_async(graph, {"x": batch}))
        for batch, result in zip(data, results, strict=True):
            want = 2 * batch / (1 + np.exp(-batch))
            np.testing.assert_allclose(result.outputs["y"], want, rtol=1e-5)
    assert overlapped == [True, True]
