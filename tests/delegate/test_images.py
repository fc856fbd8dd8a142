"""Networks of convolutions in a .pte: channels last inside, one copy of the images at the start."""

import json
from collections import Counter

import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

from tests.delegate.zoo import ZOO
from tests.frontends.fx.image_networks import NETWORKS, images, sizes_in
from weft.cli.app import app

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


programs = pytest.mark.part("programs")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("resnet", {"CONT": 1, "CONV_2D_LAST": 9, "POOL_ND": 1, "REDUCE": 1, "MUL_MAT": 1}),
        pytest.param(
            "mobilenet",
            {"CONT": 1, "CONV_2D_LAST": 10, "REDUCE": 1, "MUL_MAT": 1},
            marks=programs,
        ),
    ],
)
def test_steps_of_a_network(lower, tmp_path, name, steps):
    torch.manual_seed(0)
    module, (x,) = ZOO[name]()
    lowered = lower(module, (x,), dynamic_shapes=({0: Dim("n", min=1, max=4)},))
    path = tmp_path / "model.pte"
    path.write_bytes(lowered.pte)
    result = CliRunner().invoke(app, ["explain", str(path), "--json"])
    [part] = json.loads(result.output)["methods"][0]["parts"]
    assert Counter(step["op"] for step in part["steps"]) == steps
    # steps are called as the nodes of the program are
    results = [step["result"] for step in part["steps"]]
    assert not any(result.startswith(("node", "leaf")) for result in results), results
    assert sum("relu" in result or "hardtanh" in result for result in results) == 7, results
    method = lowered.method()
    for n in (1, 2, 4):
        images = torch.randn(n, *x.shape[1:])
        want = module(images)
        [got] = method.execute([images])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


FIRST = ("strides", "ceil_max_behind")


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=programs) for name in NETWORKS]
)
def test_any_height_and_width(lower, name):
    torch.manual_seed(0)
    module = NETWORKS[name]().eval()
    lowered = lower(module, (torch.randn(1, 3, 64, 80),), dynamic_shapes=(sizes_in(name, False),))
    assert lowered.left() == []
    method = lowered.method()
    for x in images(False):
        with torch.no_grad():
            want = module(x)
        [got] = method.execute([x])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
