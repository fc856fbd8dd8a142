"""General forms: each says what its op says, devices run them, and nobody who reads a graph sees
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.targets import TARGETS
from weft import Session, compile, quants
from weft import graph as g
from weft._native import refusal
from weft.backends import Backend
from weft.backends.base import BackendBase
from weft.backends.cases import Case, all_cases
from weft.backends.cases.case import Sources
from weft.backends.kernels.ops import find_family
from weft.dtype import find_dtype
from weft.execute import Scheduler
from weft.execute.trial import disagreement
from weft.graph import Graph, Sym, Tensor
from weft.graph.op import OPS
from weft.graph.op_table import slots_of
from weft.graph.rewrite.general import GENERAL, general_form

Array = np.ndarray[Any, np.dtype[Any]]
CASES = [case for case in all_cases() if case.op in GENERAL]


def run(node: Tensor, data: dict[str, Array], devices: Sequence[str | Backend]) -> Array:
    graph = Graph(node.as_output("y"))
    return Session(compile(graph, devices)).run({name: data[name] for name in graph.inputs})["y"]


def test_every_form_is_tried() -> None:
    assert {case.op for case in CASES} == set(GENERAL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_form_says_what_its_op_says(case: Case) -> None:
    """Both by the definition: no kernel has a part in it."""
    sources = Sources()
    node = case.build(sources)
    *_, form = general_form(node, GENERAL)
    assert (form.dtype, form.ne, form.nb) == (node.dtype, node.ne, node.nb)
    want = run(node, sources.data, ["reference"])
    got = run(form, sources.data, ["reference"])
    assert not disagreement(got, want, node.dtype, max(case.limit, 1e-12))


def test_no_device_has_kernels_for_what_has_a_general_form() -> None:
    for op in OPS.values():
        if op.is_view or op.name == "NONE":
            continue
        some = (0, [1] * 4, [4] * 4)
        slots = 0 if op.params is None else sum(slot.count for slot in slots_of(op.params))
        why = refusal(TARGETS[0], op.number, some, [some] * max(1, op.min_src), [0.0] * slots)
        missing = why == "there is no native kernel for this op"
        assert missing == (op.name in GENERAL), f"cpu: {op.name}"
        assert (find_family(op.name) is None) or op.name not in GENERAL, f"opencl: {op.name}"
    kernels = [op for op in OPS.values() if not (op.is_view or op.name in ("NONE", *GENERAL))]
    assert len(kernels) == 88


def channels_innermost(sources: Sources) -> Tensor:
    """A convolution whose result becomes a view in general form."""
    kernel = g.permute(sources.normal(6, 1, 3, 3), 3, 2, 0, 1)
    return g.conv_2d_dw(kernel, g.permute(sources.normal(6, 9, 7, 2), 2, 0, 1, 3), padding=(1, 1))


@pytest.mark.parametrize("memory", ["best", "ggml"])
def test_a_form_may_be_a_view(memory: str) -> None:
    sources = Sources()
    node = channels_innermost(sources)
    part = g.view(node, (9, 7), node.nb[:2], 2 * node.nb[2])  # a view of what becomes a view
    outputs = {"y": g.scale(g.cont(part), 2.0), "z": g.scale(g.cont(node), -1.0)}
    graph = Graph(*(t.as_output(name) for name, t in outputs.items()), node.as_output("x"))
    want = Session(compile(graph, ["reference"])).run(sources.data)
    program = compile(graph, ["cpu"], memory=memory)
    got = Session(program).run(sources.data)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert program.plan.schedule.generalized == [("CONV_2D_DW", "CONV_2D_LAST")]


def test_graphs_keep_their_ops() -> None:
    """Names, outputs, placement and the op that is written stay; `explain` says what runs."""
    sources = Sources()
    node = g.conv_2d(sources.normal(3, 3, 4, 5), sources.normal(9, 8, 4, 1))
    node.name = "conv"
    graph = Graph(g.argsort(g.cont(node)).as_output("y"))
    program = compile(graph, ["cpu"])
    schedule = program.plan.schedule
    assert node.op is OPS["CONV_2D"]
    assert schedule.final_of(node).op is OPS["CONV_ND"]
    assert schedule.final_of(node).name == "conv"
    assert "in general form: 1 CONV_2D as CONV_ND, 1 ARGSORT as SORT_INDICES" in schedule.explain()
    assert schedule.to_json()["general"][0] == {"op": "CONV_2D", "as": "CONV_ND", "count": 1}


def test_they_need_no_rewrites() -> None:
    """A device has no other kernels, whatever fusions are left out."""
    sources = Sources()
    graph = Graph(g.sum_rows(sources.normal(8, 3)).as_output("y"))
    got = Session(compile(graph, ["cpu"], rewrites=[])).run(sources.data)["y"]
    want = next(iter(sources.data.values())).sum(-1, keepdims=True)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("watched", [False, True])
def test_the_scheduler_runs_them(watched: bool) -> None:
    sources = Sources()
    x = sources.normal(12, 3)
    y = g.pool_1d(x, "max", 3, 3)
    seen: list[Tensor] = []
    with Scheduler(["cpu"]) as scheduler:
        if watched:
            scheduler.set_eval_callback(lambda t, ask: bool(seen.append(t)) or True)
        (data,) = sources.data.values()
        scheduler.compute(Graph(y.as_output("y")), {x.name: data})
        got = scheduler.get("y")
    np.testing.assert_array_equal(got.reshape(3, 4), data.reshape(3, 4, 3).max(-1))
    assert (y in seen) == watched


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_nan_is_the_last_in_either_order(dtype: str, descending: bool) -> None:
    values = np.array([[3, np.nan, -np.inf, 7, np.nan, 5, np.inf, -2] * 8], np.float32)
    x = g.input("x", values.shape, "f32")
    order = g.argsort(x, "desc" if descending else "asc").as_output("y")
    got = Session(compile(Graph(order), ["cpu"])).run({"x": values})["y"].reshape(-1)
    signed = -values if descending else values
    np.testing.assert_array_equal(got, np.argsort(signed[0], kind="stable"))


class Plain(BackendBase):
    """Knows one general op."""

    name = "plain"
    kind = "GPU"
    generalizes = tuple(GENERAL)

    def why_not(self, node: Tensor) -> str | None:
        return None if node.op is OPS["CONV_ND"] else "no kernel for this op"


def test_a_device_is_asked_about_the_form() -> None:
    sources = Sources(with_data=False)
    conv = g.conv_3d(
        sources.normal(3, 3, 3, 6), sources.normal(5, 6, 7, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1),
        n_channels=2, n_batch=1, n_channels_out=3,
    )  # fmt: skip
    assert Plain().supports_op(conv)
    said = Plain().supports_op(g.sum(sources.normal(4)))
    assert not said
    assert said.why == "SUM on plain: as REDUCE: no kernel for this op"


def test_sizes_may_be_symbols() -> None:
    n = Sym("n", 1, 40)
    x = g.input("x", (3, n), "f32")
    y = g.pad(g.pool_1d(x, "avg", 1, 1), (1, 0), (2, 1))
    session = Session(compile(Graph(y.as_output("y")), ["cpu"]))
    for size in (1, 7, 40):
        data = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        got = session.run({"x": data})["y"]
        np.testing.assert_array_equal(got.reshape(4, size + 3), np.pad(data, [(0, 1), (1, 2)]))


def test_blocks_are_copied_as_they_are() -> None:
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    blocks = quants.encode(values, find_dtype("q8_0"))
    x = g.input("x", (4, 64), "q8_0")
    got = Session(compile(Graph(g.dup(x).as_output("y")), ["cpu"])).run({"x": blocks})["y"]
    np.testing.assert_array_equal(got.reshape(-1), blocks.reshape(-1))
