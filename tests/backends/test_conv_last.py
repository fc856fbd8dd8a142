"""CONV_2D_LAST says what PyTorch says of data with channels last."""

import itertools
from math import inf
from typing import Any

import pytest
from tensor_run import DEVICES, check, normal, run, torch

import weft.graph as g
from weft.errors import GraphError

F = torch.nn.functional


def convolve(
    x: Any, w: Any, b: Any, residual: Any, device: str, low: float, high: float, **options: Any
) -> Any:
    """Runs the convolution; input and result are [n, c, h, w], as in PyTorch."""
    present = [t is not None for t in (b, residual)]
    turned = {
        k: v[::-1] if isinstance(v, tuple) else v for k, v in options.items() if k != "groups"
    }

    def build(t: g.Tensor, k: g.Tensor, *more: g.Tensor) -> g.Tensor:
        rest = iter(more)
        bias, addend = (next(rest) if there else None for there in present)
        return g.conv_2d_last(
            t, k, bias, addend, low=low, high=high, groups=options.get("groups", 1), **turned
        )

    more = [] if b is None else [b]
    more += [] if residual is None else [residual.permute(0, 2, 3, 1)]
    turned_x, turned_w = x.permute(0, 2, 3, 1), w.permute(2, 3, 1, 0)
    got = run(build, turned_x, turned_w, *more, device=device)
    return got.reshape(x.shape[0], *got.shape[-3:]).permute(0, 3, 1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_convolution(kernel: int, device: str) -> None:
    for (c_in, c_out, depthwise), (stride, padding, dilation) in itertools.product(
        ((6, 4, False), (3, 35, False), (40, 40, True), (17, 17, True)),
        ((1, 0, 1), (1, 2, 1), (2, 1, 1), (2, 3, 2), (3, 0, 1)),
    ):
        x, w = normal(2, c_in, 13, 17), normal(c_out, 1 if depthwise else c_in, kernel, kernel)
        b = normal(c_out) if stride == 1 else None
        options: dict[str, Any] = {
            "stride": stride, "padding": padding, "dilation": dilation,
            "groups": c_in if depthwise else 1,
        }  # fmt: skip
        want = F.conv2d(x, w, b, **options)
        residual = normal(*want.shape, seed=3) if padding else None
        low, high = (0.0, 6.0) if dilation == 1 else (-inf, inf)
        got = convolve(x, w, b, residual, device, low, high, **options)
        want = want if residual is None else want + residual
        check(got, want.clamp(low, high), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_other_numbers_along_each_axis(device: str) -> None:
    x, w, b = normal(2, 5, 14, 19), normal(7, 5, 2, 4), normal(7)
    options = {"stride": (1, 3), "padding": (2, 1), "dilation": (3, 2)}
    got = convolve(x, w, b, None, device, -inf, inf, **options)
    check(got, F.conv2d(x, w, b, **options), 2e-5, 2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_not_a_number_passes_the_clamp(device: str) -> None:
    x = normal(1, 4, 3, 3)
    x[0, 1, 1, 1] = float("nan")
    w = normal(9, 4, 1, 1)
    got = convolve(x, w, None, None, device, 0.0, 6.0)
    check(got, F.conv2d(x, w).clamp(0.0, 6.0), 2e-5, 2e-5)
    assert got.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [(5, 80), (24, 141), (40, 150)], ids=str)
def test_panels_of_an_image_with_many_positions(channels: tuple[int, int], device: str) -> None:
    # as many as leave the output channels together
    x, w, b = normal(1, channels[0], 60, 61), normal(*channels[::-1], 1, 1), normal(channels[1])
    got = convolve(x, w, b, None, device, -1.0, inf)
    check(got, F.conv2d(x, w, b).clamp(min=-1.0), 2e-5, 2e-5)


SQUARES = [
    # channels in and out, height, width, padding: images that are computed in squares of 2 x 2
    (32, 64, 12, 12, 1),
    (37, 50, 13, 15, (0, 2)),
    (64, 160, 27, 9, (3, 1)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SQUARES, ids=str)
def test_squares(shape: tuple[Any, ...], device: str) -> None:
    c_in, c_out, h, w, padding = shape
    x, k, b = normal(2, c_in, h, w), normal(c_out, c_in, 3, 3), normal(c_out)
    want = F.conv2d(x, k, b, padding=padding)
    residual = normal(*want.shape, seed=3)
    got = convolve(x, k, b, residual, device, -20.0, 30.0, padding=padding)
    # OpenCL's compilers for processors add in the order that their vectors suggest
    check(got, (want + residual).clamp(-20.0, 30.0), 1e-4, 4e-5 if device == "opencl" else 2e-5)
    # no further from the exact result than sums one by one may be
    exact = F.conv2d(x.double(), k.double(), b.double(), padding=padding)
    plain = convolve(x, k, b, None, device, -inf, inf, padding=padding)
    assert (plain - exact).square().mean() < 2e-12 * exact.square().mean()


@pytest.mark.parametrize("device", DEVICES)
def test_squares_of_an_image_do_not_depend_on_the_batch(device: str) -> None:
    x, k = normal(7, 32, 14, 13), normal(48, 32, 3, 3)
    whole = convolve(x, k, None, None, device, -inf, inf, padding=1)
    for i in range(len(x)):
        alone = convolve(x[i : i + 1], k, None, None, device, -inf, inf, padding=1)
        assert torch.equal(alone[0], whole[i])


@pytest.mark.parametrize("device", DEVICES)
def test_only_outputs_that_see_a_value_depend_on_it(device: str) -> None:
    x, k = normal(1, 32, 14, 14), normal(32, 32, 3, 3)
    before = convolve(x, k, None, None, device, -inf, inf, padding=1)
    for y, x_ in itertools.product((0, 5, 6, 13), repeat=2):
        changed = x.clone()
        changed[0, 7, y, x_] = float("nan")
        after = convolve(changed, k, None, None, device, -inf, inf, padding=1)
        seen = torch.zeros(14, 14, dtype=torch.bool)
        seen[max(0, y - 1) : y + 2, max(0, x_ - 1) : x_ + 2] = True
        assert torch.equal(after.isnan(), seen.expand_as(after))
        assert torch.equal(after[:, :, ~seen], before[:, :, ~seen])


@pytest.mark.parametrize("device", DEVICES)
def test_symbolic_sizes(device: str) -> None:
    w, h, n = (g.Sym(s, 3, 40) for s in "whn")
    node = g.conv_2d_last(
        g.leaf("f32", [8, w.size, h.size, n.size], "x"),
        g.leaf("f32", [5, 8, 3, 3], "k"),
        stride=2,
        padding=1,
    )
    assert [g.evaluate(s, {"w": 9, "h": 12, "n": 3}) for s in node.ne] == [5, 5, 6, 3]


X, K = g.leaf("f32", [8, 9, 7, 2], "x"), g.leaf("f32", [12, 8, 3, 3], "k")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: g.conv_2d_last(X, K, groups=2), "groups must be 1 or 8"),
        (lambda: g.conv_2d_last(X, g.leaf("f32", [12, 7, 3, 3])), "not for 8 channels"),
        (lambda: g.conv_2d_last(X, g.leaf("f32", [16, 1, 3, 3]), groups=8), "not for 8 channels"),
        (lambda: g.conv_2d_last(X, g.leaf("f32", [12, 8, 3, 9])), "larger than the padded data"),
        (lambda: g.conv_2d_last(X, K, g.leaf("f32", [11])), r"bias must be \[12\]"),
        (lambda: g.conv_2d_last(X, K, residual=X), "of the result's shape"),
        (lambda: g.conv_2d_last(X, K, low=1, high=0), "low must not be above high"),
        (lambda: g.conv_2d_last(X, K, stride=0), "stride takes 2 numbers from 1 up"),
        (lambda: g.conv_2d_last(X, g.leaf("f16", [12, 8, 3, 3])), "f16"),
    ],
)
def test_refusals(build: Any, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        build()


@pytest.mark.parametrize("device", DEVICES)
def test_channels_that_are_not_side_by_side(device: str) -> None:
    x, w = normal(2, 6, 5, 7), normal(4, 6, 3, 3)
    # a permuted view: the constructor copies
    got = run(
        lambda t, k: g.conv_2d_last(g.permute(t, 1, 2, 0, 3), g.permute(k, 2, 3, 1, 0)),
        x, w, device=device,
    )  # fmt: skip
    check(got.permute(0, 3, 1, 2), F.conv2d(x, w), 2e-5, 2e-5)
