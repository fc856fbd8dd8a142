"""`op_offload`: the devices that take ops of host weights, and the batches from which they do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedule.planning_graphs import cpu, gpu, node, value, weight
from weft.errors import ScheduleError
from weft.graph.graph import Graph
from weft.schedule import schedule
from weft.schedule.offload import OpOffload, op_offload_for, read_op_offload

OFF, ON = "cpu 1.wgt0", "gpu 1.off"


def where(op_offload: Any, columns: int, op: str = "MUL_MAT", **of_gpu: Any) -> str:
    """The device and the cause of an op of a host weight."""
    g, c = gpu(**of_gpu), cpu()
    # experts have their columns in the third dimension
    shape = (64, 1, columns) if op == "MUL_MAT_ID" else (64, columns)
    one = node(op, "y", weight("w", c), value("x", shape), shape=shape)
    placed = schedule(Graph(one), [g, c], op_offload=op_offload)
    return f"{placed.backends[placed.backend_of[one]].name} {placed.cause_of[one].code}"


@pytest.mark.parametrize("asks", [None, 32])
@pytest.mark.parametrize(
    "given", [8, "8", " 8 ", "*=8", {"gpu": 8}, {"g*": "8"}, "MUL_MAT@gpu=8,gpu=off"]
)
def test_a_least_batch_goes_before_what_the_device_asks_for(given: Any, asks: int | None) -> None:
    assert where(given, 7, offload_from=asks) == OFF
    assert where(given, 8, offload_from=asks) == ON


@pytest.mark.parametrize("given", [None, True, "on", {}, {"gpu": True}, {"MUL_MAT_ID@gpu": False}])
def test_the_device_decides_where_no_rule_does(given: Any) -> None:
    assert where(given, 31, offload_from=32) == OFF
    assert where(given, 32, offload_from=32) == ON
    assert where(given, 4096) == OFF  # this device never asks


@pytest.mark.parametrize("given", [False, "off", "OFF", {"gpu": "off"}, {"mul_mat@*": False}])
def test_off(given: Any) -> None:
    assert where(given, 4096, offload_from=1) == OFF


def test_by_op_and_the_first_rule_that_matches() -> None:
    rules = {"MUL_MAT_ID@gpu": 64, "MUL_MAT@gpu": False, "gpu": 1}
    assert where(rules, 63, "MUL_MAT_ID") == OFF
    assert where(rules, 64, "MUL_MAT_ID") == ON
    assert where(rules, 64, "MUL_MAT", offload_from=1) == OFF


def test_other_ops_than_products_are_taken_where_they_are_named() -> None:
    assert where(1, 64, "ADD") == OFF
    assert where("ADD@gpu=64", 64, "ADD") == ON
    assert where("ADD@gpu=65", 64, "ADD") == OFF
    assert where("GET_ROWS@gpu=1", 64, "GET_ROWS") == OFF  # its columns say nothing


def test_a_device_that_does_not_run_it_takes_nothing() -> None:
    assert where(1, 64, refused=["MUL_MAT"]) == OFF


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "on"),
        (True, "on"),
        (False, "off"),
        (32, "32"),
        ({"cuda:0": 64, "MUL_MAT_ID@*": False}, "cuda:0=64,MUL_MAT_ID@*=off"),
        ("b/cuda:0=on", "b/cuda:0=on"),
    ],
)
def test_rules_as_text_are_read_again(given: Any, text: str) -> None:
    rules = read_op_offload(given)
    assert str(rules) == text and read_op_offload(text) == rules == read_op_offload(rules)
    assert rules.is_off == (given is False)


@pytest.mark.parametrize(
    "given", [0, -1, 1 << 31, 1.5, "x", "", "cuda:0=", "=3", "a=b", [32], {"gpu": None}, {"": 3}]
)
def test_what_is_none(given: Any) -> None:
    with pytest.raises(ScheduleError, match=r"^op_offload is \S+; write on, off, a least batch"):
        read_op_offload(given)


def test_names_that_there_are_not() -> None:
    devices = [gpu(), cpu()]
    with pytest.raises(ScheduleError, match=r"op_offload names the device cuda:0.* gpu, cpu"):
        op_offload_for(devices, {"cuda:0": 64})
    with pytest.raises(ScheduleError, match=r"op_offload names the op MULMAT.* MUL_MAT"):
        op_offload_for(devices, "MULMAT@gpu=64")
    assert op_offload_for(devices, "g*=64").rules[0].least == 64
    assert list(OpOffload().batches) == [] and list(read_op_offload("gpu=4,*=off").batches) == [4]
