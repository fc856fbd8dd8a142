"""Convolutions, pooling and windows, on every target."""

from itertools import product

import numpy as np
import pytest
from golden import needs_vectors
from graph_ops import Leaves, agree, recorded_cases_fail
from harness import Operand, refusal, result, run_op

from tests.targets import BUT_PRODUCTS, TARGETS
from weft import graph as g
from weft.graph import Tensor
from weft.graph.params import pack
from weft.graph.rewrite.general import GENERAL, general_form

OPS = (
    *("IM2COL", "IM2COL_3D", "COL2IM_1D", "CONV_2D", "CONV_2D_DW", "CONV_3D"),
    *("CONV_TRANSPOSE_1D", "CONV_TRANSPOSE_2D", "POOL_1D", "POOL_2D"),
    *("WIN_PART", "WIN_UNPART", "GET_REL_POS"),
)

F16_RESULT = 1e-6
"""NMSE of rounding to f16 from float32 instead of float64: rare ties go the other way."""


@needs_vectors
@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("op", OPS)
def test_recorded_cases(op: str, target: str) -> None:
    wrong = recorded_cases_fail(op, target)
    assert not wrong, "\n".join(wrong)


def image(leaves: Leaves, w: int, h: int, c: int, n: int, *, channels_first: bool) -> Tensor:
    """[w, h, c, n], its memory with width or with channels innermost."""
    if not channels_first:
        return leaves.normal(w, h, c, n)
    return g.permute(leaves.normal(c, w, h, n), 2, 0, 1, 3)


# (data w, h, c, n), (kw, kh, out channels), stride, padding, dilation
CONVOLUTIONS = [
    ((1, 1, 1, 1), (1, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((33, 9, 3, 2), (3, 3, 5), (1, 1), (1, 1), (1, 1)),
    ((17, 21, 40, 1), (3, 3, 19), (2, 2), (1, 1), (1, 1)),  # more taps than a panel is deep
    ((40, 6, 4, 1), (5, 2, 33), (3, 1), (4, 0), (2, 3)),
    ((7, 7, 70, 1), (1, 1, 66), (1, 1), (0, 0), (1, 1)),
    ((5, 4, 2, 1), (2, 3, 4), (1, 2), (6, 5), (3, 1)),  # outputs that see padding only
]


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("kernel_type", ["f32", "f16"])
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=lambda s: "x".join(map(str, s[0])))
def test_conv_2d(shape: tuple, kernel_type: str, channels_first: bool) -> None:
    (w, h, c, n), (kw, kh, oc), *steps = shape
    leaves = Leaves(w + kw)
    kernel = leaves.normal(kw, kh, c, oc, dtype=kernel_type)
    data = image(leaves, w, h, c, n, channels_first=channels_first)
    agree(g.conv_2d(kernel, data, *steps), leaves)


@pytest.mark.parametrize("kernel_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("size", "taps", "channels", "stride", "padding", "dilation"),
    [
        ((6, 5, 4), (3, 2, 2), (3, 4, 2), (1, 2, 1), (1, 0, 1), (1, 1, 1)),
        ((19, 3, 7), (2, 3, 3), (2, 6, 1), (2, 1, 3), (0, 2, 4), (3, 1, 2)),
        ((9, 8, 6), (3, 3, 3), (11, 2, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ],
)
def test_conv_3d(
    size: tuple, taps: tuple, channels: tuple, stride: tuple, padding: tuple, dilation: tuple,
    kernel_type: str,
) -> None:  # fmt: skip
    c, oc, n = channels
    leaves = Leaves(3)
    kernel = leaves.normal(*taps, c * oc, dtype=kernel_type)
    data = leaves.normal(*size, c * n)
    steps = (stride, padding, dilation)
    agree(g.conv_3d(kernel, data, *steps, n_channels=c, n_batch=n, n_channels_out=oc), leaves)
    for dtype, limit in (("f32", 0.0), ("f16", F16_RESULT)):
        agree(g.im2col_3d(kernel, data, c, *steps, dtype=dtype), leaves, limit)


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("kernel_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding", "dilation"),
    [
        ((17, 14, 9, 1), (3, 3), (1, 1), (0, 0), (1, 1)),
        ((40, 5, 35, 2), (5, 2), (2, 3), (3, 1), (1, 2)),
        ((3, 3, 1, 3), (3, 3), (1, 1), (4, 4), (1, 1)),
    ],
)
def test_conv_2d_dw(
    size: tuple, taps: tuple, stride: tuple, padding: tuple, dilation: tuple, kernel_type: str,
    channels_first: bool,
) -> None:  # fmt: skip
    leaves = Leaves(sum(size))
    c = size[2]
    if channels_first:
        kernel = g.permute(leaves.normal(c, *taps, 1, dtype=kernel_type), 3, 0, 1, 2)
    else:
        kernel = leaves.normal(*taps, 1, c, dtype=kernel_type)
    data = image(leaves, *size, channels_first=channels_first and c > 1)
    agree(g.conv_2d_dw(kernel, data, stride, padding, dilation), leaves)


@pytest.mark.parametrize("kernel_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("w", "taps", "oc", "c", "stride"),
    [
        (1, 1, 1, 1, 1),
        (7, 3, 4, 2, 5),  # gaps between the taps
        (150, 16, 6, 20, 8),
        (300, 3, 21, 300, 1),
        (900, 2, 1, 3, 2),
        (9, 700, 2, 5, 3),  # taps reach over many positions
    ],
)
def test_conv_transpose_1d(
    w: int, taps: int, oc: int, c: int, stride: int, kernel_type: str
) -> None:
    leaves = Leaves(w)
    kernel, data = leaves.normal(taps, oc, c, dtype=kernel_type), leaves.normal(w, c)
    agree(g.conv_transpose_1d(kernel, data, stride), leaves)


@pytest.mark.parametrize("kernel_type", ["f32", "f16"])
@pytest.mark.parametrize(
    ("size", "taps", "oc", "stride"),
    [
        ((5, 4, 4, 2), (3, 3), 2, 1),
        ((70, 3, 2, 1), (2, 2), 9, 2),
        ((6, 5, 17, 1), (4, 1), 5, 3),
        ((3, 4, 2, 2), (2, 7), 3, 4),
    ],
)
def test_conv_transpose_2d(
    size: tuple, taps: tuple, oc: int, stride: int, kernel_type: str
) -> None:
    leaves = Leaves(sum(size))
    kernel = leaves.normal(*taps, oc, size[2], dtype=kernel_type)
    agree(g.conv_transpose_2d(kernel, leaves.normal(*size), stride), leaves)


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [("f32", 0.0), ("f16", F16_RESULT)])
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=lambda s: "x".join(map(str, s[0])))
def test_im2col(shape: tuple, dtype: str, limit: float, channels_first: bool) -> None:
    (w, h, c, n), (kw, kh, oc), *steps = shape
    leaves = Leaves(w + kw)
    kernel = leaves.normal(kw, kh, c, oc, dtype="f16")
    data = image(leaves, w, h, c, n, channels_first=channels_first)
    agree(g.im2col(kernel, data, *steps, dtype=dtype), leaves, limit)


@pytest.mark.parametrize("data_type", ["f32", "f16"])
def test_im2col_1d(data_type: str) -> None:
    leaves = Leaves(1)
    kernel, data = leaves.normal(4, 7, 2), leaves.normal(50, 7, 3, dtype=data_type)
    for stride, padding, dilation in product((1, 3), (0, 5), (1, 2)):
        node = g.im2col(kernel, data, (stride, 0), (padding, 0), (dilation, 0), is_2d=False)
        agree(node, leaves, 0.0)


@pytest.mark.parametrize(("dtype", "limit"), [("f32", 1e-11), ("f16", F16_RESULT), ("bf16", 1e-4)])
@pytest.mark.parametrize(
    ("oc", "taps", "length", "stride", "padding"),
    [(4, 5, 7, 2, 1), (1, 16, 300, 8, 4), (3, 2, 40, 5, 0), (2, 9, 3, 1, 5)],
)
def test_col2im_1d(
    oc: int, taps: int, length: int, stride: int, padding: int, dtype: str, limit: float
) -> None:
    leaves = Leaves(oc)
    cols = leaves.normal(oc * taps, length, dtype=dtype)
    agree(g.col2im_1d(cols, stride=stride, oc=oc, padding=padding), leaves, limit)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("op", ["max", "avg"])
def test_pools(op: str, dtype: str) -> None:
    leaves = Leaves(2)
    x = leaves.normal(23, 11, 3, 2, dtype=dtype)
    for k, s, p in ((1, 1, 0), (4, 3, 2), (3, 5, 6), (23, 1, 0)):
        agree(g.pool_1d(x, op, k, s, p), leaves)
    for ks, ss, ps in (
        ((2, 2), (2, 2), (0, 0)),
        ((3, 5), (1, 4), (2, 7)),
        ((23, 11), (1, 1), (0, 0)),
    ):
        agree(g.pool_2d(x, op, *ks, *ss, *ps), leaves)


@pytest.mark.parametrize("channels", [3, 16, 91])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pools_with_channels_first(kind: str, channels: int) -> None:
    leaves = Leaves(channels)
    x = leaves.normal(channels, 9, 7, 2)
    agree(g.pool_nd(kind, x, [1, 3, 3], [1, 2, 2], [0, 1, 1]), leaves)
    agree(g.pool_nd(kind, x, [1, 2, 3], [1, 3, 1], count_include_pad=False), leaves)
    if kind == "max":
        values = np.zeros((7, 9, channels), np.float32)
        values[3, 4, -1] = np.nan
        holes = Leaves(channels)
        node = g.pool_nd(kind, holes.put(values, "f32"), [1, 3, 3], [1, 3, 3])
        operand = holes.operand(node.src[0])
        for target in TARGETS:
            got = run_op("POOL_ND", result("f32", node.ne), [operand], pack(node.params), target)
            nans = np.argwhere(np.isnan(got.reshape(2, 3, channels)))
            assert nans.tolist() == [[1, 1, channels - 1]], target


@pytest.mark.parametrize(
    ("n", "width", "height", "w"), [(6, 9, 7, 4), (33, 5, 5, 5), (2, 3, 8, 11)]
)
def test_windows_and_back(n: int, width: int, height: int, w: int) -> None:
    leaves = Leaves(n)
    x = leaves.normal(n, width, height)
    windows = g.win_part(x, w)
    agree(windows, leaves, 0.0)
    parts = Leaves(n)
    agree(g.win_unpart(parts.normal(*windows.ne), width, height, w), parts, 0.0)


@pytest.mark.parametrize(("n", "q"), [(8, 1), (5, 4), (64, 14)])
def test_relative_positions(n: int, q: int) -> None:
    leaves = Leaves(n)
    agree(g.get_rel_pos(leaves.normal(n, 2 * q - 1, dtype="f16"), q, q), leaves, 0.0)


def test_a_maximum_keeps_nan() -> None:
    leaves = Leaves(0)
    values = leaves.rng.standard_normal((2, 12))
    values[0, 4] = np.nan
    node = g.pool_1d(leaves.put(values, "f32"), "max", 3, 3)
    operand = leaves.operand(node.src[0])
    for target in TARGETS:
        got = run_op("POOL_1D", result("f32", node.ne), [operand], pack(node.params), target)
        assert np.isnan(got[0, 0]).tolist() == [[False, True, False, False], [False] * 4]


def refused(node: Tensor, leaves: Leaves, params: list[float]) -> str | None:
    sources: list[Operand | None] = [leaves.operand(s) for s in node.src if s is not None]
    return refusal(node.op.name, result(node.dtype.name, node.ne), sources, params)


def general(node: Tensor) -> Tensor:
    """What is computed for a node."""
    (form,) = general_form(node, GENERAL)
    return form


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), 1e300])
def test_refuses_steps_that_cannot_be(bad: float) -> None:
    leaves = Leaves(0)
    node = general(g.conv_2d(leaves.normal(3, 3, 2, 2), leaves.normal(9, 9, 2, 1)))
    good = pack(node.params)  # dims, channels, groups, then strides
    assert refused(node, leaves, good) is None
    assert "stride" in str(refused(node, leaves, [*good[:3], bad, *good[4:]]))
    assert refused(node, leaves, good[:4]) is not None
    pooled = general(g.pool_2d(leaves.normal(9, 9, 2, 1), "max", 2, 2, 2, 2))
    kind, dims, _, *rest = pack(pooled.params)
    assert "window" in str(refused(pooled, leaves, [kind, dims, bad, *rest]))
    parts = g.win_part(leaves.normal(3, 9, 7), 4)
    assert "window" in str(refused(parts, leaves, [bad]))


def test_refuses_results_of_another_shape() -> None:
    leaves = Leaves(0)
    kernel, data = leaves.normal(3, 3, 2, 5), leaves.normal(9, 9, 2, 1)
    node = general(g.conv_2d(kernel, data))
    sources = [leaves.operand(data), leaves.operand(kernel)]
    params = pack(node.params)
    assert "channels" in str(refusal("CONV_ND", result("f32", (7, 7, 4, 1)), sources, params))
    assert "f32" in str(refusal("CONV_ND", result("i32", node.ne), sources, params))
