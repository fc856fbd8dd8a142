"""`weft.from_torch` end to end: modules in, tensors out, state, sizes, refusals."""

import copy
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from tests.backends.opencl_device import opencl  # noqa: E402
from weft import _native, torch_module  # noqa: E402
from weft.backends import make_backend  # noqa: E402
from weft.dtype import DTYPES  # noqa: E402
from weft.errors import DeviceError, ProgramError, UnsupportedOpError  # noqa: E402
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


def test_weights_of_products_are_repacked_unless_told_not_to() -> None:
    m, x = torch.nn.Linear(64, 96), torch.randn(5, 64)
    cpu = make_backend("cpu")
    panels = DTYPES["f32"].id in _native.interleaved_types(cpu.target)
    for options, repacked in (({}, panels), ({"repack": False}, False)):
        f = weft.from_torch(m, (x,), devices=[cpu], **options)
        torch.testing.assert_close(f(x), m(x))
        assert f.session.program.plan.to_json()["repacked"] == (
            {"weight": "CPU_R32"} if repacked else {}
        )


def test_weights_that_fill_the_memory_are_not_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = torch.nn.Linear(64, 96, bias=False), torch.randn(5, 64)
    cpu = make_backend("cpu")
    panels = DTYPES["f32"].id in _native.interleaved_types(cpu.target)
    for free, repacked in ((2 * 4 * 64 * 96, True), (2 * 4 * 64 * 96 - 1, False)):
        monkeypatch.setattr(torch_module, "available_bytes", lambda n=free: n)
        plan = weft.from_torch(m, (x,), devices=[cpu]).session.program.plan
        assert bool(plan.to_json()["repacked"]) == (repacked and panels)


def test_a_dynamic_dimension_has_its_bounds() -> None:
    m = mlp()
    n = torch.export.Dim("n", min=1, max=64)
    f = weft.from_torch(m, (torch.randn(3, 8),), dynamic_shapes=({0: n},))
    for rows in (1, 5, 64):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(f(x), m(x))
    with pytest.raises(ProgramError, match=r"dimension 0 of argument input.*n is 65.*1\.\.64"):
        f(torch.randn(65, 8))


def test_weft_compile_takes_the_result() -> None:
    m, x = mlp(), torch.randn(3, 8)
    f = weft.from_torch(m, (x,))
    [name] = f.graph.inputs
    result = weft.Session(weft.compile(f)).run({name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(next(iter(result.values()))), m(x))


def test_all_unsupported_nodes_are_in_one_error() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.nonzero(x), torch.fft.fft(x)

    what = r"(?s)7 nodes.*nonzero.*on data[^\n]*5 behind it[^\n]*\n[^\n]*_fft_r2c.*complex"
    with pytest.raises(UnsupportedOpError, match=what):
        weft.from_torch(Two(), (torch.randn(3),), host=False)


def test_an_op_has_one_visitor() -> None:
    with pytest.raises(weft.GraphError, match="two visitors"):
        visitor(next(iter(VISITORS)))(lambda b, c: c.value("self"))


def test_supports_names_the_program_that_has_core_ops() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    program = torch.export.export(module, (torch.randn(2, 1, 5, 5),))
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    for node in calls:
        assert "ask of the nodes of weft.frontends.fx.core_program" in fx.supports(node).reason
    core = [n for n in fx.core_program(program).graph.nodes if n.op == "call_function"]
    assert calls and core and all(map(fx.supports, core))


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
    with pytest.raises(ProgramError, match="arguments input, got 2"):
        f(x, x)


def test_importing_weft_does_not_import_torch() -> None:
    code = (
        "import weft, sys; assert 'torch' not in sys.modules; assert 'from_torch' in weft.__all__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Counter(torch.nn.Module):
    """Adds what it is given, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [3]."""
        self.total += x
        self.count += 1
        return self.total * self.count


def test_state_stays_between_calls_until_it_is_reset() -> None:
    x, eager = torch.ones(3), Counter()
    f = weft.from_torch(Counter(), (x,))
    first = [f(x) for _ in range(3)]
    torch.testing.assert_close(first, [eager(x) for _ in range(3)])
    f.reset()
    torch.testing.assert_close(f(x), first[0])


def test_an_argument_that_is_written_has_its_new_value() -> None:
    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    f = weft.from_torch(Add(), (torch.zeros(3),))
    x = torch.zeros(3)
    torch.testing.assert_close(f(x), torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(3))


def test_arguments_of_any_strides_and_nested_results() -> None:
    class Swap(torch.nn.Module):
        def forward(self, a: dict[str, torch.Tensor], n: int) -> dict[str, list[torch.Tensor]]:
            return {"both": [a["y"] * n, a["x"]], "same": [a["x"]]}

    x, y = torch.randn(3, 4).t(), torch.randn(8)[::2]
    f = weft.from_torch(Swap(), ({"x": x, "y": y}, 3))
    outputs = f({"x": x, "y": y}, 3)
    torch.testing.assert_close(outputs, {"both": [y * 3, x], "same": [x]})
    assert outputs["same"][0].data_ptr() != x.data_ptr()
    with pytest.raises(ProgramError, match="exported for 3"):
        f({"x": x, "y": y}, 4)


def test_what_depends_on_data_is_refused() -> None:
    class Item(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.max().item()
            torch._check(n > 0)
            return torch.zeros(n)

    with pytest.raises(UnsupportedOpError, match="read out of a tensor"):
        weft.from_torch(Item(), (torch.tensor([3, 2]),), host=False)


def test_a_module_that_is_trained_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"call eval\(\)"):
        weft.from_torch(torch.nn.Dropout(), (torch.randn(3),), host=False)


def test_a_dimension_without_a_bound_is_refused() -> None:
    with pytest.raises(weft.GraphError, match=r"n of .* no upper bound"):
        weft.from_torch(mlp(), (torch.randn(3, 8),), dynamic_shapes=({0: torch.export.Dim("n")},))


class Counting(torch.nn.Module):
    """Rows that are kept, a counter, and an op that OpenCL has no kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.register_buffer("rows", torch.zeros(6, 8))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("places", torch.arange(5000) % 8)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at, torch.nn.functional.gelu(self.first(x)))
        self.calls.add_(1.0)
        sums = torch.zeros(8).scatter_add(0, self.places, x.sum() * torch.ones(5000))
        return self.last(self.rows + sums) * self.calls


@pytest.mark.parametrize("name", ["opencl", "reference"])
def test_a_device_does_what_it_can(name: str) -> None:
    """Weights and states live on the device, the op that it refuses runs behind it, and what is
    kept between calls and put back is that of eager mode."""
    device = opencl(copy_weights=True) if name == "opencl" else make_backend(name)
    torch.manual_seed(0)
    module, x = Counting().eval(), torch.randn(1, 8)
    f = weft.from_torch(copy.deepcopy(module), (x, torch.tensor([0])), devices=[device, "cpu"])
    for _ in range(2):
        eager = copy.deepcopy(module)
        for i in range(3):
            x, at = torch.randn(1, 8), torch.tensor([i])
            torch.testing.assert_close(f(x, at), eager(x, at), rtol=1e-4, atol=1e-4)
        f.reset()
    program = f.session.program
    steps = {(split.device, str(step.op)) for split in program.splits for step in split.steps}
    assert {(name, "MUL_MAT"), (name, "SET_ROWS")} <= steps
    assert [op for at, op in steps if at == "cpu"] == (["SCATTER"] if name == "opencl" else [])
    here = sum(b.size for b in program.buffers if b.kind == "bound" and b.buffer_type is
               device.buffer_type)  # fmt: skip
    assert here >= 4 * (8 * 8 + 8 + 8 * 4 + 4 + 6 * 8 + 1)
    assert all(leaf.buffer is None or leaf.buffer.type is None for leaf in f.graph.leaves)
    assert len(weft.compile(f, [device, "cpu"]).splits) == 1  # by the rules: weights are the host's


def test_a_weight_that_is_written_is_state() -> None:
    class Fading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.linear.weight.div_(2)
            return self.linear(x)

    m, x = Fading().eval(), torch.randn(3, 8)
    kept = m.linear.weight.clone()
    f = weft.from_torch(m, (x,))
    torch.testing.assert_close(m.linear.weight, kept)
    for _ in range(3):
        torch.testing.assert_close(f(x), m(x))


def test_a_program_is_not_copied() -> None:
    program = weft.from_torch(mlp(), torch.randn(3, 8))
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="call from_torch again"):
            copied(program)


def test_training_mode_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5))
    with pytest.warns(UserWarning, match=r"dropout draws random numbers .*; call eval\(\)"):
        weft.from_torch(module.train(), torch.randn(3, 8))
    with pytest.warns(UserWarning, match="dropout draws random numbers"):
        weft.from_torch(lambda x: module.train()(x), torch.randn(3, 8))
    weft.from_torch(module.eval(), torch.randn(3, 8))
    weft.from_torch(mlp().train(), torch.randn(3, 8))  # nothing is dropped
    weft.from_torch(torch.nn.Dropout(0.0).train(), torch.randn(3, 8))


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (torch.nn.BatchNorm1d(8), "norms take the mean and variance of each input"),
        (torch.nn.InstanceNorm1d(3, track_running_stats=True), "norms take the mean and variance"),
        (torch.nn.InstanceNorm1d(3), ""),  # the same in evaluation
        (torch.nn.RReLU(), "RReLU draws random slopes"),
        (torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8)), "random.* and its"),
    ],
)
def test_layers_that_differ_in_training_are_named(layer: torch.nn.Module, what: str) -> None:
    x = torch.randn(3, 8)
    if what:
        with pytest.warns(UserWarning, match=rf"training mode, .*{what}.*; call eval\(\)"):
            weft.from_torch(layer.train(), x)
    else:
        weft.from_torch(layer.train(), x)
    weft.from_torch(layer.eval(), x)


def test_unknown_devices_are_refused_at_the_conversion() -> None:
    with pytest.raises(DeviceError, match=r"unknown backend 'vulkan'; known backends: .*cpu"):
        weft.from_torch(torch.nn.Linear(4, 3), torch.randn(2, 4), devices=["vulkan", "cpu"])
    x, module = torch.randn(2, 4), torch.nn.Linear(4, 3)
    torch.testing.assert_close(weft.from_torch(module, x, devices="reference,cpu")(x), module(x))


OWN_THREADS = """
import os, torch, weft
def threads(): return len(os.listdir("/proc/self/task"))
class Mixed(torch.nn.Module):
    def forward(self, x, pixels):
        return x + 1, pixels, x.bfloat16(), x.half(), x > 0
torch.set_num_threads(1)
x, pixels = torch.randn(200, 200), torch.randint(0, 256, (200, 200), dtype=torch.uint8)
f = weft.from_torch(Mixed(), (x, pixels))
for want, got in zip(Mixed()(x, pixels), f(x, pixels), strict=True):
    torch.testing.assert_close(got, want, rtol=0, atol=0)
torch.set_num_threads(3)
before = threads()
f(x, pixels)
assert threads() == before, "a call has started threads of PyTorch"
x.clone()
assert threads() > before, "PyTorch copies this size without threads"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the threads of a process")
def test_a_call_wakes_no_threads_of_pytorch() -> None:
    subprocess.run([sys.executable, "-c", OWN_THREADS], check=True)
