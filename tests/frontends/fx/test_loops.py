"""Branches and loops of PyTorch (`cond`, `while_loop`, `scan`, `map`), which are not unrolled."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops import associative_scan, scan, while_loop  # noqa: E402
from torch._higher_order_ops import map as mapped  # noqa: E402

import weft  # noqa: E402
from weft.graph.host import HOST  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class While(nn.Module):
    """As many steps as an argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any, n: Any) -> Any:
        def goes_on(i: Any, x: Any) -> Any:
            return i < n

        def step(i: Any, x: Any) -> Any:
            return i + 1, torch.tanh(self.layer(x))

        i, y = while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x * 2))
        return y * 2 + i


class Scan(nn.Module):
    """A plain recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = torch.tanh(self.layer(h) + x)
            return h, h * 2

        h, outputs = scan(step, h, x, dim=0)
        return h, outputs + 1


class Map(nn.Module):
    def forward(self, x: Any, w: Any) -> Any:
        return mapped(lambda x, w: torch.softmax(x @ w, -1), x, w) * 3


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,)) * 2


class Linear(nn.Module):
    """A linear recurrence by its associative form."""

    def forward(self, a: Any, b: Any) -> Any:
        def combine(p: Any, q: Any) -> Any:
            return p[0] * q[0], q[0] * p[1] + q[1]

        return associative_scan(combine, (a, b), 0, combine_mode="generic")[1] + 1


def inputs(name: str, n: int = 5) -> tuple[Any, ...]:
    x = torch.randn(n, 3, 8, generator=torch.Generator().manual_seed(n))
    return {
        "while": (x, torch.tensor(n)),
        "scan": (x, x[0] * 2),
        "map": (x, torch.eye(8) + 0.1),
        "cond": (x,),
        "associative": (x.sigmoid(), x),
    }[name]


MODULES = {
    "while": While(),
    "scan": Scan(),
    "map": Map(),
    "cond": Branch(),
    "associative": Linear(),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_loop_is_one_node(name: str) -> None:
    module = MODULES[name].eval()
    f = weft.from_torch(module, inputs(name))
    assert sum(node.op is HOST for node in f.graph.nodes) < 6
    with torch.no_grad():
        for sign in (1, -1):
            args = [a * sign if a.is_floating_point() else a + 4 for a in inputs(name)]
            torch.testing.assert_close(f(*args), module(*args))


@pytest.mark.parametrize("name", ["scan", "map"])
def test_the_number_of_steps_may_be_dynamic(name: str) -> None:
    module = MODULES[name].eval()
    n = torch.export.Dim("n", min=2, max=50)
    f = weft.from_torch(module, inputs(name), dynamic_shapes=({0: n}, None))
    with torch.no_grad():
        for steps in (2, 50, 9):
            torch.testing.assert_close(f(*inputs(name, steps)), module(*inputs(name, steps)))


def test_without_pytorch_a_loop_is_refused_by_name() -> None:
    with pytest.raises(weft.UnsupportedOpError, match=r"while_loop.*which ops run depends on data"):
        weft.from_torch(While(), inputs("while"), host=False)
