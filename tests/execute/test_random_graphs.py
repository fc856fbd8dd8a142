"""Random graphs on random devices: every way to place and run them gives what one device gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.execute.stub_devices import AsyncDevice, Device, Type, cpu
from weft import graph as g
from weft.backends.memory import HostMemory
from weft.execute import Scheduler
from weft.graph.tensor import Buffer

N = 16
LONG = pytest.mark.part("faults")


class _Builder:
    """A graph of [N, rows] values: products, element-wise ops, views of all kinds, a state that is
    written and read, results in the middle."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.rows = weft.Sym("rows", 1, 8)
        x = weft.input("x", (self.rows, N))
        y = weft.input("y", (self.rows, N))
        self.values = [x, y]
        memory = HostMemory.zeros(32 * N * 4)
        self.memory = memory
        self.state = weft.Tensor(
            x.dtype, (N, 32, 1, 1), name="state", buffer=Buffer("any", data=memory)
        )
        self.cells = weft.input("cells", (self.rows,), "i64")
        self.outputs: list[weft.Tensor] = []
        written = False
        for i in range(int(rng.integers(5, 30))):
            if not written and rng.random() < 0.1:
                # read back only through what was written
                self.state = g.set_rows(self.state, self._pick(), self.cells)
                self.values.append(
                    g.view_2d(self.state, N, self.rows.size, self.state.nb[1], 4 * N * 4)
                )
                written = True
                continue
            node = self._node().named(f"v{i}")
            self.values.append(node)
            if rng.random() < 0.1:
                self.outputs.append(node.as_output())
        last = g.scale(self._sum(), 0.5).as_output("last")
        self.outputs.append(last)
        self.graph = weft.Graph(*self.outputs)

    def _pick(self) -> weft.Tensor:
        # mostly new values, so that memory is reused
        back = min(int(self.rng.geometric(0.4)), len(self.values))
        return self.values[-back]

    def _sum(self) -> weft.Tensor:
        return g.add(g.add(self._pick(), self._pick()), self.values[0])

    def _node(self) -> weft.Tensor:
        kind = int(self.rng.integers(9))
        a = self._pick()
        if kind == 0:
            w = self.rng.standard_normal((N, N)).astype(np.float32) / 4
            return g.mul_mat(weft.constant(w), a)
        if kind == 1:
            return g.add(a, self._pick())
        if kind == 2:
            return g.mul(a, self._pick())
        if kind == 3:
            return g.silu(a)
        if kind == 4:  # through a transposed view and back
            return g.cont(g.transpose(g.cont(g.transpose(a))))
        if kind == 5:  # the halves, swapped
            base = a if a.is_contiguous else g.cont(a)
            n = self.rows.size
            left = g.view_2d(base, N // 2, n, base.nb[1], 0)
            right = g.view_2d(base, N // 2, n, base.nb[1], N // 2 * 4)
            return g.concat(g.cont(right), g.cont(left), 0)
        if kind == 6:
            return g.tanh(g.scale(a, 0.7))
        if kind == 7:
            flat = a if a.is_contiguous else g.cont(a)
            return g.reshape(g.relu(g.reshape(flat, N // 4, self.rows.size * 4)), *flat.ne[:2])
        return g.soft_max(a)

    def inputs(self, rows: int, seed: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.standard_normal((rows, N)).astype(np.float32),
            "y": rng.standard_normal((rows, N)).astype(np.float32),
            "cells": rng.permutation(32)[:rows],
        }


def _feed(built: _Builder, scheduler: Scheduler, pins: Any, wait: bool) -> list[dict[str, Any]]:
    """Outputs of six batches of all sizes, one after the other or in flight together."""
    built.memory.host()[:] = 0
    results, runs = [], []
    for i, rows in enumerate((8, 1, 3, 8, 5, 2)):
        scheduler.reset()
        for tensor, device in pins.items():
            scheduler.set_tensor_backend(tensor, device)
        inputs = {
            name: array
            for name, array in built.inputs(rows, i).items()
            if name in built.graph.inputs
        }
        if wait:
            assert scheduler.compute(built.graph, inputs, {"rows": rows})
            results.append(scheduler.outputs())
        else:
            runs.append(scheduler.compute_async(built.graph, inputs, {"rows": rows}))
    return results + [dict(run.outputs) for run in runs]


def _devices(rng: np.random.Generator) -> list[Any]:
    """Two or three, with memories of their own, shared, or behind queues."""
    host = Type("host", is_host=True)
    last = Device("host", "CPU", host)
    kind = int(rng.integers(4))
    if kind == 0:
        return [Device("gpu"), last]
    if kind == 1:
        return [Device("gpu"), Device("twin", "ACCEL", host), last]
    if kind == 2:
        return [AsyncDevice("gpu"), Device("gpu1"), last]
    return [Device("gpu0"), Device("gpu1"), last]


@pytest.mark.parametrize("memory", ["best", "ggml"])
@pytest.mark.parametrize(
    "seed",
    [*range(16), *(pytest.param(i, marks=pytest.mark.part("faults")) for i in range(16, 64))],
)
def test_random_graphs(seed: int, memory: Any) -> None:
    built = _Builder(seed)
    with Scheduler([cpu("only")]) as one:
        want = _feed(built, one, {}, True)
    rng = np.random.default_rng(1000 + seed)
    for trial in range(3):
        devices = _devices(rng)
        pins = {
            t: int(rng.integers(len(devices)))
            for t in built.graph.nodes
            if not t.op.is_view and (t.view_src is None or t.view_src.buffer is None)
        }
        if trial == 2:  # the planner decides
            pins = {t: b for t, b in pins.items() if rng.random() < 0.2}
        n_copies = int(rng.choice([1, 2, 4]))
        with Scheduler(devices, n_copies, memory=memory) as scheduler:
            try:
                got = _feed(built, scheduler, pins, wait=bool(rng.integers(2)))
            except weft.AllocationError as error:
                # the reference's planner loses views that are outputs; that must be told
                assert memory == "ggml" and "memory='best'" in str(error)
                continue
        for g_, w in zip(got, want, strict=True):
            assert g_.keys() == w.keys()
            for name in w:
                np.testing.assert_array_equal(g_[name], w[name])
