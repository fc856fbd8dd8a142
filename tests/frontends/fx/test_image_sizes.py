"""Networks of convolutions and pools whose height and width are dynamic equal eager PyTorch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from tests.frontends.fx.image_networks import NETWORKS, images, sizes_in  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


SQUARE = {False: "any", True: "square"}
FIRST = [("strides", False), ("ceil_max_behind", False), ("resnet", False), ("ceil_avg", True)]
"""Every kind of layer, and a size of one symbol and of two; the others are a part."""


def network(name: str, square: bool) -> Any:
    """A network and its kind of sizes as a parameter."""
    marks = () if (name, square) in FIRST else pytest.mark.part("programs")
    return pytest.param(name, square, id=f"{name}-{SQUARE[square]}", marks=marks)


@pytest.mark.parametrize(
    ("name", "square"), [network(name, square) for name in NETWORKS for square in SQUARE]
)
def test_any_height_and_width(name: str, square: bool) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name]().eval()
    example = torch.randn(1, 3, 64, 64 if square else 80)
    f = weft.from_torch(module, (example,), dynamic_shapes=(sizes_in(name, square),))
    for x in images(square):
        with torch.no_grad():
            want = module(x)
        torch.testing.assert_close(f(x), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize(
    "name",
    ["ceil_max", "ceil_avg", pytest.param("squeezenet", marks=pytest.mark.part("programs"))],
)
def test_a_pool_that_rounds_up_takes_sizes_that_leave_something_over(name: str) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name]().eval()
    h, w = (torch.export.Dim(n, min=40, max=160) for n in "hw")
    program = torch.export.export(
        module,
        (torch.randn(1, 3, 64, 80),),
        dynamic_shapes=({2: h, 3: w},),
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    f = weft.from_torch(program)
    for height, width in [(40, 41), (43, 66), (97, 160)]:
        x = torch.randn(1, 3, height, width)
        with torch.no_grad():
            torch.testing.assert_close(f(x), module(x), rtol=1e-4, atol=1e-5)
