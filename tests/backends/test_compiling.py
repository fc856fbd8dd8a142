"""Kernels while they are compiled, and who is told of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

import weft
from tests.backend_suite import _alone
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from weft import graph as g
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.compiling import Compiling, _workers
from weft.compile_watch import watched
from weft.errors import DeviceError


class Told:
    """What a watcher is told; None stands for `stop`."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, int] | None] = []

    def __call__(self, device: str, ready: int, asked: int) -> None:
        self.all.append((device, ready, asked))

    def stop(self) -> None:
        self.all.append(None)


def test_each_kernel_is_compiled_once() -> None:
    compiling, made = Compiling("gpu"), []
    first = compiling.asked("a", lambda: made.append("a") or "A")
    assert compiling.asked("a", lambda: made.append("other")) is first
    other = compiling.asked("b", lambda: "B")
    told = Told()
    with watched(told):
        assert [first.get(), first.get(), other.get()] == ["A", "A", "B"]
        compiling.all_there()
        compiling.all_there()
    assert made == ["a"] and compiling.n_asked == 2
    assert told.all == [("gpu", n, 2) for n in (0, 1, 1, 2)] + [None, None]
    other = compiling.asked("c", lambda: "C")
    assert other.get() == "C" and len(told.all) == 6  # nobody watches


def test_a_kernel_that_does_not_build_fails_each_time() -> None:
    def fails() -> None:
        raise DeviceError("no such type")

    compiling = Compiling("gpu")
    kernel = compiling.asked("a", fails, early=True)
    told = Told()
    for _ in range(2):
        with watched(told), pytest.raises(DeviceError, match="no such type"):
            kernel.get()
    assert told.all == [("gpu", 0, 1), None, None] * 2  # `stop` by the failure and by `watched`
    after = compiling.asked("b", lambda: "B", early=True)  # the thread goes on
    assert after.get() == "B"


def test_a_thread_compiles_what_is_expected() -> None:
    """Whoever needs it meanwhile waits for the thread."""
    begun, go_on, made, results = Event(), Event(), [], []

    def make() -> str:
        made.append("A")
        begun.set()
        assert go_on.wait(60)
        return "A"

    kernel = Compiling("gpu").asked("a", make, early=True)
    assert begun.wait(60)
    waiting = Thread(target=lambda: results.append(kernel.get()))
    waiting.start()
    waiting.join(0.05)
    assert results == []
    go_on.set()
    waiting.join(60)
    assert results == made == ["A"]


@pytest.mark.parametrize("make", [opencl, webgpu])
def test_the_host_is_told_of_kernels_of_a_device(
    make: Callable[[], KernelBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first wait to the first results; a later run waits for none."""
    monkeypatch.setattr(_workers, "add", lambda _: None)  # no thread is there first
    device = make()
    n = weft.Sym("n", 1, 8)
    x = weft.input("x", (n, 8))
    graph = weft.Graph(g.sqrt(g.add(x, x)).as_output("y"))
    told = Told()
    with watched(told):
        session = weft.Session(weft.compile(graph, [_alone(device)]))
        session.run({"x": np.ones((2, 8), np.float32)})
        assert told.all[-1] is None
        calls = [call for call in told.all if call is not None]
        assert {name for name, _, _ in calls} == {device.name}
        assert all(0 <= ready <= asked for _, ready, asked in calls)
        assert calls[-1][1] == max(ready for _, ready, _ in calls) >= 1
        assert calls[0][2] >= 2  # all are counted before the first is compiled
        told.all.clear()
        session.run({"x": np.ones((2, 8), np.float32)})
        assert not told.all
