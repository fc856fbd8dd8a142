"""conv-add and conv-clamp: what they must match, what they must not, and what comes out."""

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

import weft
from weft import _native
from weft import graph as g
from weft.backends import make_backend
from weft.backends.reference.backend import ReferenceBackend
from weft.graph.ops import ConvLastParams
from weft.graph.rewrite import REWRITES
from weft.program import StepSpec

RNG = np.random.default_rng(0)
TARGETS = [name for name, score in _native.targets() if score]
DEVICES = ["reference", *TARGETS]

Tensor = weft.Tensor
Make = Callable[[Tensor, Tensor], Tensor]
"""A graph of x [4, 6, 5, 2] and r, of the size of the convolution."""


class Fusing(ReferenceBackend):
    """The definition of every op, with all rewrites."""

    rewrites = tuple(REWRITES)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


X, R = f32(2, 5, 6, 4), f32(2, 5, 6, 8)
W, B, ROW = f32(3, 3, 4, 8), f32(8), f32(1, 1, 1, 8)


def conv(
    x: Tensor, low: float = -inf, high: float = inf, bias: bool = True, r: Tensor | None = None
) -> Tensor:
    """[8, 6, 5, 2] of [4, 6, 5, 2]."""
    added = weft.constant(B, "b") if bias else None
    return g.conv_2d_last(x, weft.constant(W, "w"), added, r, padding=1, low=low, high=high)


def runs(make: Make, device: str = "reference") -> tuple[Counter[str], list[StepSpec], float]:
    """Ops and steps with rewrites, and how far apart results with and without them are."""
    chosen = Fusing() if device == "reference" else make_backend("cpu", target=device)
    results = []
    for names in ([], None):
        out = make(weft.input("x", X.shape), weft.input("r", R.shape))
        graph = weft.Graph(out.as_output("y"))
        inputs = {name: {"x": X, "r": R}[name] for name in graph.inputs}
        program = weft.compile(graph, [chosen], rewrites=names)
        results.append(weft.Session(program).run(inputs)["y"])
    steps = [step for split in program.splits for step in split.steps]
    return Counter(s.op.name for s in steps), steps, float(np.abs(results[0] - results[1]).max())


def bounds(step: StepSpec) -> tuple[float, float]:
    assert isinstance(step.params, ConvLastParams)
    return step.params.low, step.params.high


# -- what is matched -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_sum_of_the_same_size(device: str, bias: bool, swapped: bool) -> None:
    def make(x: Tensor, r: Tensor) -> Tensor:
        pair = (conv(x, bias=bias), r)
        return g.add(*(pair[::-1] if swapped else pair))

    ops, [step], apart = runs(make, device)
    assert ops == {"CONV_2D_LAST": 1} and len(step.src) == 4 and apart < 1e-5
    assert (step.src[2] < 0) is not bias


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("limited", "expected"),
    [
        (lambda t: g.pointwise("relu", t), (0.0, inf)),
        (lambda t: g.pointwise("relu6", t), (0.0, 6.0)),
        (lambda t: g.pointwise("clamp", t, -0.25, 0.5), (-0.25, 0.5)),
        (lambda t: g.pointwise("clamp", t, -inf, 0.5), (-inf, 0.5)),
        (lambda t: g.clamp(t, -0.25, 0.5), (-0.25, 0.5)),
        (g.relu, (0.0, inf)),
    ],
)
def test_bounds(device: str, limited: Any, expected: tuple[float, float]) -> None:
    ops, [step], apart = runs(lambda x, _: limited(conv(x)), device)
    assert ops == {"CONV_2D_LAST": 1} and bounds(step) == expected and apart == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_of_a_residual_net(device: str) -> None:
    ops, [step], apart = runs(lambda x, r: g.pointwise("relu", g.add(conv(x), r)), device)
    assert ops == {"CONV_2D_LAST": 1} and bounds(step) == (0.0, inf) and apart < 1e-5


def test_a_sum_of_two_convolutions_takes_one_of_them() -> None:
    ops, steps, apart = runs(lambda x, _: g.pointwise("relu6", g.add(conv(x), conv(x, bias=False))))
    assert ops == {"CONV_2D_LAST": 2} and apart < 1e-5
    assert sorted(bounds(s) for s in steps) == [(-inf, inf), (0.0, 6.0)]


# -- what is not -----------------------------------------------------------------------------------


UNMATCHED: dict[str, tuple[Make, dict[str, int]]] = {
    "a row is added": (lambda x, _: g.add(conv(x), weft.constant(ROW, "row")), {"ADD": 1}),
    "already within bounds": (lambda x, r: g.add(conv(x, 0.0, 6.0), r), {"ADD": 1}),
    "has a residual": (lambda x, r: g.add(conv(x, r=r), r), {"ADD": 1}),
    "read twice": (lambda x, r: twice(conv(x), lambda t: g.add(t, r)), {"ADD": 1, "MUL": 1}),
    "limited twice": (lambda x, _: g.pointwise("relu", conv(x, -1.0, 1.0)), {"MAP": 1}),
    "limited and read": (
        lambda x, _: twice(conv(x), lambda t: g.pointwise("relu", t)),
        {"MAP": 1, "MUL": 1},
    ),
    "another function": (lambda x, _: g.pointwise("sigmoid", conv(x)), {"UNARY": 1}),
    "a difference": (lambda x, r: g.sub(conv(x), r), {"SUB": 1}),
    "an output": (lambda x, _: g.pointwise("relu", conv(x).as_output("z")), {"MAP": 1}),
    "in other sizes": (
        lambda x, _: g.pointwise("relu", g.reshape(conv(x), 48, 10, 1, 1)),
        {"MAP": 1},
    ),
}


def twice(t: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return g.mul(function(t), t)


def test_a_sum_with_itself() -> None:
    def make(x: Tensor, r: Tensor) -> Tensor:
        t = conv(x)
        return g.add(t, t)

    ops, _, apart = runs(make)
    assert ops == {"CONV_2D_LAST": 1, "ADD": 1} and apart == 0


@pytest.mark.parametrize("name", UNMATCHED)
def test_what_stays(name: str) -> None:
    make, others = UNMATCHED[name]
    ops, _, apart = runs(make)
    assert ops == {"CONV_2D_LAST": 1, **others} and apart < 1e-5


def test_no_kernel_no_fusion() -> None:
    class Plain(ReferenceBackend):
        """Has no rewrites."""

    graph = weft.Graph(g.pointwise("relu", conv(weft.input("x", X.shape))).as_output("y"))
    program = weft.compile(graph, [Plain()])
    assert [s.op.name for s in program.splits[0].steps] == ["CONV_2D_LAST", "MAP"]
