"""Export, lower, save, load by the official runtime, run: equal to eager PyTorch."""

import copy
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.export import Dim

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


class LinearLeakyReLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.leaky_relu = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.leaky_relu(self.linear(x))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
    ).eval()


def test_linear_and_leaky_relu(lower, same):
    module = LinearLeakyReLU().eval()
    lowered = lower(module, (torch.randn(2, 4),))
    assert lowered.left() == [] and lowered.delegates() == 1
    method = lowered.method()
    for _ in range(3):
        same(method, module, torch.randn(2, 4))


def test_a_file_is_mapped_and_run(lower, same, tmp_path):
    module = mlp()
    lowered = lower(module, (torch.randn(3, 32),))
    path = tmp_path / "mlp.pte"
    path.write_bytes(lowered.pte)
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    same(program.load_method("forward"), module, torch.randn(3, 32))


def test_sizes_vary_within_their_bounds(lower, same):
    module = mlp()
    batch = Dim("batch", min=1, max=20)
    lowered = lower(module, (torch.randn(3, 32),), dynamic_shapes=({0: batch},))
    assert lowered.left() == []
    method = lowered.method()
    for rows in (1, 20, 7, 7, 20, 2):
        same(method, module, torch.randn(rows, 32))
    with pytest.raises(RuntimeError):
        method.execute([torch.randn(21, 32)])
    same(method, module, torch.randn(5, 32))


def test_a_size_is_a_symbol_and_a_number(lower, same):
    class Tail(nn.Module):
        def forward(self, x):
            return x[1:].relu() * 2

    rows = Dim("rows", min=3, max=9)
    lowered = lower(
        Tail(),
        (torch.randn(4, 8),),
        dynamic_shapes=({0: rows},),
        not_ops=("aten.slice_copy.Tensor",),
    )
    assert lowered.left() == ["aten_slice_copy_tensor"]
    for n in (3, 4, 9):
        same(lowered.method(), Tail(), torch.randn(n, 8))


def test_inputs_whose_sizes_disagree_are_refused(lower, same):
    class Product(nn.Module):
        def forward(self, a, b):
            return a @ b

    n, m = Dim("n", min=1, max=9), Dim("m", min=1, max=9)
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    method = lower(Product(), (a, b), dynamic_shapes=({0: n, 1: m}, {0: m, 1: n})).method()
    same(method, Product(), a, b)
    with pytest.raises(RuntimeError, match="0x12"):  # InvalidArgument
        method.execute([a, b.reshape(2, 3)])


def test_inputs_that_are_not_dense_are_copied(lower, same):
    module = mlp()
    method = lower(module, (torch.randn(32, 32),)).method()
    same(method, module, torch.randn(32, 32))
    x = torch.randn(32, 32)
    torch.testing.assert_close(method.execute([x.t().contiguous()])[0], module(x.t()))


def test_an_output_is_the_input_of_the_next_call(lower):
    module = nn.Linear(8, 8).eval()
    method = lower(module, (torch.randn(4, 8),)).method()
    x = want = torch.randn(4, 8)
    for _ in range(5):
        x = method.execute([x])[0]
        want = module(want)
    torch.testing.assert_close(x, want.detach(), atol=1e-4, rtol=1e-4)


def test_an_output_in_the_memory_of_an_input(lower):
    """Where the caller plans no memory for inputs, the last result itself can be the next input."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    class Square(nn.Module):
        def forward(self, x):
            return x @ x

    x = torch.randn(6, 6) / 3
    outside = MemoryPlanningPass(alloc_graph_input=False)
    config = ExecutorchBackendConfig(memory_planning_pass=outside)
    pte = bytes(lower(Square(), (x,)).edge.to_executorch(config).buffer)
    program = _load_for_executorch_from_buffer(pte)
    first = program.forward([x], clone_outputs=False)[0]
    want = first @ first
    second = program.forward([first], clone_outputs=False)[0]
    assert second.data_ptr() == first.data_ptr()
    torch.testing.assert_close(second, want)


class Pair(nn.Module):
    """Gives two tensors of the same size."""

    def forward(self, v):
        return v.relu(), v * 3


@pytest.mark.parametrize(("index", "other"), [(1, 0), (0, 1)])
def test_a_tensor_that_is_returned_twice(lower, rewritten, index, other):
    def change(program):
        program.outputs[index].tensor = program.outputs[other].tensor

    rewritten(change)
    method = lower(Pair(), (torch.randn(3, 4),)).method()
    for _ in range(2):
        x = torch.randn(3, 4)
        want = Pair()(x)[other]
        for got in method.execute([x]):
            torch.testing.assert_close(got, want)


def test_outputs_in_one_buffer(lower, rewritten):
    """The first output is a part of the second, so its memory is too small for both."""

    class Halves(nn.Module):
        def forward(self, v):
            return v[::2] * 3, v.relu()

    def change(program):
        half, whole = (program.tensors[v.tensor] for v in program.outputs)
        part = copy.copy(whole)
        part.ne = half.ne
        program.outputs[0].tensor = len(program.tensors)
        program.tensors.append(part)

    rewritten(change)
    rows = Dim("rows", min=1, max=8)
    lowered = lower(Halves(), (torch.randn(4, 4),), dynamic_shapes=({0: 2 * rows},))
    method = lowered.method()
    for n in (4, 16, 6):
        x = torch.randn(n, 4)
        part, whole = method.execute([x])
        torch.testing.assert_close(whole, x.relu())
        torch.testing.assert_close(part, whole[: n // 2])


def test_an_input_that_is_returned(lower, rewritten):
    def change(program):
        program.outputs[1].tensor = program.inputs[0].tensor

    rewritten(change)
    x = torch.randn(3, 4)
    first, second = lower(Pair(), (x,)).method().execute([x])
    torch.testing.assert_close(first, x.relu())
    torch.testing.assert_close(second, x)


def test_results_that_are_views_of_each_other(lower, same):
    class Views(nn.Module):
        def forward(self, v):
            y = v.relu()
            return y, y[None], y.view(-1), y[1:], y.t(), y.unsqueeze(-1)

    x = torch.randn(3, 4)
    same(lower(Views(), (x,)).method(), Views(), x)


def test_buffers_that_are_results_or_read_outside(lower, same):
    class Buffers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 3))
            self.register_buffer("last", torch.zeros(1, 3))
            self.register_buffer("rows", torch.zeros(2, 3))

        def forward(self, v):
            far = torch.cdist(self.last, v)  # weft has none
            self.total.add_(v)
            self.last.copy_(v * 2)
            self.rows[1:2] = v
            return self.total, far, torch.cdist(v, self.rows)

    module = Buffers().eval()
    method = lower(copy.deepcopy(module), (torch.randn(1, 3),)).method()
    for _ in range(3):
        same(method, module, torch.randn(1, 3))


def test_two_methods_have_the_weights_once(lower, same):
    class Twice(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x):
            return self.body(self.body(x))

    body = nn.Linear(256, 256).eval()
    one = {"once": body}
    both = {"once": body, "twice": Twice(body).eval()}
    x = {name: (torch.randn(2, 256),) for name in both}
    lowered = lower(both, x)
    alone = lower(one, x)
    assert len(lowered.pte) < len(alone.pte) + 256 * 256 * 4 // 4
    for name, module in both.items():
        same(lowered.method(name), module, *x[name])


class Remembers(nn.Module):
    """Gives the last input through a linear layer, and keeps the new one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("last", torch.full((2, 8), 0.5))

    def forward(self, x):
        y = self.linear(self.last)
        self.last.copy_(torch.relu(x))
        return y


def test_buffers_keep_what_a_call_wrote(lower, same):
    module = Remembers().eval()
    lowered = lower(module, (torch.randn(2, 8),))
    assert lowered.left() == []
    method, other = lowered.method(), lowered.method()
    inputs = [torch.randn(2, 8) for _ in range(4)]
    for x in inputs:
        same(method, module, x)
    # another method of another loaded file begins anew
    fresh = Remembers().eval()
    fresh.load_state_dict(module.state_dict() | {"last": torch.full((2, 8), 0.5)})
    same(other, fresh, inputs[0])


class Sees(Remembers):
    """Gives the last input itself."""

    def forward(self, x):
        y = torch.nn.functional.leaky_relu(self.last, 1.0)
        self.last.copy_(torch.relu(x))
        return y


def test_methods_share_a_buffer_where_that_is_chosen(lower):
    from weft_executorch import Options

    modules = {"remembers": Remembers().eval(), "sees": Sees().eval()}
    x, y = torch.randn(2, 8), torch.randn(2, 8)
    for share in (True, False):
        lowered = lower(modules, {n: (x,) for n in modules}, Options(share_state=share))
        program = lowered.program()
        first, second = program.load_method("remembers"), program.load_method("sees")
        first.execute([x])
        last = torch.relu(x) if share else torch.full((2, 8), 0.5)
        torch.testing.assert_close(second.execute([y])[0], last)
        torch.testing.assert_close(second.execute([y])[0], torch.relu(y))


def test_what_weft_is_not_given_stays_outside_with_a_reason(lower, same):
    module = LinearLeakyReLU().eval()
    lowered = lower(module, (torch.randn(2, 4),), not_ops=("aten.leaky_relu.default",))
    assert lowered.left() == ["aten_leaky_relu_default"]
    assert lowered.delegates() == 1
    same(lowered.method(), module, torch.randn(2, 4))
    (refusal,) = lowered.partitioner.refused.values()
    assert refusal == ("aten.leaky_relu.default", "the partitioner was told to leave this op out")
    assert "aten_leaky_relu_default" in lowered.partitioner.report()


def test_a_report_tells_what_happened(lower):
    from weft_executorch import WeftPartitioner

    module, x = LinearLeakyReLU().eval(), torch.randn(2, 4)
    assert lower(module, (x,)).partitioner.report() == "No nodes rejected."
    partitioner = WeftPartitioner()
    assert partitioner.report().startswith("No program was partitioned")
    program = torch.export.export(module, (x,))
    failing = patch("weft_executorch.partitioner.tag_constant_data", None)
    with failing, pytest.raises(TypeError):
        partitioner.partition(program)
    assert partitioner.report().startswith("No program was partitioned")


def test_nothing_to_delegate_is_no_error(lower, same):
    module = LinearLeakyReLU().eval()
    lowered = lower(module, (torch.randn(2, 4),), ops=())
    assert lowered.delegates() == 0
    same(lowered.method(), module, torch.randn(2, 4))


def test_weight_formats_make_the_file_smaller(lower):
    from weft_executorch import Options

    module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    x = torch.randn(4, 256)
    want = module(x).detach()
    sizes = []
    for weights, error in (("f32", 1e-5), ("f16", 1e-3), ("q8_0", 0.02), ("q4_0", 0.2),
                           ("q4_k", 0.2)):  # fmt: skip
        lowered = lower(module, (x,), Options(weights=weights))
        got = lowered.method().execute([x])[0]
        assert (got - want).norm() / want.norm() < error, weights
        sizes.append(len(lowered.pte))
    assert sizes == sorted(sizes, reverse=True)
    rows = lower(module, (x,), Options(weights="q8_0", pack=False)).method().execute([x])[0]
    assert (rows - want).norm() / want.norm() < 0.02


def test_named_results_are_outputs(lower, same):
    class Largest(nn.Module):
        def forward(self, x):
            return torch.max(x, 1)

    module = Largest().eval()
    lowered = lower(module, (torch.randn(4, 7),))
    assert lowered.left() == [], lowered.partitioner.report()
    same(lowered.method(), module, torch.randn(4, 7))
