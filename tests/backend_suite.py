"""An exam that any backend can be put through: every op case, memory, copies, events, splits,
faults.

    class TestMine(BackendSuite):
        @classmethod
        def make(cls) -> Backend:
            return make_backend("mine")

A backend passes when what it takes is right, what it refuses has a sentence, and what fails is a
DeviceError after which it works again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import graph as g
from weft.backends import Backend, Memory, make_backend
from weft.backends.cases import Case, all_cases, some_cases
from weft.compiler import compile
from weft.execute import Scheduler, Session
from weft.execute.trial import disagreement, run_case
from weft.graph.op import OPS
from weft.graph.tensor import Buffer

__all__ = ["BackendSuite", "Failing", "GpuGroupSizesSuite", "RemainingFormats", "SlowCompilerSuite"]

Array = NDArray[Any]
N = 64
OPS_TRIED = sorted({case.op for case in all_cases()}, key=list(OPS).index)

_right: dict[str, Array | str] = {}


def _expected(case: Case) -> Array | str:
    """What NumPy computes, once for all backends; or why it does not."""
    if case.name not in _right:
        try:
            _right[case.name] = run_case(case, make_backend("reference"))
        except weft.WeftError as error:
            _right[case.name] = str(error)
    return _right[case.name]


class BackendSuite:
    """The questions. `make` gives a fresh object for the device."""

    @classmethod
    def make(cls) -> Backend:
        """The device that is examined."""
        raise NotImplementedError

    @classmethod
    def wants(cls, case: Case) -> bool:
        """Whether an op case is tried; all are unless a subclass says otherwise."""
        return True

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Backend:
        """One object for all questions that leave it as it was."""
        return cls.make()

    # ---- ops -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("op", OPS_TRIED)
    def test_op(self, device: Backend, op: str) -> None:
        """Every case of an op that the device takes gives what NumPy gives; a no is a sentence."""
        wrong, taken = [], 0
        alone = _alone(device)
        for case in (c for c in all_cases() if c.op == op and self.wants(c)):
            support = device.supports_op(case.node())
            if not support:
                assert len(support.why.split()) >= 3, f"{case.name}: refused with {support.why!r}"
                continue
            taken += 1
            want = _expected(case)
            got = run_case(case, alone)
            if not isinstance(want, str):
                how = disagreement(got, want, case.node().dtype, case.limit)
                if how:
                    wrong.append(f"{case.name}: {how}")
        assert not wrong, "\n".join(wrong)
        if not taken:
            pytest.skip(f"{device.name} takes no case of {op}")

    def test_views_are_no_work(self, device: Backend) -> None:
        """Views and leaves are taken by every device."""
        x = weft.input("x", (4, N))
        for node in (x, g.reshape(x, N // 2, 8), g.transpose(x), g.view_1d(x, 8, 16)):
            assert device.supports_op(node), node.op

    # ---- memory ----------------------------------------------------------------------------------

    def test_buffer_type(self, device: Backend) -> None:
        """Alignment is a power of two, and a tensor gets at least its bytes."""
        memory = device.buffer_type
        assert memory.alignment > 0 and memory.alignment & (memory.alignment - 1) == 0
        assert memory.max_size is None or memory.max_size > 0
        for t in ("f32", "q4_0", "q6_K"):
            leaf = weft.input("x", (3, 256), t)
            assert memory.alloc_size(leaf) >= leaf.max_bytes
        assert device.supports_buffer_type(memory)

    def test_memory_is_zeroed_written_and_read(self, device: Backend) -> None:
        """Bytes at any place, of any number, also none."""
        block = device.buffer_type.allocate(5000)
        assert block.nbytes >= 5000 and not block.read(0, 5000).any()
        data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
        block.write(0, data)
        for offset, n in ((0, 5000), (1, 1), (4097, 903), (7, 0), (5000, 0)):
            np.testing.assert_array_equal(block.read(offset, n), data[offset : offset + n])
        block.write(777, data[:3])
        want = data.copy()
        want[777:780] = data[:3]
        data[:] = 0  # what was given may change once write() is back
        np.testing.assert_array_equal(block.read(0, 5000), want)
        host = block.host()
        assert (host is not None) == device.buffer_type.is_host
        if host is not None:
            np.testing.assert_array_equal(host[:5000], want)

    def test_big_copies(self, device: Backend) -> None:
        """More than any staging memory takes at once."""
        data = np.random.default_rng(1).integers(0, 256, 9_000_001, dtype=np.uint8)
        block = device.buffer_type.allocate(data.nbytes + 3)
        block.write(3, data)
        np.testing.assert_array_equal(block.read(3, data.nbytes), data)

    def test_access_outside_a_block(self, device: Backend) -> None:
        block = device.buffer_type.allocate(64)
        for offset, n in ((-1, 4), (61, 4), (65, 1), (block.nbytes + 1, 0)):
            with pytest.raises(weft.DeviceError):
                block.read(offset, n)
        with pytest.raises(weft.DeviceError):
            block.write(62, np.zeros(4, np.uint8))

    def test_too_much_memory(self, device: Backend) -> None:
        """More than any device has is an error with the size, and costs nothing."""
        with pytest.raises(weft.OutOfMemoryError, match=str(1 << 60)):
            device.buffer_type.allocate(1 << 60)
        assert not device.buffer_type.allocate(64).read(0, 64).any()

    # ---- queue and events ------------------------------------------------------------------------

    def test_events(self, device: Backend) -> None:
        """Work is done in order; events are reached after it; events of others are waited for."""
        queue = device.make_queue()
        if queue is None:
            pytest.skip(f"{device.name} has no queue of its own: its calls block")
        block = device.buffer_type.allocate(4096)
        events = []
        for i in range(5):
            data = np.full(4096, i, np.uint8)
            events.append(queue.submit(lambda d=data: block.write(0, d)))
        events[-1].wait()
        assert all(event.is_done() for event in events)
        assert (block.read(0, 4096) == 4).all()
        other = _Later()
        threading.Timer(0.05, other.set).start()
        queue.wait_for(other)
        after = queue.submit(lambda: block.write(0, np.full(4096, 9, np.uint8)))
        after.wait()
        assert other.is_done()
        queue.synchronize()
        queue.close()

    # ---- splits and copies -----------------------------------------------------------------------

    def test_every_way_to_split(self, device: Backend) -> None:
        """A chain of nodes cut at every place, in both orders; sizes change from run to run. What
        is copied is what the plan says."""
        nodes = len(_nodes(_model(device).graph))
        for cut in range(nodes + 1):
            for first in (True, False):
                model = _model(device)
                mine = [(i < cut) == first for i in range(nodes)]
                self._runs(device, model, mine)

    def test_random_splits(self, device: Backend) -> None:
        for seed in range(8):
            model = _model(device)
            rng = np.random.default_rng(seed)
            self._runs(device, model, [bool(rng.integers(2)) for _ in _nodes(model.graph)])

    def _runs(self, device: Backend, model: _Model, mine: Sequence[bool]) -> None:
        pins = _pins(device, model, mine)
        program = compile(model.graph, [device, _host()], assign=pins)
        session = Session(program)
        for rows in (3, 1, 8, 3):
            x = model.input(rows)
            before = session.moved.nbytes, session.moved.copies
            got = session.run({"x": x})["y"]
            np.testing.assert_allclose(got, model.want(x), rtol=2e-4, atol=2e-5)
            planned = [
                program.tensors[copy.src] for split in program.splits for copy in split.copies
            ]
            sizes = sum(_bytes(spec, {"rows": rows}) for spec in planned)
            moved = session.moved.nbytes - before[0], session.moved.copies - before[1]
            assert moved == (sizes, len(planned))

    @pytest.mark.parametrize("n_copies", [1, 2])
    def test_batches_in_flight(self, device: Backend, n_copies: int) -> None:
        """Batch after batch without waiting: results as if one came after the other."""
        model = _model(device)
        pins = _pins(device, model, _some(device, model))
        backends = [device, _host()]
        with Scheduler(backends, n_copies=n_copies) as scheduler:
            runs, inputs = [], []
            for rows in (8, 1, 5, 3, 8, 2, 4, 7):
                scheduler.reset()
                for node, backend in pins.items():
                    scheduler.set_tensor_backend(node, backends.index(backend))
                inputs.append(model.input(rows))
                runs.append(scheduler.compute_async(model.graph, {"x": inputs[-1]}, {"rows": rows}))
            for run, x in zip(runs, inputs, strict=True):
                got = run.outputs["y"]
                np.testing.assert_allclose(got, model.want(x), rtol=2e-4, atol=2e-5)

    def test_state_stays_where_it_is(self, device: Backend) -> None:
        """A tensor of the user's memory on the device is written by one run, read by the next."""
        x = weft.input("x", (1, N))
        memory = device.buffer_type.allocate(4 * N)
        state = weft.Tensor(
            x.dtype, (N, 1, 1, 1), name="state", buffer=Buffer("any", device.buffer_type, memory)
        )
        sum_ = g.add(state, x)
        kept = g.cpy(sum_, state).as_output("kept")
        if not all(device.supports_op(node) for node in (sum_, kept)):
            pytest.skip(f"{device.name} does not take ADD and CPY")
        session = Session(compile(weft.Graph(kept), [device, _host()]))
        ones = np.ones((1, N), np.float32)
        for i in range(1, 4):
            np.testing.assert_array_equal(session.run({"x": ones})["kept"].reshape(-1), i)
        assert (memory.read(0, 4 * N).view(np.float32) == 3).all()

    # ---- faults ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("what", ["allocate", "lower", "write", "run", "read"])
    def test_faults(self, device: Backend, what: str) -> None:
        """Whatever fails is a DeviceError that names the device; another session goes on, and so
        does this one once the fault is over."""
        model = _model(device)
        failing = Failing(device)
        backends = [failing, _host()]
        pins = _pins(failing, model, _some(device, model))
        program = compile(model.graph, backends, assign=pins)
        other = Session(compile(model.graph, backends, assign=pins))
        x = model.input(3)
        want = model.want(x)
        failing.fail = what
        with pytest.raises(weft.DeviceError, match=device.name):
            session = Session(program)
            session.run({"x": x})
        failing.fail = ""
        np.testing.assert_allclose(other.run({"x": x})["y"], want, rtol=2e-4, atol=2e-5)
        session = Session(program)
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=2e-4, atol=2e-5)
        if what in ("write", "run", "read") and not device.buffer_type.is_host:
            failing.fail = what
            with pytest.raises(weft.DeviceError, match=rf"split \d on .*{what} failed"):
                session.run({"x": x})
            failing.fail = ""
            np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=2e-4, atol=2e-5)

    def test_sessions_give_their_memory_back(self, device: Backend) -> None:
        """Two hundred sessions one after the other hold no more memory than two."""
        model = _model(device)
        pins = _pins(device, model, _some(device, model))
        program = compile(model.graph, [device, _host()], assign=pins)
        x = model.input(2)
        want = model.want(x)
        in_use = []
        for i in range(200):
            session = Session(program)
            if i % 50 == 0:
                got = session.run({"x": x})["y"]
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
            in_use.append(getattr(device.buffer_type, "in_use", 0))
        assert in_use[-1] <= 2 * in_use[1], "device memory of sessions that are gone is kept"


class SlowCompilerSuite(BackendSuite):
    """The exam of a device whose driver takes a second or more to compile a kernel: ops that read
    quantized weights are tried with one format of each kind only; `RemainingFormats` has the
    others."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        return case in some_cases()


class RemainingFormats:
    """A base class in front of a `SlowCompilerSuite`: tries only the cases that it leaves out."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        return case not in some_cases()


class GpuGroupSizesSuite(BackendSuite):
    """The exam of a device on a processor that is told to share work out as a GPU does: products in
    tiles, several work items for each row. Only ops whose kernels depend on `LIMITS` are tried,
    with a few formats."""

    LIMITS: ClassVar = {
        "tile": 32, "lanes": 8, "rows": 2, "columns": 4, "wide": False, "part_cells": 32,
    }  # fmt: skip

    @classmethod
    def wants(cls, case: Case) -> bool:
        ops = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "SOFT_MAX", "RMS_NORM")
        return case.op in ops and case.variant.split(" ")[0] in ("f32", "f16", "q4_K", "mask", "")


# ---- what is run ---------------------------------------------------------------------------------


class _Model:
    """Norm, product, gate, product, residual sum, softmax: a graph over rows of N numbers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.w = [(rng.standard_normal((N, N)) / 8).astype(np.float32) for _ in range(3)]
        self.scale = rng.uniform(0.5, 1.5, N).astype(np.float32)
        x = weft.input("x", (weft.Sym("rows", 1, 8), N))
        normed = g.mul(g.rms_norm(x, 1e-5), weft.constant(self.scale, "scale"))
        up = g.mul_mat(weft.constant(self.w[0], "up"), normed)
        gate = g.silu(g.mul_mat(weft.constant(self.w[1], "gate"), normed))
        down = g.mul_mat(weft.constant(self.w[2], "down"), g.mul(up, gate))
        self.graph = weft.Graph(g.soft_max(g.add(down, x), scale=0.5).as_output("y"))

    def input(self, rows: int) -> Array:
        return np.random.default_rng(rows).standard_normal((rows, N)).astype(np.float32)

    def want(self, x: Array) -> Array:
        a = x.astype(np.float64)
        normed = a / np.sqrt(np.square(a).mean(-1, keepdims=True) + 1e-5) * self.scale
        up, gate = normed @ self.w[0].T, normed @ self.w[1].T
        out = (up * gate / (1 + np.exp(-gate))) @ self.w[2].T + a
        e = np.exp(0.5 * out - (0.5 * out).max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))


class _Chain(_Model):
    """Ops of one tensor, one after another, for devices that take nothing of the other graph."""

    OPS = (
        lambda x: g.scale(x, 0.5), g.sqr, g.sqrt, lambda x: g.clamp(x, -0.8, 0.9), g.sin, g.cos,
        lambda x: g.leaky_relu(x, 0.1), g.gelu, g.relu, g.tanh, g.sigmoid, g.exp, g.log, g.neg,
        g.abs, g.dup, g.cont, lambda x: g.add(x, x), lambda x: g.sub(x, g.sqr(x)),
        lambda x: g.mul(x, x), lambda x: g.l2_norm(x, 1e-5),
        lambda x: g.norm(g.scale(x, 100.0), 1e-5), g.soft_max,
    )  # fmt: skip
    """The last one makes numbers that are right to a few last bits: a norm at the end would show
    the rounding of all before it, enlarged by what it takes away."""

    def __init__(self) -> None:
        x = weft.input("x", (weft.Sym("rows", 1, 8), N))
        for op in self.OPS:
            x = op(x)
        self.graph = weft.Graph(g.add(x, x).as_output("y"))

    def want(self, x: Array) -> Array:
        return _chain_of_reference().run({"x": x})["y"]


@cache
def _chain_of_reference() -> Session:
    return Session(compile(_Chain().graph, [make_backend("reference")]))


def _model(device: Backend) -> _Model:
    """A graph of which the device takes some node."""
    for model in (_Model(), _Chain()):
        if any(device.supports_op(node) for node in _nodes(model.graph)):
            return model
    pytest.skip(f"{device.name} takes no node of the exam's graphs, so there is nothing to split")


def _some(device: Backend, model: _Model) -> list[bool]:
    """Of the nodes that the device takes, each third: so that it works beside the host."""
    nodes = _nodes(model.graph)
    taken = [node for node in nodes if device.supports_op(node)]
    chosen = taken[1::3] or taken
    return [node in chosen for node in nodes]


def _nodes(graph: weft.Graph) -> list[weft.Tensor]:
    return [node for node in graph.nodes if not node.op.is_view]


def _pins(device: Backend, model: _Model, mine: Sequence[bool]) -> dict[weft.Tensor, Backend]:
    """Nodes that the device is to run, of those that it takes; the host gets the others."""
    nodes = zip(_nodes(model.graph), mine, strict=True)
    host = _host()
    return {n: device if wanted and device.supports_op(n) else host for n, wanted in nodes}


_hosts: list[Backend] = []


def _host() -> Backend:
    """The cpu behind the device, named so that a cpu can be examined, too."""
    if not _hosts:
        _hosts.append(make_backend("cpu", n_threads=1, activations="f32"))
        _hosts[0].name = "host"
    return _hosts[0]


def _bytes(spec: Any, values: Mapping[str, int]) -> int:
    from weft.execute.values import tensor_bytes
    from weft.graph.size import evaluate

    ne = [evaluate(n, values) for n in spec.ne]
    return tensor_bytes(spec.dtype, ne, [evaluate(n, values) for n in spec.nb])


class _Later:
    """An event that somebody else sets."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    def is_done(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        self._event.wait()


# ---- a device by itself, and one that fails ------------------------------------------------------


class _Wrapped:
    """All of a backend but what a subclass changes."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Alone(_Wrapped):
    kind = "CPU"


def _alone(device: Backend) -> Any:
    """The device as one that may stand last in a list, so that nothing runs elsewhere."""
    return device if device.kind == "CPU" else _Alone(device)


class Failing(_Wrapped):
    """A device that fails where `fail` says: "allocate", "lower", "write", "run" or "read", once
    it has done so `after` times."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.fail = ""
        self.after = 0
        self.buffer_type: Any = inner.buffer_type
        if not inner.buffer_type.is_host:
            self.buffer_type = _FailingType(self, inner.buffer_type)

    def check(self, what: str) -> None:
        if self.fail == what or (
            self.fail in ("allocate", "write", "read")
            and what == "lower"
            and self.inner.buffer_type.is_host
        ):
            self.after -= 1
            if self.after < 0:
                raise RuntimeError(f"{self.inner.name}: {self.fail} failed")

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        if buffer_type is self.buffer_type:
            return True
        return self.inner.supports_buffer_type(buffer_type)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Any:
        self.check("lower")
        bare = [m.inner if isinstance(m, _FailingMemory) else m for m in memories]
        return _FailingExecutable(self, self.inner.lower(program, split, bare))


class _FailingExecutable:
    def __init__(self, device: Failing, inner: Any) -> None:
        self._device, self._inner = device, inner

    def run(self, values: Mapping[str, int]) -> None:
        self._device.check("run")
        self._inner.run(values)


class _FailingType(_Wrapped):
    def __init__(self, device: Failing, inner: Any) -> None:
        super().__init__(inner)
        self._device = device

    def allocate(self, nbytes: int) -> Any:
        self._device.check("allocate")
        return _FailingMemory(self._device, self.inner.allocate(nbytes))  # type: ignore[attr-defined]

    adopt = None


class _FailingMemory:
    def __init__(self, device: Failing, inner: Memory) -> None:
        self._device, self.inner = device, inner
        self.nbytes = inner.nbytes

    def host(self) -> Any:
        return self.inner.host()

    def read(self, offset: int, nbytes: int) -> Array:
        self._device.check("read")
        return self.inner.read(offset, nbytes)

    def write(self, offset: int, data: Array) -> None:
        self._device.check("write")
        self.inner.write(offset, data)
