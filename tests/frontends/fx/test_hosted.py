"""What weft has no kernels for runs in PyTorch, as functions of the host."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from tests.frontends.fx.exported import Function  # noqa: E402
from weft.backends import make_backend  # noqa: E402
from weft.graph.host import HOST  # noqa: E402
from weft.schedule import CostOptions  # noqa: E402
from weft.schedule.profile import load_profile  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

CASES: dict[str, Callable[[Any], Any]] = {
    "one result": lambda x: torch.linalg.inv(x) + 1,
    "several results": lambda x: torch.linalg.svd(x),
    "a result in between": lambda x: torch.relu(torch.linalg.qr(torch.relu(x) + x)[1]),
    "twice, with an op between": lambda x: torch.fft.fft(torch.fft.fft(x).real * 2).imag,
    "a complex result": lambda x: torch.fft.rfft(x),
    "float64 inside": lambda x: (x.double() * 2).sin().float() + x,
    "a float64 result": lambda x: (x @ x).double() / 3,
    "uint8": lambda x: (x * 10).abs().to(torch.uint8) * 3,
    "counts": lambda x: (torch.nonzero(x > 0), x[x > 0] * 2, torch.unique(x.round())),
    "nothing is counted": lambda x: torch.nonzero(x > 1e9),
    "counted inside": lambda x: x[x > 0].sum() + x,
    "a number": lambda x: x.sum().item(),
    "a number inside": lambda x: x * x.max().item(),
    "values for a mask": lambda x: x.index_put((x > 0,), x[x > 0] * 2),
    "half": lambda x: torch.digamma(x.half()),
    "empty": lambda x: torch.special.erfcx(x[:, :0]),
    "a constant": lambda x: torch.linalg.solve(torch.eye(5) * 2, x),
    "a constant of float64": lambda x: torch.tensor([2.0], dtype=torch.float64) * x.double(),
    "resampled": lambda x: F.interpolate(x[None, None], size=3, mode="bilinear", antialias=True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_pytorch_runs_is_eager(name: str) -> None:
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    f = weft.from_torch(Function(CASES[name]), (x,))
    assert any(node.op is HOST for node in f.graph.nodes)
    for again in (x, x.flip(0)):
        torch.testing.assert_close(f(again), CASES[name](again), rtol=1e-4, atol=1e-4)


def test_random_numbers_are_those_of_pytorch() -> None:
    def drawing(x: Any) -> Any:
        first = F.dropout(x, 0.5, training=True)
        return torch.bernoulli(torch.sigmoid(first)) + torch.rand(3), torch.randn_like(x)

    x = torch.randn(4, 3)
    f = weft.from_torch(Function(drawing).eval(), (x,))
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = drawing(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(f(x), expected)


def test_sizes_that_vary_reach_pytorch() -> None:
    def spectrum(x: Any) -> Any:
        return torch.fft.rfft(x).abs() * x.shape[0], x[x > 0]

    n = torch.export.Dim("n", min=2, max=9)
    f = weft.from_torch(Function(spectrum), (torch.randn(4, 6),), dynamic_shapes=(({0: n},),))
    for rows in (2, 9, 5):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(f(x), spectrum(x), rtol=1e-4, atol=1e-4)


def test_the_plan_shows_what_runs_there() -> None:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    module = Function(lambda x: last(torch.linalg.inv(first(x)))).requires_grad_(False)
    x = torch.randn(4, 4)
    f = weft.from_torch(module, (x,), devices=[make_backend("reference"), "cpu"])
    torch.testing.assert_close(f(x), module(x), rtol=1e-4, atol=1e-4)
    splits = [split.device for split in f.session.program.splits]
    assert splits == ["reference", "host", "reference"]
    refused = [line.strip() for line in f.explain().splitlines() if "refused" in line]
    # why the cpu does not compute it, and nothing about what the host device does not
    assert any(line.startswith("cpu refused") and "linalg_inv_ex" in line for line in refused)
    assert not any(line.startswith("host refused") for line in refused), refused
    assert sum(len(split.copies) for split in f.session.program.splits) == 3


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(weft.UnsupportedOpError, match="no bound to plan memory"):
        weft.from_torch(
            Function(lambda x, n: torch.repeat_interleave(x, n)),
            (torch.randn(3), torch.tensor([1, 0, 2])),
        )


def test_an_error_of_pytorch_names_the_function() -> None:
    f = weft.from_torch(Function(torch.linalg.cholesky), (torch.eye(3),))
    with pytest.raises(weft.DeviceError, match=r"cholesky.*positive-definite"):
        f(-torch.eye(3))


def test_a_batch_norm_that_is_trained_is_native() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).train()
    eager = copy.deepcopy(module)
    with pytest.warns(UserWarning, match="its norms take the mean and variance of each input"):
        f = weft.from_torch(module, (torch.randn(2, 3, 8, 8),), host=False)
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(f(x), eager(x).detach(), rtol=1e-4, atol=1e-5)
    mean = next(s.tensor for s in f.converted.states if s.name == "1.running_mean")
    assert mean.buffer is not None
    torch.testing.assert_close(torch.from_numpy(mean.buffer.data), eager[1].running_mean)


def test_a_sampled_image_is_whole() -> None:
    f = weft.from_torch(
        Function(lambda x, grid: F.grid_sample(x, grid, align_corners=False)),
        (torch.randn(1, 2, 5, 6), torch.rand(1, 3, 4, 2) * 2 - 1),
    )
    assert [node.op for node in f.graph.nodes] == [HOST]


class Kept(torch.nn.Module):
    """Reads what it keeps in PyTorch before and after it writes it, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(4, 3))

    def forward(self, x: Any, at: Any) -> Any:
        before = torch.special.erfcx(self.rows), torch.fft.fft(self.rows), self.rows.double()
        self.rows.index_copy_(0, at, x)
        after = torch.logcumsumexp(self.rows, 0)
        drawn = torch.multinomial(torch.softmax(self.rows, 1), 1)
        return before[0].sum() + after, before[1].real * 2, before[2], drawn


def test_what_a_program_keeps_is_read_in_order() -> None:
    module = Kept()
    eager = copy.deepcopy(module)
    f = weft.from_torch(module, (torch.randn(1, 3), torch.tensor([0])))
    for i in range(4):
        x, at = torch.randn(1, 3), torch.tensor([i])
        torch.manual_seed(i)
        expected = eager(x, at)
        torch.manual_seed(i)
        torch.testing.assert_close(f(x, at), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.uint8])
def test_arguments_of_other_types(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return x, (x * 2).real if dtype.is_complex else x * 2, x.abs().float() + 1

    x = torch.arange(6).reshape(2, 3).to(dtype)
    f = weft.from_torch(Function(function), (x,))
    torch.testing.assert_close(f(x), function(x))


def test_a_buffer_of_another_type_is_refused() -> None:
    class Total(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            self.total.add_(x.double())
            return self.total.float()

    with pytest.raises(weft.GraphError, match=r"buffer total.*float64"):
        weft.from_torch(Total(), (torch.ones(3),))


def test_the_cost_policy_takes_it_for_the_cpu() -> None:
    machine = load_profile("desktop-rtx4090")
    cpu = replace(machine, devices=machine.devices[-1:], memories={"RAM": machine.memories["RAM"]},
                  links={})  # fmt: skip
    x = torch.randn(3, 4)
    f = weft.from_torch(Function(torch.logcumsumexp), (x, 1), policy="cost", cost=CostOptions(cpu))
    torch.testing.assert_close(f(x, 1), torch.logcumsumexp(x, 1))
    assert " on host" in f.explain()


def test_functions_of_one_module_run_over_the_memory_of_each_session() -> None:
    f = weft.from_torch(Function(lambda x, n: torch.linalg.inv(x) * n), (torch.eye(2), 3.0))
    other = weft.Session(weft.compile(f.graph, ["cpu"]))
    for scale in (1.0, 2.0, 4.0):
        x = torch.eye(2) * scale
        torch.testing.assert_close(f(x, 3.0), torch.eye(2) * (3 / scale))
        [result] = other.run({f.converted.inputs[0].name: 2 * x.numpy()}).values()
        torch.testing.assert_close(torch.from_numpy(result), torch.eye(2) * (1.5 / scale))
