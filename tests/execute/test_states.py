"""States of graphs built by hand: kept from run to run, read, written and reset, on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from tests.execute.stub_devices import Device, Faulty, cpu
from weft import graph as g
from weft.errors import DeviceError, GraphError, ProgramError
from weft.execute import Scheduler
from weft.graph.check import check_graph

INIT = np.arange(6, dtype=np.float32).reshape(2, 3)
ONES = np.ones((2, 3), np.float32)


def _sum(total: weft.Tensor) -> weft.Graph:
    """Adds `x` to the state."""
    new = total + weft.input("x", (2, 3))
    return weft.Graph(g.cpy(new, total).as_output("sum"))


def _counter(init: Any = INIT) -> weft.Graph:
    return _sum(weft.state("total", (2, 3), init=init))


def _devices() -> list[Any]:
    return [
        pytest.param(lambda: ["cpu"], id="cpu"),
        pytest.param(lambda: ["reference"], id="reference"),
        pytest.param(lambda: [Device("gpu"), cpu()], id="own memory"),
        pytest.param(lambda: [opencl(), "cpu"], id="opencl"),
        pytest.param(lambda: [webgpu(), "cpu"], id="webgpu"),
    ]


@pytest.mark.parametrize("devices", _devices())
def test_a_state_is_kept_read_written_and_reset(devices: Any) -> None:
    program = weft.compile(_counter(), devices(), offload=True)
    session, other = weft.Session(program), weft.Session(program)
    total = session.state("total")
    np.testing.assert_array_equal(total.read(), INIT)
    for n in (1, 2, 3):
        np.testing.assert_array_equal(session.run({"x": ONES})["sum"], INIT + n)
        np.testing.assert_array_equal(total.read(), INIT + n)
    total.write(ONES * 10)
    np.testing.assert_array_equal(session.run({"x": ONES})["sum"], ONES * 11)
    total.reset()
    np.testing.assert_array_equal(session.run({"x": ONES})["sum"], INIT + 1)
    session.reset()
    np.testing.assert_array_equal(total.read(), INIT)
    # what one session did, no other sees
    session.run({"x": ONES})
    np.testing.assert_array_equal(other.state("total").read(), INIT)
    np.testing.assert_array_equal(weft.Session(program).state("total").read(), INIT)


def test_a_device_keeps_it_in_its_own_memory() -> None:
    program = weft.compile(_counter(), [Device("gpu"), cpu()], offload=True)
    spec = program.tensors[program.states["total"]]
    assert program.buffers[spec.buffer].buffer_type.name == "gpu"
    session = weft.Session(program)
    session.run({"x": ONES})
    assert session.copied_bytes == INIT.nbytes  # the input alone


def test_an_array_that_it_begins_with_stays_as_it_is() -> None:
    array = INIT.copy()
    graph = _counter(array)
    session = weft.Session(weft.compile(graph, ["cpu"]))
    session.run({"x": ONES})
    np.testing.assert_array_equal(array, INIT)
    array[:] = 7
    session.state("total").reset()
    np.testing.assert_array_equal(session.state("total").read(), INIT)


@pytest.mark.parametrize(
    ("init", "first"),
    [(None, 0), (2, 2), (np.full(3, 3.0), 3), ([[4, 4, 4]], 4), (np.float16(5), 5)],
)
def test_first_values(init: Any, first: float) -> None:
    session = weft.Session(weft.compile(_counter(init), ["reference"]))
    values = session.state("total").read()
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.full((2, 3), first))


def test_a_state_that_only_views_use() -> None:
    total = weft.state("total", (2, 3))
    row = g.view_1d(total, 3, 12)
    graph = weft.Graph(g.cpy(weft.input("x", (3,)), row))
    session = weft.Session(weft.compile(graph, ["cpu"]))
    session.run(np.ones(3, np.float32))
    np.testing.assert_array_equal(session.state("total").read(), [[0, 0, 0], [1, 1, 1]])


def test_rows_of_a_cache_in_blocks() -> None:
    cache = weft.state("cache", (4, 32), "q8_0")
    assert cache.shape == (4, 32)
    row = weft.input("row", (1, 32))
    where = weft.input("where", (1,), "i64")
    graph = weft.Graph(g.set_rows(cache, row, where))
    session = weft.Session(weft.compile(graph, ["cpu"]))
    session.run({"row": np.ones((1, 32), np.float32), "where": np.array([2], np.int64)})
    rows = session.state("cache").read()
    assert rows.shape == (4, 34) and rows[2].any() and not rows[[0, 1, 3]].any()
    again = weft.state("cache", (4, 32), "q8_0", init=rows)
    session = weft.Session(weft.compile(weft.Graph(g.cpy(again, again)), ["reference"]))
    np.testing.assert_array_equal(session.state("cache").read(), rows)


def test_a_scheduler_keeps_it_in_the_tensor() -> None:
    total = weft.state("total", (2, 3))
    graph = _sum(total)
    scheduler = Scheduler([cpu()])
    for n in (1, 2):
        scheduler.compute(graph, {"x": ONES})
        np.testing.assert_array_equal(scheduler.get(total), ONES * n)


def test_the_text_of_a_graph_says_what_is_a_state() -> None:
    text = g.format_graph(_counter())
    assert 'leaf f32[3, 2] "total" flags=state' in text
    assert list(g.parse_graph(text).states) == ["total"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", (2,)), "a state needs a name"),
        (("s", (2,), "f32", [1.0, 2, 3]), r"state 's': init has shape \(3,\), wants \(2,\)"),
        (("s", (weft.Sym("n", 1, 4),)), "must be a number, got the symbolic size n"),
        (("s", (-1,)), "cannot be negative"),
        (("s", (1,), "i32", 0.5), "i32 cannot hold init, which is float64"),
        (("s", (1,), "i8", 300), "i8 cannot hold init, which is int64"),
        (("s", (1,), "f32", "a"), "f32 cannot hold"),
        (("s", (1,), "bf16", 0.5), "bf16 is stored as uint16, got float64; encode it first"),
        (("s", (4, 32), "q8_0", np.zeros((4, 32))), "q8_0 is stored as uint8, got float64"),
        (("s", (4, 32), "q8_0", np.zeros((4, 32), np.uint8)), r"wants \(4, 34\)"),
        (("s", (33,), "q8_0"), "a row of 33 elements"),
        (("s", (2,), "f33"), "f33"),
    ],
)
def test_what_no_state_can_be(arguments: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        weft.state(*arguments)


def test_wrong_uses() -> None:
    session = weft.Session(weft.compile(_counter(), ["reference"]))
    with pytest.raises(ProgramError, match=r"no state 'x'; the program has \['total'\]"):
        session.state("x")
    total = session.state("total")
    with pytest.raises(ProgramError, match=r"state 'total' has shape \(3, 2\), wants \(2, 3\)"):
        total.write(np.ones((3, 2), np.float32))
    with pytest.raises(ProgramError, match="state 'total' has element type float64"):
        total.write(np.ones((2, 3)))
    np.testing.assert_array_equal(total.read(), INIT)
    assert repr(total) == "<State total f32 (2, 3)>"
    two = [weft.state("h", (1,)) for _ in range(2)]
    with pytest.raises(GraphError, match="two graph states are called 'h'"):
        check_graph(weft.Graph(g.cpy(two[0], two[1])))


def test_a_device_that_fails_is_named_with_the_state() -> None:
    device = Faulty()
    session = weft.Session(weft.compile(_counter(), [device, cpu()], offload=True))
    for what, use in (
        ("read", session.state("total").read),
        ("write", session.state("total").reset),
    ):
        device.fail = what
        with pytest.raises(DeviceError, match=f"state total: .*{what} failed"):
            use()
