"""Kernels in WGSL: the exam of backends, and models beside OpenCL's kernels and the cpu's."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import weft
from tests.backend_suite import GpuGroupSizesSuite, RemainingFormats, SlowCompilerSuite, _alone
from tests.backends.webgpu_device import limited, webgpu
from tests.shares import share
from weft import graph as g
from weft.backends import Backend, make_backend
from weft.backends import webgpu as webgpu_backends
from weft.backends.cases import Case, all_cases
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.kernels.ops.bytes import CODES
from weft.backends.webgpu import devices, library
from weft.errors import DeviceError, OutOfMemoryError
from weft.execute.trial import run_case
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


class TestWebGPU(SlowCompilerSuite):
    @classmethod
    def make(cls) -> Backend:
        return webgpu()


@pytest.mark.part("devices")
class TestWebGPURemainingFormats(RemainingFormats, TestWebGPU):
    """The formats that the class above leaves out."""


@pytest.mark.part("devices")
class TestWebGPUWithTiles(GpuGroupSizesSuite):
    """Weights in planes, too."""

    @classmethod
    def make(cls) -> Backend:
        return webgpu(limits=cls.LIMITS, planes=True, activations="f32")


@pytest.mark.part("devices")
class TestWebGPUWithBytes(GpuGroupSizesSuite):
    """Activations as bytes beside weights in planes."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        return case.op in ("MUL_MAT", "MUL_MAT_ID") and case.format in CODES

    @classmethod
    def make(cls) -> Backend:
        return webgpu(limits=cls.LIMITS, planes=True, activations="native")


def test_bytes_that_are_no_words() -> None:
    """Writes and copies may begin and end within a word; what is beside them stays."""
    memory = webgpu().memory_type.allocate(64)
    want = np.zeros(64, np.uint8)
    rng = np.random.default_rng(3)
    for start, n in ((1, 5), (8, 3), (13, 1), (17, 30), (62, 2), (8, 8), (45, 6), (30, 3)):
        data = rng.integers(1, 256, n, np.uint8)
        memory.write(start, data)
        want[start : start + n] = data
    for to, at, n in ((33, 2, 7), (8, 4, 20), (4, 12, 16)):  # the last two overlap
        assert memory.copy_from(to, memory, at, n)
        want[to : to + n] = want[at : at + n].copy()
    np.testing.assert_array_equal(memory.read(0, 64), want)
    np.testing.assert_array_equal(memory.read(5, 9), want[5:14])


def test_its_other_name() -> None:
    webgpu()
    assert make_backend("gpu").name == "webgpu"


def test_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weft devices` says what a device has, and why one is unusable; `--json` has it as data."""
    found = webgpu().device
    limits = found.limits | {"max-storage-buffers-per-shader-stage": 7}
    less = replace(found, number=1, features=(), limits=limits, vendor="Maker")
    monkeypatch.setattr(webgpu_backends, "find_devices", lambda: (found, less))
    info, poor = webgpu_backends.describe()
    assert (info.name, info.available, info.why_not) == ("webgpu:0", True, "")
    assert f"{found.name}, {found.vendor}, {found.interface}" in info.description
    own = replace(found, kind="GPU")
    assert "; host memory, " in info.description and "; memory not told, " in own.description
    data = json.loads(json.dumps(info.details))
    assert (
        data["memory"] is None and data["in_host"] and data["limits"]["buffer"] == found.max_buffer
    )
    assert data["features"]["int64"] == found.has_wide
    assert (poor.name, poor.available) == ("webgpu:1", False)
    assert "7 buffers" in poor.why_not and "no features" in poor.description
    assert "Maker" in poor.description and not any(poor.details["features"].values())


def test_makers() -> None:
    assert devices._vendor({"vendor_id": 0x1002, "vendor": "radv"}) == "AMD"
    assert devices._vendor({"vendor_id": 0x4711, "vendor": "odd"}) == "odd"
    assert devices._vendor({"vendor_id": 0x4711, "vendor": ""}) == "maker 0x4711"


def test_without_integers_of_64_bits() -> None:
    """Such integers are refused unless they are indices."""
    device = webgpu()
    device.has_wide = False
    x, i = weft.input("x", (4, 8), "i64"), weft.input("i", (3,), "i32")
    rows, f = weft.input("r", (4, 8), "f32"), weft.input("n", (4, 8), "i32")
    assert device.supports_op(g.get_rows(rows, i)) and device.supports_op(g.reshape(x, 8, 4))
    for node in (g.convert(x, "f32"), g.convert(f, "i64")):
        assert "integers of 64 bits" in device.supports_op(node).why
    why = {case.op for case in all_cases() if "64 bits" in device.supports_op(case.node()).why}
    assert why == {
        "ARG_REDUCE", "BINARY", "CONVERT", "COUNT_EQUAL", "CUMULATE", "CUMULATE_ARG", "INDEX_PUT",
        "MAP", "PAD_ND", "REDUCE", "SCATTER", "SEARCH_SORTED", "SORT_INDICES",
    }  # fmt: skip


def test_memory_has_an_end() -> None:
    backend = webgpu(memory=1 << 20)
    assert backend.memory_limit() == 1 << 20
    with pytest.raises(OutOfMemoryError, match="place fewer layers"):
        backend.memory_type.allocate(2 << 20)
    largest = webgpu().memory_type.max_size
    assert largest is not None
    with pytest.raises(OutOfMemoryError, match="makes blocks of at most"):
        webgpu(memory=1 << 50).memory_type.allocate(largest + 1)


def test_a_device_that_has_less_than_was_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's refusal names the bytes and what to do, and nothing counts as taken."""
    import wgpu

    backend = webgpu()

    def full(**options: Any) -> None:
        raise wgpu.GPUOutOfMemoryError("Out of Memory Error")

    monkeypatch.setattr(backend.driver._device, "create_buffer", full)
    with pytest.raises(OutOfMemoryError, match=r"webgpu: a buffer of 4096 bytes .*fewer layers"):
        backend.memory_type.allocate(4096)
    assert backend.memory_type.in_use == 0


@pytest.mark.parametrize("n_gpu_layers", share("devices", (0, 1, 99), (1,)))
def test_a_model(n_gpu_layers: int) -> None:
    """The logits of the demo are the cpu's with activations as they are."""
    device = webgpu(activations="f32")
    model, tokens = Model.open(DEMO), [1, 5, 9, 300, 7, 7, 20]
    options = {"activations": "f32", "n_threads": 1}
    want = Context(model, 32, **options).decode(tokens, outputs="all")
    context = Context(model, 32, devices=[device, "cpu"], n_gpu_layers=n_gpu_layers, **options)
    np.testing.assert_allclose(context.decode(tokens, outputs="all"), want, atol=2e-3, rtol=2e-3)
    np.testing.assert_allclose(
        context.decode([8], outputs="all")[0],
        Context(model, 32, **options).decode([*tokens, 8])[0], atol=2e-3, rtol=2e-3,
    )  # fmt: skip


def test_a_model_with_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the demo, whose weights are in planes, are those of the cpu, which makes the
    same bytes of activations, but for the order of sums; a code on a border may differ by it."""
    limits = {"tile": 32, "lanes": 8, "rows": 2, "columns": 4, "wide": False}
    device = webgpu(planes=True, activations="native", limits=limits)
    model, tokens = Model.open(DEMO), [1, 5, 9, 300, 7, 7, 20, 11, 12, 13]
    want = Context(model, 32, n_threads=1).decode(tokens, outputs="all")
    context = Context(model, 32, devices=[device, "cpu"], n_gpu_layers=99, n_threads=1)
    assert context.plan.needs()[0].repacked
    names = Counter[str]()
    run = KernelExecutable.run

    def seen(self: KernelExecutable, values: Any) -> None:
        run(self, values)
        names.update(name for step in self._steps for name in step.names)

    monkeypatch.setattr(KernelExecutable, "run", seen)
    got = context.decode(tokens, outputs="all")
    # norms and gated units make bytes at once; what attention gives has a launch of its own
    assert names["quantize"] == names["glu_bytes"] == 5
    spread = want.std()
    assert np.abs(got - want).max() < 0.02 * spread
    np.testing.assert_array_equal(got.argmax(1), want.argmax(1))
    one = context.decode([8], outputs="all")[0]
    other = Context(model, 32, n_threads=1).decode([*tokens, 8])[0]
    assert np.abs(one - other).max() < 0.02 * spread


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["wgpu", "pycparser"])
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for package in ("wgpu", "pycparser"):
        monkeypatch.setitem(sys.modules, package, None if package == missing else sys)
    library.library.cache_clear()
    with pytest.raises(DeviceError, match=rf"package '{missing}'.*'weft\[gpu\]'"):
        library.library()
    library.library.cache_clear()


def test_kernels_of_more_buffers_than_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ops are refused, and others run."""
    limited(monkeypatch, max_storage_buffers_per_shader_stage=8)
    device, refused, ran = webgpu(), set(), set()
    lacking = {c.op for c in all_cases() if "buffers" in device.supports_op(c.node()).why}
    assert lacking == {"INDEX_PUT", "RWKV_WKV7", "SSM_SCAN"}
    some = ("INDEX_PUT", "ROPE_SET_ROWS", "RWKV_WKV6", "RWKV_WKV7", "SSM_SCAN")
    for case in all_cases():
        if case.op in some and case.op not in refused | ran:
            support = device.supports_op(case.node())
            if "buffers" in support.why:
                refused.add(case.op)
            elif support:
                run_case(case, _alone(device))
                ran.add(case.op)
    assert refused == {"INDEX_PUT", "RWKV_WKV7", "SSM_SCAN"}
    assert refused | ran == set(some)
    limited(monkeypatch, max_storage_buffers_per_shader_stage=7)
    with pytest.raises(DeviceError, match=r"no webgpu device .*its kernels read 7 buffers"):
        make_backend("webgpu")


def test_buffers_end_where_32_bits_do() -> None:
    found = webgpu().device
    large = {"max-storage-buffer-binding-size": 1 << 32, "max-buffer-size": 1 << 40}
    assert replace(found, limits=large).max_buffer == (1 << 31) - 16


def test_the_largest_buffer_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads and writes the last element of a block as large as the device makes."""
    limited(monkeypatch, max_buffer_size=4 << 20, max_storage_buffer_binding_size=1 << 20)
    backend = webgpu()
    driver = backend.driver
    n = backend.memory_type.max_size
    assert n == 4 << 20
    buffer = driver.create(n)
    driver.write(buffer, n - 3, np.array([1, 2, 3], np.uint8))
    assert driver.read_bytes(buffer, n - 4, 4).tolist() == [0, 1, 2, 3]


def peak() -> int:
    """The most bytes of memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_writes_are_not_kept_until_work_starts() -> None:
    """Loading a model takes the memory of a few writes on the host."""
    driver = webgpu().driver
    buffer, data = driver.create(32 << 20), np.ones(32 << 20, np.uint8)
    before = peak()
    for _ in range(12):
        driver.write(buffer, 0, data)
    driver.wait()
    assert peak() - before < 200 << 20


def roots(device: Backend) -> weft.Session:
    y = g.sqrt(weft.input("x", (weft.Sym("n", 1, 64), 8))).as_output("y")
    pins = {y: device}
    return weft.Session(weft.compile(weft.Graph(y), [device, "cpu"], policy="plan", assign=pins))


def test_several_threads() -> None:
    device, wrong = webgpu(), []

    def work(k: int) -> None:
        session = roots(device)
        for n in range(1, 30):
            x = np.full((n, 8), float(k), np.float32)
            if not np.array_equal(session.run({"x": x})["y"], np.sqrt(x)):
                wrong.append((k, n))

    threads = [Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the device; a fallback goes on with the same tokens."""
    options = {"n_threads": 1, "activations": "f32", "n_gpu_layers": 99}
    model, device = Model.open(DEMO), webgpu()
    want = Context(model, 32, devices=["cpu"], n_threads=1, activations="f32")
    alone = Context(model, 32, devices=[device, "cpu"], **options)
    safe = Context(model, 32, devices=[device, "cpu"], fallback=["cpu"], **options)
    for context in (want, alone, safe):
        context.decode([1, 5, 9])
    device.driver._device.destroy()
    with pytest.raises(DeviceError, match=r"split 1 on webgpu .*lost"):
        alone.decode([4])
    with pytest.warns(RuntimeWarning, match="going on with cpu: split 1 on webgpu"):
        got = safe.decode([4])
    np.testing.assert_allclose(got, want.decode([4]), atol=2e-3)
    assert safe.fell_back


def test_a_forked_process_is_told() -> None:
    driver = webgpu().driver
    driver.wait()
    child = os.fork()
    if not child:
        signal.alarm(5)
        try:
            driver.wait()
        except DeviceError as error:
            os._exit("spawn" not in str(error))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
