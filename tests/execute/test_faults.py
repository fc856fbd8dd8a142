"""Devices that fail: what the error names, and that the driver works again afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.execute.stub_devices import AsyncDevice, Faulty, cpu
from weft import graph as g
from weft.execute import Scheduler

W = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32) / 6
X = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)


def _graph() -> tuple[weft.Graph, dict[weft.Tensor, int]]:
    """host, faulty, host: the middle product is on the faulty device."""
    x = weft.input("x", (weft.Sym("n", 1, 8), 32))
    first = g.mul_mat(weft.constant(W[0], "w0"), x).named("first")
    middle = g.mul_mat(weft.constant(W[1], "w1"), first).named("middle")
    last = g.mul_mat(weft.constant(W[2], "w2"), middle).as_output("last")
    return weft.Graph(last), {first: 1, middle: 0, last: 1}


def _want() -> NDArray[np.float32]:
    y: NDArray[np.float32] = X @ W[0].T @ W[1].T @ W[2].T
    return y


def _pin(scheduler: Scheduler, pins: dict[weft.Tensor, int]) -> None:
    for tensor, device in pins.items():
        scheduler.set_tensor_backend(tensor, device)


# what fails -> what the message must say
FAILURES = {
    "allocate": r"split 1 on faulty \(.*middle.*\).*no memory",
    "lower": r"split 1 on faulty \(node middle\).*lower failed",
    "run": r"split 1 on faulty \(node middle\).*run failed",
    "write": r"split 1 on faulty \(node middle\): copy of (w1|first).*write failed",
    "read": r"split 2 on host \(node last\): copy of middle.*read failed",
    "lost": r"split 1 on faulty \(.*middle.*\).*failed",
}


@pytest.mark.parametrize("memory", ["best", "ggml"])
@pytest.mark.parametrize("how", ["compute", "compute_async"])
@pytest.mark.parametrize("fail", FAILURES)
def test_scheduler_fails_by_name_and_recovers(fail: str, how: str, memory: Any) -> None:
    device = Faulty()
    graph, pins = _graph()
    scheduler = Scheduler([device, cpu()], n_copies=2, memory=memory)

    def run() -> NDArray[Any]:
        scheduler.reset()
        _pin(scheduler, pins)
        if how == "compute":
            assert scheduler.compute(graph, {"x": X})
            return scheduler.get("last")
        started = scheduler.compute_async(graph, {"x": X})
        return started.outputs["last"]

    # from the start
    device.fail = fail
    with pytest.raises(weft.DeviceError, match=FAILURES[fail]):
        run()
    device.fail = ""
    np.testing.assert_allclose(run(), _want(), rtol=1e-4, atol=1e-5)
    # in the middle of a working life; memory is there already, and programs are lowered
    device.fail = fail
    if fail not in ("allocate", "lower"):
        with pytest.raises(weft.DeviceError, match=r"split \d on (faulty|host)"):
            run()
    if fail in ("run", "read", "write"):
        with pytest.raises(weft.DeviceError, match=r"call reset\(\) after a failure; .*split"):
            scheduler.compute(graph, {"x": X})
    device.fail = ""
    np.testing.assert_allclose(run(), _want(), rtol=1e-4, atol=1e-5)
    scheduler.close()


def test_out_of_memory_is_told_apart() -> None:
    """A device without memory is a DeviceError; OutOfMemoryError is one of them."""
    assert issubclass(weft.OutOfMemoryError, weft.DeviceError)


def test_a_graph_that_grows_can_fail_and_the_smaller_one_still_runs() -> None:
    device = Faulty()
    scheduler = Scheduler([device, cpu()])
    graph, pins = _graph()
    _pin(scheduler, pins)
    scheduler.compute(graph, {"x": X})
    x = weft.input("x", (512, 32))
    big = g.silu(g.silu(x)).as_output("last")
    scheduler.reset()
    scheduler.set_tensor_backend(big, 0)
    device.fail = "allocate"
    with pytest.raises(weft.DeviceError, match="faulty"):
        scheduler.alloc(weft.Graph(big))
    device.fail = ""
    scheduler.reset()
    _pin(scheduler, pins)
    scheduler.compute(graph, {"x": X})
    np.testing.assert_allclose(scheduler.get("last"), _want(), rtol=1e-4, atol=1e-5)


def test_work_after_a_failure_is_left_undone() -> None:
    """A batch in flight behind a failing one does not run on half computed values."""
    device = Faulty()
    graph, pins = _graph()
    with Scheduler([device, cpu()], n_copies=4) as scheduler:
        runs = []
        device.fail, device.after = "run", 2
        for _ in range(2):
            scheduler.reset()
            _pin(scheduler, pins)
            runs.append(scheduler.compute_async(graph, {"x": X}))
            runs[-1].wait()
        scheduler.reset()
        _pin(scheduler, pins)
        runs.append(scheduler.compute_async(graph, {"x": X}))
        with pytest.raises(weft.DeviceError, match="split 1 on faulty"):
            runs[2].wait()
        with pytest.raises(weft.DeviceError, match="split 1 on faulty"):
            scheduler.synchronize()
        for run in runs[:2]:
            np.testing.assert_allclose(run._outputs["last"], _want(), rtol=1e-4, atol=1e-5)
        assert "last" not in runs[2]._outputs
        device.fail = ""
        scheduler.reset()
        _pin(scheduler, pins)
        outputs = scheduler.compute_async(graph, {"x": X}).outputs
        np.testing.assert_allclose(outputs["last"], _want(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fail", FAILURES)
def test_session_fails_by_name_and_recovers(fail: str) -> None:
    device = Faulty()
    graph, pins = _graph()
    program = weft.compile(graph, [device, cpu()], assign=pins)
    device.fail = fail
    with pytest.raises(weft.DeviceError, match=FAILURES[fail]):
        weft.Session(program).run({"x": X})
    device.fail = ""
    session = weft.Session(program)
    want = session.run({"x": X})["last"]
    np.testing.assert_allclose(want, _want(), rtol=1e-4, atol=1e-5)
    if fail in ("allocate", "lower"):
        return
    device.fail = fail
    with pytest.raises(weft.DeviceError, match=r"split \d on (faulty|host)"):
        session.run({"x": X})
    device.fail = ""
    np.testing.assert_array_equal(session.run({"x": X})["last"], want)
    session.reset()
    np.testing.assert_array_equal(session.run({"x": X})["last"], want)


@pytest.mark.parametrize("how", ["compute", "compute_async"])
def test_hardware_that_fails_later(how: str) -> None:
    """A device with a queue of its own tells of a failure when it is waited for."""
    device = AsyncDevice("gpu")
    graph, pins = _graph()
    with Scheduler([device, cpu()]) as scheduler:
        _pin(scheduler, pins)
        device.fail = True
        with pytest.raises(weft.DeviceError, match=r"gpu: .*hardware fault"):
            started = getattr(scheduler, how)(graph, {"x": X})
            scheduler.synchronize()
        del started
        device.fail = False
        scheduler.reset()
        _pin(scheduler, pins)
        assert scheduler.compute(graph, {"x": X})
        np.testing.assert_allclose(scheduler.get("last"), _want(), rtol=1e-4, atol=1e-5)


def test_interrupts_pass_and_the_scheduler_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Faulty()
    graph, pins = _graph()
    scheduler = Scheduler([device, cpu()])
    _pin(scheduler, pins)

    def interrupted(what: str) -> None:
        if what == "run":
            raise KeyboardInterrupt

    monkeypatch.setattr(device, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scheduler.compute(graph, {"x": X})
    monkeypatch.undo()
    scheduler.reset()
    _pin(scheduler, pins)
    assert scheduler.compute(graph, {"x": X})
    np.testing.assert_allclose(scheduler.get("last"), _want(), rtol=1e-4, atol=1e-5)
