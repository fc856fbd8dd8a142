"""CONV_ND, POOL_ND and INTERPOLATE say what PyTorch says."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tensor_run import DEVICES, check, integers, normal, run, torch

import weft.graph as g
from weft.errors import GraphError

F = torch.nn.functional
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def folded(t: Any, dims: int) -> Any:
    """Three spatial dimensions: batch and channels in one."""
    return t.flatten(0, 1) if dims == 3 else t


def convolve(
    x: Any, w: Any, b: Any, device: str, *, transposed: bool = False, **options: Any
) -> Any:
    dims = x.dim() - 2
    turned = {
        k: v[::-1] if isinstance(v, tuple) else v for k, v in options.items() if k != "groups"
    }

    def build(t: g.Tensor, k: g.Tensor, *bias: g.Tensor) -> g.Tensor:
        return g.conv_nd(
            t, k, bias[0] if bias else None, dims=dims, channels=x.shape[1],
            groups=options.get("groups", 1), transposed=transposed, **turned,
        )  # fmt: skip

    more = [] if b is None else [b]
    return run(build, folded(x, dims), folded(w, dims), *more, device=device)


CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = {1: (19,), 2: (13, 17), 3: (5, 7, 9)}
OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2},
    {"stride": 3},
    {"stride": 2, "dilation": 2, "padding": 3},
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(dims: int, device: str) -> None:
    for (c_in, c_out, groups), options in itertools.product(
        ((6, 4, 1), (6, 9, 3), (8, 8, 8), (4, 8, 4), (3, 21, 1)), OPTIONS
    ):
        for kernel in (1, 3):
            x = normal(2, c_in, *SIZES[dims])
            w = normal(c_out, c_in // groups, *[kernel] * dims)
            b = normal(c_out) if kernel == 3 else None
            got = convolve(x, w, b, device, groups=groups, **options)
            want = CONV[dims](x, w, b, groups=groups, **options)
            check(got, folded(want, dims), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_convolution_with_other_numbers_along_each_axis(device: str) -> None:
    x, w, b = normal(2, 5, 14, 19), normal(7, 5, 2, 4), normal(7)
    options = {"stride": (1, 3), "padding": (2, 1), "dilation": (3, 2)}
    check(convolve(x, w, b, device, **options), F.conv2d(x, w, b, **options), 2e-5, 2e-5)
    x, w = normal(2, 4, 6, 7, 9), normal(6, 2, 1, 2, 3)
    options3 = {"stride": (1, 2, 3), "padding": (0, 1, 2), "dilation": (1, 2, 1)}
    got = convolve(x, w, None, device, groups=2, **options3)
    check(got, folded(F.conv3d(x, w, groups=2, **options3), 3), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_bigger_convolutions(device: str) -> None:
    for c_in, c_out, size, kernel, groups, stride in (
        (16, 40, 30, 3, 1, 1),
        (40, 70, 15, 1, 1, 1),
        (40, 24, 15, 1, 1, 2),
        (3, 33, 40, 7, 1, 2),
        (64, 64, 20, 3, 64, 1),
        (64, 64, 20, 5, 64, 2),
        (32, 48, 12, 3, 4, 1),
    ):
        x, w, b = (
            normal(2, c_in, size, size + 3),
            normal(c_out, c_in // groups, kernel, kernel),
            normal(c_out),
        )
        options = {"stride": stride, "padding": kernel // 2, "groups": groups}
        want = F.conv2d(x.double(), w.double(), b.double(), **options).float()
        check(convolve(x, w, b, device, **options), want, 3e-5, 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution(dims: int, device: str) -> None:
    for (c_in, c_out, groups), options in itertools.product(
        ((6, 4, 1), (6, 9, 3), (8, 8, 8)),
        (
            {},
            {"stride": 2},
            {"stride": 2, "padding": 1, "output_padding": 1},
            {"stride": 3, "padding": 1, "dilation": 2, "output_padding": 2},
            {"dilation": 2},
        ),
    ):
        x = normal(2, c_in, *[max(3, n // 2) for n in SIZES[dims]])
        w, b = normal(c_in, c_out // groups, *[3] * dims), normal(c_out)
        got = convolve(x, w, b, device, transposed=True, groups=groups, **options)
        want = TRANSPOSED[dims](x, w, b, groups=groups, **options)
        check(got, folded(want, dims), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_convolution_of_16_bit_floats_and_views(device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x, w, b = (
            normal(2, 6, 9, 11, dtype=dtype),
            normal(8, 6, 3, 3, dtype=dtype),
            normal(8, dtype=dtype),
        )
        want = F.conv2d(x.float(), w.float(), b.float(), padding=1).to(dtype)
        check(convolve(x, w, b, device, padding=1), want, TOLERANCE[dtype], TOLERANCE[dtype])
    # channels last, seen as channels first
    x, w = normal(2, 9, 11, 6), normal(8, 6, 3, 3)
    got = run(
        lambda t, k: g.conv_nd(g.permute(t, 2, 0, 1, 3), k, dims=2, padding=1), x, w, device=device
    )
    check(got, F.conv2d(x.permute(0, 3, 1, 2), w, padding=1), 2e-5, 2e-5)


AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
LARGEST = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_average_pooling(dims: int, device: str) -> None:
    x = normal(2, 3, *SIZES[dims])
    for kernel, stride, padding, ceil, count in itertools.product(
        (2, 3), (1, 2), (0, 1), (False, True), (False, True)
    ):
        options = {"ceil_mode": ceil, "count_include_pad": count}
        window = ([kernel] * dims, stride, padding)
        got = run(
            lambda t, w=window, o=options: g.pool_nd("avg", t, *w, **o),
            folded(x, dims),
            device=device,
        )
        want = AVERAGE[dims](x, kernel, stride, padding, ceil, count)
        check(got, folded(want, dims), 2e-6, 2e-6)
    if dims > 1:
        got = run(
            lambda t: g.pool_nd("avg", t, [3] * dims, divisor=5), folded(x, dims), device=device
        )
        check(got, folded(AVERAGE[dims](x, 3, divisor_override=5), dims), 2e-6, 2e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_pooling_and_its_places(dims: int, device: str) -> None:
    x = integers(9, 2, 3, *SIZES[dims], dtype=torch.float32)  # with ties
    x.view(-1)[11] = float("nan")
    x.view(-1)[70:90] = float("-inf")
    for kernel, stride, padding, dilation, ceil in itertools.product(
        (2, 3), (1, 2), (0, 1), (1, 2), (False, True)
    ):
        want, at = LARGEST[dims](x, kernel, stride, padding, dilation, ceil, return_indices=True)
        for kind, expected in (("max", want), ("max_index", at)):
            window = ([kernel] * dims, stride, padding, dilation)
            got = run(
                lambda t, k=kind, w=window, c=ceil: g.pool_nd(k, t, *w, ceil_mode=c),
                folded(x, dims),
                device=device,
            )
            check(got, folded(expected, dims), exact=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_pooling(dims: int, device: str) -> None:
    average = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
    largest = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
    x = normal(2, 3, *SIZES[dims])
    for sizes in ([1] * dims, [4, 3, 5][:dims], [7, 11, 2][:dims]):
        want, at = largest[dims](x, sizes, return_indices=True)
        for kind, expected in (("avg", average[dims](x, sizes)), ("max", want), ("max_index", at)):
            got = run(
                lambda t, k=kind, n=sizes[::-1]: g.adaptive_pool_nd(k, t, n),
                folded(x, dims),
                device=device,
            )
            check(got, folded(expected, dims), 2e-6, 2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_pooling_of_integers_and_16_bits(device: str) -> None:
    x = integers(100, 2, 3, 9, 9, low=-100, dtype=torch.int64)
    got = run(lambda t: g.pool_nd("max", t, [3, 3], 2, 1), x, device=device)
    check(got, F.max_pool2d(x.double(), 3, 2, 1).long(), exact=True)
    for dtype in (torch.float16, torch.bfloat16):
        x = normal(2, 3, 9, 9, dtype=dtype)
        got = run(lambda t: g.pool_nd("avg", t, [3, 3], 2), x, device=device)
        want = F.avg_pool2d(x.float(), 3, 2).to(dtype)
        check(got, want, TOLERANCE[dtype], TOLERANCE[dtype])


RESIZES = [
    ((13, 17), (26, 34)), ((13, 17), (5, 31)), ((7, 9), (7, 9)), ((6, 4), (1, 1)),
    ((1, 5), (3, 10)),
]  # fmt: skip


def resized(mode: str, sizes: Sequence[int], **more: Any) -> Callable[[g.Tensor], g.Tensor]:
    return lambda t: g.interpolate(mode, t, sizes[::-1], **more)


@pytest.mark.parametrize("device", DEVICES)
def test_interpolation_in_two_dimensions(device: str) -> None:
    for size, out in RESIZES:
        x = normal(2, 3, *size)
        for ours, theirs in (("nearest", "nearest"), ("nearest_exact", "nearest-exact")):
            got = run(resized(ours, out), x, device=device)
            check(got, F.interpolate(x, out, mode=theirs), exact=True)
        for ours, theirs in (("linear", "bilinear"), ("cubic", "bicubic")):
            for corners in (False, True):
                got = run(resized(ours, out, align_corners=corners), x, device=device)
                want = F.interpolate(x, out, mode=theirs, align_corners=corners)
                check(got, want, 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_interpolation_by_scale_and_in_other_dimensions(device: str) -> None:
    x = normal(2, 3, 10, 13)
    for scale in (1.7, 0.6, 2.0):
        out = [int(n * scale) for n in x.shape[2:]]
        for ours, theirs in (("nearest", "nearest"), ("linear", "bilinear"), ("cubic", "bicubic")):
            got = run(resized(ours, out, scales=[scale, scale]), x, device=device)
            check(got, F.interpolate(x, scale_factor=scale, mode=theirs), 2e-5, 2e-5)
    x = normal(2, 3, 20)
    for ours, theirs in (("nearest", "nearest"), ("linear", "linear")):
        got = run(resized(ours, (33,)), x, device=device)
        check(got, F.interpolate(x, 33, mode=theirs), 2e-5, 2e-5)
    x = normal(2, 3, 4, 5, 6)
    for ours, theirs in (("nearest", "nearest"), ("linear", "trilinear")):
        got = run(resized(ours, (7, 3, 12)), folded(x, 3), device=device)
        check(got, folded(F.interpolate(x, (7, 3, 12), mode=theirs), 3), 2e-5, 2e-5)
    for dtype in (torch.float16, torch.bfloat16):
        x = normal(2, 3, 9, 9, dtype=dtype)
        got = run(resized("linear", (13, 5)), x, device=device)
        want = F.interpolate(x.float(), (13, 5), mode="bilinear").to(dtype)
        check(got, want, TOLERANCE[dtype], TOLERANCE[dtype])


def test_shapes_are_checked() -> None:
    x, w = g.input("x", [2, 6, 9, 9]), g.input("w", [4, 6, 3, 3])
    n = g.Sym("n", 1, 8)
    assert g.conv_nd(g.input("y", [n, 6, 9, 9]), w, dims=2).ne == (7, 7, 4, n.size)
    with pytest.raises(GraphError, match="not for 6 channels in 2 groups"):
        g.conv_nd(x, w, dims=2, groups=2)
    with pytest.raises(GraphError, match="split into 4 groups"):
        g.conv_nd(x, w, dims=2, groups=4)
    with pytest.raises(GraphError, match="larger than the padded data"):
        g.conv_nd(x, g.input("k", [4, 6, 11, 3]), dims=2)
    with pytest.raises(GraphError, match=r"bias must be \[4\]"):
        g.conv_nd(x, w, g.input("b", [6]), dims=2)
    with pytest.raises(GraphError, match="channels="):
        g.conv_nd(x, w, dims=3)
    with pytest.raises(GraphError, match="stride takes 2 numbers"):
        g.conv_nd(x, w, dims=2, stride=[0, 1])
    with pytest.raises(GraphError, match="more than half"):
        g.pool_nd("max", x, [2, 2], padding=2)
    with pytest.raises(GraphError, match="cubic takes 2"):
        g.interpolate("cubic", x, [9])
