"""`weft.from_torch` end to end: modules in, tensors out, state, sizes, refusals."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.errors import ProgramError, UnsupportedOpError  # noqa: E402
from weft.frontends import fx  # noqa: E402
from weft.frontends.fx.registry import VISITORS, visitor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 4)
    ).eval()


def test_a_module_runs_as_eager_does() -> None:
    m, x = mlp(), torch.randn(3, 8)
    f = weft.from_torch(m, (x,))
    torch.testing.assert_close(f(x), m(x))


def test_weights_stay_in_the_memory_of_the_module() -> None:
    m, x = mlp(), torch.randn(3, 8)
    f = weft.from_torch(m, (x,))
    leaves = {t.name: t for t in f.graph.leaves}
    buffer = leaves["0.weight"].buffer
    assert buffer is not None
    assert buffer.data.ctypes.data == m[0].weight.data_ptr()


def test_a_dynamic_dimension_has_its_bounds() -> None:
    m = mlp()
    n = torch.export.Dim("n", min=1, max=64)
    f = weft.from_torch(m, (torch.randn(3, 8),), dynamic_shapes=({0: n},))
    for rows in (1, 5, 64):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(f(x), m(x))
    with pytest.raises(ProgramError, match=r"65.*1\.\.64"):
        f(torch.randn(65, 8))


def test_weft_compile_takes_the_result() -> None:
    m, x = mlp(), torch.randn(3, 8)
    f = weft.from_torch(m, (x,))
    [name] = f.graph.inputs
    found = weft.Session(weft.compile(f)).run({name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(next(iter(found.values()))), m(x))


def test_all_unsupported_nodes_are_in_one_error() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.nonzero(x), torch.fft.fft(x)

    with pytest.raises(UnsupportedOpError, match=r"(?s)2 nodes.*nonzero.*_fft_r2c"):
        weft.from_torch(Two(), (torch.randn(3),))


def test_an_op_has_one_visitor() -> None:
    with pytest.raises(weft.GraphError, match="two visitors"):
        visitor(next(iter(VISITORS)))(lambda b, c: c.value("self"))


def test_supports_needs_only_a_node() -> None:
    program = torch.export.export(mlp(), (torch.randn(3, 8),))
    assert all(fx.supports(node) for node in program.graph.nodes)


def test_arguments_that_do_not_fit() -> None:
    x = torch.randn(3, 8)
    f = weft.from_torch(mlp(), (x,))
    with pytest.raises(ProgramError, match=r"float64.*float32"):
        f(x.double())
    with pytest.raises(ProgramError, match="shape"):
        f(torch.randn(4, 8))
    with pytest.raises(ProgramError, match="nest"):
        f(x, x)


def test_importing_weft_does_not_import_torch() -> None:
    code = (
        "import weft, sys; assert 'torch' not in sys.modules; assert 'from_torch' in weft.__all__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
