"""When OpenCL and WebGPU devices did what: spans of kernels and copies, on the host's clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from weft import graph as g
from weft.backends.base import QueueSpan, RecordsQueue
from weft.backends.kernels import KernelBackend
from weft.backends.webgpu import devices, driver
from weft.backends.webgpu.devices import TIMES
from weft.backends.webgpu.driver import Driver
from weft.execute import Profile, Session


@pytest.fixture(scope="module", params=[opencl, webgpu])
def device(request: pytest.FixtureRequest) -> KernelBackend:
    made: KernelBackend = request.param()
    return made


def session(device: KernelBackend) -> Session:
    """x, its root on the device, a product on the cpu, a norm of that on the device."""
    x = weft.input("x", (weft.Sym("n", 1, 64), 64))
    root = g.sqrt(x).named("root")
    product = g.mul_mat(weft.constant(np.ones((64, 64), np.float32), "w"), root).named("product")
    norm = g.rms_norm(product, 1e-5).named("norm")
    graph = weft.Graph(norm.as_output("y"))
    at = {"root": 0, "product": 1, "y": 0}
    pins = {node: at[node.name] for node in graph.nodes}
    return Session(weft.compile(graph, [device, "cpu"], policy="plan", assign=pins))


def test_spans_of_kernels_and_copies(device: KernelBackend) -> None:
    running = session(device)
    x = np.ones((8, 64), np.float32)
    want = running.run({"x": x})["y"]
    assert isinstance(device, RecordsQueue)
    device.record_queue(True)
    try:
        start = perf_counter_ns()
        got = running.run({"x": x})["y"]
        end = perf_counter_ns()
        spans = device.recorded()()
        assert device.recorded()() == []
    finally:
        device.record_queue(False)
    np.testing.assert_array_equal(got, want)
    kinds = [(s.kind, s.step, s.nbytes) for s in spans]
    nbytes = x.nbytes
    assert kinds == [
        ("to", -1, nbytes), ("kernel", 0, 0), ("from", -1, nbytes),
        ("to", -1, nbytes), ("kernel", 0, 0), ("from", -1, nbytes),
    ]  # fmt: skip
    assert all(s.name for s in spans if s.kind == "kernel")
    assert all(s.begin <= s.end for s in spans)
    # in order, and between the clock's readings as far as the clocks are known to agree
    assert all(a.begin <= b.begin for a, b in pairwise(spans))
    assert start - 1_000_000 < spans[0].begin and spans[-1].end < end + 1_000_000


def test_nothing_is_noted_or_kept_when_off(device: KernelBackend) -> None:
    running = session(device)
    running.run({"x": np.ones((2, 64), np.float32)})
    assert device.driver.record is None and device.recorded()() == []
    device.record_queue(True)
    device.record_queue(True)  # calls nest
    device.record_queue(False)
    assert device.driver.record is not None
    device.record_queue(False)
    assert device.driver.record is None


def test_opencl_keeps_times_in_a_queue_of_its_own() -> None:
    device = opencl()
    plain = device.driver.queue
    device.record_queue(True)
    assert device.driver.queue is not plain
    device.record_queue(False)
    assert device.driver.queue is plain


def test_profile_and_trace(device: KernelBackend, tmp_path: Path) -> None:
    running = session(device)
    inputs = {"x": np.ones((8, 64), np.float32)}
    want = running.run(inputs)["y"]
    with running.profile(Profile(name="test")) as profile:
        for _ in range(3):
            np.testing.assert_array_equal(running.run(inputs)["y"], want)
    lines = {(line.op, line.device): line for line in profile.lines}
    on_device = [lines["SQRT", device.name], lines["RMS_NORM", device.name]]
    assert all(line.calls == 3 and line.seconds > 0 and line.busy == 0 for line in on_device)
    assert on_device[0].nbytes == 3 * 2 * 8 * 64 * 4 and on_device[0].flops > 0
    copies = [line for line in profile.lines if line.op == "copies"]
    assert sum(line.nbytes for line in copies) == 3 * 3 * 8 * 64 * 4  # x, too
    assert all(line.seconds > 0 for line in copies)
    assert profile.overlap < 1e-3 and profile.outside >= 0
    assert all(line.as_json(profile.peaks)["of_roof"] == 0 for line in on_device)
    assert profile.as_json()["overlap"] == profile.overlap
    assert profile.trace is not None
    profile.save_trace(tmp_path / "trace.json")
    events = profile.trace.as_json()["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    by_row: dict[str, list[str]] = {}
    for e in events:
        if e["ph"] == "X":
            by_row.setdefault(rows[e["tid"]], []).append(e["name"])
    name = device.name
    assert set(by_row[f"{name} kernels"]) == {"SQRT root", "RMS_NORM y"}
    moved = by_row[f"{name} copies"]
    assert moved.count("to device: x") == moved.count("from device: outputs") == 3
    assert moved.count("from device: root") == moved.count("to device: product") == 3
    assert {"thread 0", "host", "host copies", "runs"} <= set(by_row)
    kernel = next(e for e in events if e["name"] == "SQRT root")
    assert kernel["args"]["kernel"] and kernel["args"]["bytes"] == 2 * 8 * 64 * 4


def test_several_kernels_of_a_step_are_one_call(device: KernelBackend) -> None:
    """Bytes and operations count once, however many kernels do the work."""
    program, profile = session(device).program, Profile()
    spans = [QueueSpan("kernel", "part", 0, 0, begin, begin + 10) for begin in (0, 20)]
    profile.add_queued(program, 0, {"n": 8}, 0, 5, spans)
    (line,) = profile.lines
    assert (line.op, line.calls) == ("SQRT", 1) and line.seconds == pytest.approx(20e-9)
    assert line.nbytes == 2 * 8 * 64 * 4


# ---- WebGPU --------------------------------------------------------------------------------------


def copied(of: Driver, times: int) -> list[QueueSpan]:
    """The spans of copies within the device, and of a write and a read."""
    a, b = of.create(1 << 20), of.create(1 << 20)
    of.record_times(True)
    try:
        of.write(a, 0, np.ones(1 << 20, np.uint8))
        for _ in range(times):
            of.copy(b, 0, a, 0, 1 << 20)
        assert of.read_bytes(b, 0, 1 << 20).all()
        assert of.record is not None
        spans: list[QueueSpan] = of.record.take()()
        return spans
    finally:
        of.record_times(False)


def test_times_of_copies() -> None:
    """In several blocks of timestamps; spans are within the host's times."""
    of = webgpu().driver
    start = perf_counter_ns()
    spans = copied(of, 200)
    end = perf_counter_ns()
    assert [s.kind for s in spans] == ["to", *["within"] * 200, "from"]
    assert all(s.nbytes == 1 << 20 for s in spans)
    assert all(a.begin <= b.begin for a, b in pairwise(spans))
    assert start - 1_000_000 < spans[0].begin and spans[-1].end < end + 1_000_000
    assert 0 < sum(s.end - s.begin for s in spans) < end - start


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_device_without_timestamps(monkeypatch: pytest.MonkeyPatch, is_listed: bool) -> None:
    """It runs, and the profile says why there are no times of its kernels: the device has none, or
    the library does not tell the length of a tick."""
    found = webgpu().device
    why = "this version of wgpu does not tell the length of a tick"
    if is_listed:
        monkeypatch.setattr(driver, "period", lambda queue: 0.0)
    else:
        why = f"{found.name} has no feature {TIMES}"
        features = tuple(name for name in found.features if name != TIMES)
        monkeypatch.setattr(devices, "find_devices", lambda: (replace(found, features=features),))
    device = webgpu()
    running = session(device)
    x = np.ones((2, 64), np.float32)
    with running.profile(Profile(name="test")) as profile:
        running.run({"x": x})
    assert device.driver.record is None
    assert f"webgpu tells no times of kernels ({why})" in str(profile)
    assert list(profile.as_json()["untimed"]) == ["webgpu"]
