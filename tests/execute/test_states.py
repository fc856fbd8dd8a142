"""States of graphs built by hand: kept between runs, read and written on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.execute.stub_devices import Device, cpu
from weft import graph as g
from weft.execute import Scheduler


def _sum(state: weft.Tensor) -> weft.Graph:
    """Adds `x` to the state."""
    total = g.add(state, weft.input("x", (2, 3)))
    return weft.Graph(g.cpy(total, state).as_output("total"))


def _sessions() -> list[Any]:
    return [
        pytest.param(lambda graph: weft.compile(graph, ["cpu"]), id="cpu"),
        pytest.param(lambda graph: weft.compile(graph, ["reference"]), id="reference"),
        pytest.param(
            lambda graph: weft.compile(graph, [Device("gpu"), cpu()], offload=True), id="own memory"
        ),
    ]


@pytest.mark.parametrize("compiled", _sessions())
def test_a_state_is_kept_read_and_written(compiled: Any) -> None:
    state = weft.state(np.zeros((2, 3), np.float32), "sum")
    session = weft.Session(compiled(_sum(state)))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.state(state), np.zeros((2, 3)))
    for n in (1, 2, 3):
        session.run({"x": x})
        np.testing.assert_array_equal(session.state(state), n * x)
    session.set_state(state, np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(session.run({"x": x})["total"], x + 1)
    with pytest.raises(weft.ProgramError, match=r"state 'sum' has shape \(3, 2\), wants \(2, 3\)"):
        session.set_state(state, np.ones((3, 2), np.float32))
    with pytest.raises(weft.ProgramError, match="state 'sum' has element type float64"):
        session.set_state(state, np.ones((2, 3)))
    other = weft.state(np.zeros((2, 3), np.float32), "other")
    with pytest.raises(weft.ProgramError, match=r"other f32\[3, 2\] is no state of the program"):
        session.state(other)
    with pytest.raises(weft.ProgramError, match="is no state"):
        session.set_state(weft.input("x", (2, 3)), x)


def test_the_array_itself_is_used_on_the_host() -> None:
    array = np.zeros((2, 3), np.float32)
    session = weft.Session(weft.compile(_sum(weft.state(array)), ["cpu"]))
    session.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(array, 1)
    array.flags.writeable = False
    again = weft.state(array, "again")
    session = weft.Session(weft.compile(_sum(again), ["cpu"]))
    session.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(array, 1)  # what cannot be written is copied
    np.testing.assert_array_equal(session.state(again), 2)


def test_rows_of_a_cache_in_blocks() -> None:
    cache = weft.state(np.zeros((4, 34), np.uint8), "cache", "q8_0")
    row = weft.input("row", (1, 32))
    where = weft.input("where", (1,), "i64")
    graph = weft.Graph(g.set_rows(cache, row, where).as_output("cache after"))
    session = weft.Session(weft.compile(graph, ["cpu"]))
    session.run({"row": np.ones((1, 32), np.float32), "where": np.array([2], np.int64)})
    rows = session.state(cache)
    assert rows.shape == (4, 34) and rows[2].any() and not rows[[0, 1, 3]].any()
    with pytest.raises(weft.GraphError, match="state 'c': q8_0 is stored as uint8, got float32"):
        weft.state(np.zeros((4, 32), np.float32), "c", "q8_0")


def test_a_scheduler_reads_it_too() -> None:
    state = weft.state(np.zeros((2, 3), np.float32), "sum")
    scheduler = Scheduler([cpu()])
    graph = _sum(state)
    for n in (1, 2):
        scheduler.compute(graph, {"x": np.ones((2, 3), np.float32)})
        np.testing.assert_array_equal(scheduler.get(state), np.full((2, 3), n))
