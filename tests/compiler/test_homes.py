"""Constants of the host that get a home on the device that works on them."""

from __future__ import annotations

import numpy as np

import weft
from weft import graph as g
from weft.backends import Backend, make_backend
from weft.compiler.homes import with_weights_on_device
from weft.execute import Session
from weft.graph.tensor import Tensor

W = np.arange(64, dtype=np.float32).reshape(8, 8) / 64


def graph() -> tuple[weft.Graph, Tensor]:
    """Two products, and the second one's node."""
    x = weft.input("x", (weft.Sym("n", 1, 4), 8))
    first = g.silu(g.mul_mat(weft.constant(W, "a"), x))
    second = g.mul_mat(weft.constant(W.T.copy(), "b"), first).named("second")
    return weft.Graph(second.as_output("y")), second


def devices() -> list[Backend]:
    """The first has memory of its own."""
    return [make_backend("reference"), make_backend("cpu", n_threads=1)]


def run(program: weft.Program) -> np.ndarray:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    session = Session(program)
    result = session.run({"x": x})["y"]
    hidden = x @ W.T
    np.testing.assert_allclose(result, (hidden / (1 + np.exp(-hidden))) @ W, rtol=1e-4, atol=1e-5)
    return result


def test_constants_go_to_the_device() -> None:
    built, _ = graph()
    program = weft.compile(built, devices(), offload=True)
    assert [split.device for split in program.splits] == ["reference"]
    assert all(leaf.buffer is None or leaf.buffer.type is None for leaf in built.leaves)
    run(program)
    left = weft.compile(built, devices())
    assert [split.device for split in left.splits] == ["cpu"]
    run(left)


def test_what_is_pinned_stays_pinned() -> None:
    built, second = graph()
    backends = devices()
    program = weft.compile(built, backends, offload=True, assign={second: backends[1]})
    assert [split.device for split in program.splits] == ["reference", "cpu"]
    run(program)


def test_what_the_device_cannot_hold_or_run_stays() -> None:
    built, _ = graph()
    backends = devices()
    device = backends[0]
    assert with_weights_on_device(built, backends[1:]) == (built, {})  # nowhere to go
    real = device.supports_op

    def supports_op(node: Tensor) -> object:
        return weft.backends.Support(node.name != "y", "not this one") and real(node)

    device.supports_op = supports_op  # type: ignore[method-assign,assignment]
    moved, _ = with_weights_on_device(built, backends)
    where = {t.name: t.buffer.type for t in moved.leaves if t.buffer is not None}
    assert where == {"a": device.buffer_type, "b": None}
    run(weft.compile(built, backends, offload=True))
