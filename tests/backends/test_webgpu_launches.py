"""What a run costs the host: submissions, read-backs, argument buffers, bind groups, pipelines."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.webgpu_device import webgpu
from weft import graph as g
from weft.backends.webgpu import WebGPUBackend
from weft.backends.webgpu.arguments import WINDOW, Arguments
from weft.backends.webgpu.launches import Direct, Public, encoding
from weft.errors import DeviceError
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"

# ---- arguments -----------------------------------------------------------------------------------


def arguments() -> Arguments:
    return Arguments(bytearray)


def sent(a: Arguments) -> list[tuple[int, int]]:
    """Offsets and numbers of bytes of the writes, which are made."""
    found = []
    for buffer, offset, words in a.changed():
        buffer[offset : offset + words.nbytes] = words.tobytes()
        found.append((offset, words.nbytes))
    return found


def test_the_arguments_of_many_launches_are_sent_at_once() -> None:
    a = arguments()
    slots = [a.slot(bytes([i]) * 300) for i in range(1, 4)]
    assert [s.offset for s in slots] == [0, 512, 1024]
    assert sent(a) == [(0, 1024 + 300)] and sent(a) == []
    for i, slot in enumerate(slots):
        assert slot.buffer[slot.offset : slot.offset + 300] == bytes([i + 1]) * 300
    other = a.slot(b"abcd")
    assert sent(a) == [(other.offset, 4)]


def test_a_slot_is_used_again_once_its_work_has_started() -> None:
    """A launch may be enqueued when the last reference to it goes."""
    a = arguments()
    first, second = a.slot(b"abcd"), a.slot(b"efgh")
    offset = first.offset
    del first
    assert a.slot(b"ijkl").offset not in (offset, second.offset)
    a.started()
    assert a.slot(b"mnop").offset == offset


def test_slots_are_used_again_by_others_of_their_size() -> None:
    a = arguments()
    slots = [a.slot(bytes(256)) for _ in range(4096)]  # a whole buffer
    assert len({id(s.buffer) for s in slots}) == 1
    further = a.slot(bytes(512))
    assert further.buffer is not slots[0].buffer
    slots[9] = further
    a.started()
    larger = a.slot(bytes(300))
    assert (larger.buffer, larger.offset) == (further.buffer, 512)
    again = a.slot(bytes(200))
    assert again.buffer is slots[0].buffer and again.offset == 9 * 256


def test_arguments_have_a_largest_size() -> None:
    a = arguments()
    assert a.slot(bytes(WINDOW)).offset == 0
    with pytest.raises(
        DeviceError, match=rf"{WINDOW + 4} bytes of arguments; {WINDOW} are allowed"
    ):
        a.slot(bytes(WINDOW + 4))


# ---- runs ----------------------------------------------------------------------------------------


class Counted:
    """Counts calls of wgpu."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from wgpu.backends.wgpu_native import GPUBuffer, GPUDevice, GPUQueue

        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        for cls, name in (
            (GPUQueue, "submit"), (GPUQueue, "write_buffer"), (GPUBuffer, "map_async"),
            (GPUDevice, "create_bind_group"), (GPUDevice, "create_buffer"),
        ):  # fmt: skip
            monkeypatch.setattr(cls, name, self._counting(name, getattr(cls, name)))

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            self.calls.setdefault(name, []).append(args)
            return function(*args, **options)

        return counting

    def take(self) -> dict[str, int]:
        """The number of calls since the last time."""
        found = {name: len(calls) for name, calls in self.calls.items()}
        self.calls.clear()
        return found


def session(device: WebGPUBackend) -> weft.Session:
    """Four kernels, of which two depend on `n`."""
    n = weft.Sym("n", 1, 64)
    x, y = weft.input("x", (n, 8)), weft.input("y", (4, 8))
    graph = weft.Graph(g.sqrt(g.sqr(x)).as_output("rows"), g.sqrt(g.sqr(y)).as_output("fixed"))
    pins = {node: 0 for node in graph.nodes}
    return weft.Session(weft.compile(graph, [device, "cpu"], policy="plan", assign=pins))


def run(of: weft.Session, n: int) -> None:
    x = np.arange(8 * n, dtype=np.float32).reshape(n, 8) - 9
    y = np.full((4, 8), -n, np.float32)
    got = of.run({"x": x, "y": y})
    np.testing.assert_allclose(got["rows"], abs(x), rtol=1e-6)
    np.testing.assert_allclose(got["fixed"], abs(y), rtol=1e-6)


def test_a_changed_size_rewrites_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither buffers nor bind groups are made for it."""
    of = session(webgpu())
    for n in (3, 5):
        run(of, n)
    counted = Counted(monkeypatch)
    run(of, 6)
    found = counted.take()
    assert "create_bind_group" not in found and "create_buffer" not in found
    assert found["submit"] == 1 + found["map_async"]
    writes = found["write_buffer"]
    run(of, 6)
    assert counted.take()["write_buffer"] == writes - 1  # without the arguments


def test_a_dropped_session_leaves_no_bind_groups() -> None:
    device = webgpu()
    of = session(device)
    run(of, 3)
    bound = device.driver._binder._bound
    assert len(bound)
    del of
    gc.collect()
    assert not len(bound)


@pytest.fixture
def without_handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another version of wgpu."""
    native = pytest.importorskip("wgpu.backends.wgpu_native")
    monkeypatch.delattr(native, "lib")
    yield


def test_without_handles_the_public_functions_are_called(without_handles: None) -> None:
    assert isinstance(encoding(), Public)
    of = session(webgpu())
    for n in (3, 5, 5):
        run(of, n)


def test_kernels_compile_before_the_first_run() -> None:
    """Those of the smallest and the largest sizes are known when a program is lowered."""
    device = webgpu()
    of = session(device)
    known = device.driver.compiling.n_asked
    assert known
    run(of, 3)
    assert device.driver.compiling.n_asked == known


def test_a_kernel_that_does_not_build() -> None:
    """The error names it, each time."""
    driver = webgpu().driver
    kernel = driver.kernel("unary.cl", (), "no_such_kernel")
    prepared = driver.prepared(kernel, (1,), (1,), None)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"kernel no_such_kernel of unary\.cl does not build"):
            driver.launch(*prepared)


def test_a_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One submission computes it, one reads the logits and the fault. What is encoded by the
    library's handles is what its public functions encode."""
    device = webgpu()
    model, logits = Model.open(DEMO), {}
    assert isinstance(device.driver._encoding, Direct)
    for way in (device.driver._encoding, Public()):
        device.driver._encoding = way
        context = Context(
            model, 32, devices=[device, "cpu"], n_gpu_layers=99, n_threads=1, activations="f32"
        )
        rows = [context.decode([token]) for token in (1, 5)]
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            rows.append(context.decode([9]))
            sizes = [args[0].size for args in counted.calls["map_async"]]
            found = counted.take()
        assert (found["submit"], found["map_async"]) == (2, 1)
        assert sizes[0] < 4 * rows[-1].size + 8192
        logits[way] = np.stack(rows)
    a, b = logits.values()
    np.testing.assert_array_equal(a, b)


def test_looking_for_devices_prints_nothing() -> None:
    """Without a desktop either, of which Mesa's layer asks for the GPU."""
    webgpu()
    code = "from weft.backends.webgpu.devices import find_devices; find_devices()"
    env = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "NODEVICE_SELECT")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_parts_of_words_do_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are written between them, and one over them."""
    memory, want = webgpu().memory_type.allocate(2048), np.zeros(2048, np.uint8)
    counted = Counted(monkeypatch)
    rng = np.random.default_rng(5)
    for start, n in ((1, 2), (1021, 7), (1040, 4), (3, 3), (1300, 5), (1304, 4), (2043, 5)):
        data = rng.integers(1, 256, n, np.uint8)
        memory.write(start, data)
        want[start : start + n] = data
    assert "map_async" not in counted.take()
    np.testing.assert_array_equal(memory.read(0, 2048), want)
