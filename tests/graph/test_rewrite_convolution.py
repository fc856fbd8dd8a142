"""Rewrites of convolutions: what they must match, what they must not, and what comes out."""

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
from weft.graph.ops import Activation, ConvLastParams
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
FACTOR = f32(2, 1, 1, 4)


def conv(
    x: Tensor, low: float = -inf, high: float = inf, bias: bool = True, r: Tensor | None = None
) -> Tensor:
    """[8, 6, 5, 2] of [4, 6, 5, 2]."""
    added = weft.constant(B, "b") if bias else None
    return g.conv_2d_last(x, weft.constant(W, "w"), added, r, padding=1, low=low, high=high)


def runs(
    make: Make, device: str = "reference", data: dict[str, Any] | None = None
) -> tuple[Counter[str], list[StepSpec], float]:
    """Ops and steps with rewrites, and how far apart results with and without them are."""
    data = {"x": X, "r": R} if data is None else data
    chosen = Fusing() if device == "reference" else make_backend("cpu", target=device)
    results = []
    for names in ([], None):
        out = make(*(weft.input(name, data[name].shape) for name in "xr"))
        graph = weft.Graph(out.as_output("y"))
        inputs = {name: data[name] for name in graph.inputs}
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


FUNCTIONS = {
    "sigmoid": Activation.SIGMOID, "silu": Activation.SILU, "hardswish": Activation.HARDSWISH,
    "gelu": Activation.GELU, "gelu_erf": Activation.GELU_ERF, "hardsigmoid": Activation.HARDSIGMOID,
}  # fmt: skip
SHAPES = {
    "one tap": ((2, 5, 6, 20), (1, 1, 20, 70), 0, 1),
    "squares": ((1, 13, 14, 36), (3, 3, 36, 52), 1, 1),
    "depthwise": ((2, 9, 8, 37), (3, 3, 1, 37), 1, 37),
}
"""Data, kernel, padding and groups: each has a kernel of its own."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_have_the_bits_of_a_step(device: str, name: str, shape: str) -> None:
    sizes, kernel, padding, groups = SHAPES[shape]
    data = {"x": f32(*sizes), "r": f32(*sizes[:3], kernel[3])}
    w, b = f32(*kernel), f32(kernel[3])

    def make(x: Tensor, r: Tensor) -> Tensor:
        w_, b_ = weft.constant(w, "w"), weft.constant(b, "b")
        made = g.conv_2d_last(x, w_, b_, r, padding=padding, groups=groups)
        return getattr(g, name)(made)

    ops, [step], apart = runs(make, device, data)
    # the definition computes in float64 and rounds once less
    assert ops == {"CONV_2D_LAST": 1} and apart <= (2e-6 if device == "reference" else 0)
    assert isinstance(step.params, ConvLastParams)
    assert step.params.function is FUNCTIONS[name]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sides", [((0, 0, 1, 2), (1, 1, 0, 0)), ((1, 2, 0, 0), (0, 3, 1, 1))])
def test_zeros_around_the_data_are_padding(device: str, sides: Any) -> None:
    (left, right, up, down), pads = sides[0], sides[1]

    def make(x: Tensor, _: Tensor) -> Tensor:
        x = g.pad_nd(x, (0, left, up, 0), (0, right, down, 0))
        return g.conv_2d_last(x, weft.constant(W, "w"), padding=pads[:2], padding_after=pads[2:])

    ops, [step], apart = runs(make, device)
    assert ops == {"CONV_2D_LAST": 1} and apart == 0
    assert isinstance(step.params, ConvLastParams)
    assert step.params.padding == (left + pads[0], up + pads[1])
    assert step.params.padding_after == (right + pads[2], down + pads[3])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "sizes", [(3, 7, 8, 33, 70), (2, 1, 1, 300, 5), (5, 10, 9, 24, 64)], ids=str
)
def test_a_factor_for_each_channel_and_image(device: str, sizes: tuple[int, ...]) -> None:
    n, h, w, c, out = sizes
    data = {"x": f32(n, h, w, c), "r": f32(n, 1, 1, c)}
    kernel, row = f32(1, 1, c, out), f32(out)

    def make(x: Tensor, r: Tensor) -> Tensor:
        k, b = weft.constant(kernel, "w"), weft.constant(row, "b")
        return g.pointwise("relu6", g.conv_2d_last(g.mul(x, r), k, b))

    ops, [step], apart = runs(make, device, data)
    assert ops == {"CONV_2D_LAST": 1} and len(step.src) == 5 and apart < 2e-5
    assert bounds(step) == (0.0, 6.0)


def test_a_factor_for_each_pixel_is_none_for_each_channel() -> None:
    data = {"x": f32(2, 2, 3, 6), "r": f32(2, 6, 1)}  # as many pixels as channels
    kernel = f32(1, 1, 6, 8)

    def make(x: Tensor, r: Tensor) -> Tensor:
        product = g.mul(g.reshape(x, 6, 6, 2, 1), r)
        return g.conv_2d_last(g.reshape(product, 6, 3, 2, 2), weft.constant(kernel, "w"))

    ops, _, apart = runs(make, data=data)
    assert ops == {"CONV_2D_LAST": 1, "MUL": 1} and apart == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_factor_and_a_residual(device: str) -> None:
    kernel = f32(1, 1, 4, 8)

    def make(x: Tensor, r: Tensor) -> Tensor:
        factor = g.sigmoid(g.reduce("mean", x, (1, 2)))
        made = g.conv_2d_last(g.mul(x, factor), weft.constant(kernel, "w"))
        return g.add(made, r)

    ops, steps, apart = runs(make, device)
    assert ops["CONV_2D_LAST"] == 1 and not {"MUL", "ADD"} & ops.keys() and apart < 1e-5
    assert len(steps[-1].src) == 5


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
    "another function": (lambda x, _: g.softplus(conv(x)), {"UNARY": 1}),
    "a function of a limited one": (lambda x, _: g.silu(conv(x, 0.0, 6.0)), {"UNARY": 1}),
    "padding with ones": (
        lambda x, _: conv(g.pad_nd(x, (0, 1, 0, 0), (0, 0, 0, 0), value=1.0)),
        {"PAD_ND": 1},
    ),
    "less data": (lambda x, _: conv(g.pad_nd(x, (0, -1, 0, 0), (0, 0, 0, 0))), {"PAD_ND": 1}),
    "a factor before several taps": (
        lambda x, _: conv(g.mul(x, weft.constant(FACTOR, "f"))),
        {"MUL": 1},
    ),
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
