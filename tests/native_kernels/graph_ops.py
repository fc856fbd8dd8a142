"""A graph of one op on the reference backend and on every native target: one result, and the
recorded cases of an op through the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from golden import VECTORS, nmse
from harness import Operand, result, run_op
from numpy.typing import NDArray
from vectors.ops import build_case, iter_cases, measure

from tests.targets import TARGETS
from weft import Session, compile, quants
from weft.backends import make_backend
from weft.graph import Graph, Tensor, input
from weft.graph.params import pack

Array = NDArray[Any]


def recorded_cases_fail(op: str, target: str, folder: Path = VECTORS) -> list[str]:
    """Runs every recorded case of `op` through compile and Session; a line for each that fails."""
    backend = make_backend("cpu", target=target, n_threads=2)
    wrong, count = [], 0
    for case in iter_cases(folder, f"*/{op}/*"):
        built = build_case(case)
        got = Session(compile(built.graph, [backend])).run(built.inputs)["out"]
        verdict = measure(case, got)
        count += 1
        if not verdict.ok:
            wrong.append(f"{case.id}: {verdict.message}")
    assert count, f"no recorded case of {op}"
    return wrong


class Leaves:
    """Makes inputs of a graph together with random data for them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.data: dict[str, Array] = {}

    def normal(self, *ne: int, dtype: str = "f32", scale: float = 1.0) -> Tensor:
        """Normally distributed elements; sizes innermost first."""
        return self.put(self.rng.standard_normal(ne[::-1]) * scale, dtype)

    def uniform(self, low: float, high: float, *ne: int) -> Tensor:
        return self.put(self.rng.uniform(low, high, ne[::-1]), "f32")

    def put(self, values: Array, dtype: str) -> Tensor:
        """An input with these values, shape `ne[::-1]`."""
        name = f"x{len(self.data)}"
        if dtype == "i32":
            self.data[name] = values.astype(np.int32)
        else:
            self.data[name] = quants.to_storage(values.astype(np.float32), dtype)
        return input(name, values.shape, dtype)

    def operand(self, t: Tensor) -> Operand:
        """A source as the harness takes it: a window of its leaf's memory."""
        memory = np.ascontiguousarray(self.data[(t.view_src or t).name]).reshape(-1).view(np.uint8)
        return Operand(memory, t.dtype.name, t.ne, t.nb, t.view_offs)


def on_reference(node: Tensor, data: dict[str, Array]) -> Array:
    """The result, shape `ne[::-1]`, computed by the reference backend in float64."""
    graph = Graph(node.as_output("out"))
    inputs = {name: data[name] for name in graph.inputs}
    return Session(compile(graph, ["reference"])).run(inputs)["out"].reshape(node.ne[::-1])


def agree(node: Tensor, leaves: Leaves, limit: float = 1e-11) -> None:
    """Every native target gives the reference's result up to `limit` (NMSE), the same bits whatever
    the number of threads, and touches no byte beside it."""
    dtype = node.dtype.name
    want = quants.from_storage(on_reference(node, leaves.data), dtype)
    sources = [None if s is None else leaves.operand(s) for s in node.src]
    params = pack(node.params)
    for target in TARGETS:
        got = [
            run_op(node.op.name, result(dtype, node.ne, node.nb), sources, params, target, n)
            for n in (1, 3)
        ]
        np.testing.assert_array_equal(got[0], got[1], f"{target}: threads change the result")
        values = quants.from_storage(got[0], dtype)
        assert np.array_equal(np.isfinite(values), np.isfinite(want)), f"{target}: inf elsewhere"
        error = nmse(values, want)
        assert error <= limit, f"{node.op} on {target}: NMSE {error:.3g} exceeds {limit:.3g}"
