"""Programs are traced a second time only where decomposing them changes something."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.frontends.fx.export import core_program, kept_whole  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

X = torch.arange(8.0).reshape(2, 4) / 8


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.gelu(self.linear(self.norm(x)))
        y.tanh()  # a result that nothing reads
        return x + y, y.split(2, dim=1)[1].softmax(-1)


def written(x: Any) -> Any:
    y = x * 2
    y.add_(1)
    return y


PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "block": (Block(), True),
    "layer": (torch.nn.Linear(4, 3), True),
    "view": (lambda x: x.reshape(-1), False),
    "in place": (written, False),
    "to decompose": (lambda x: torch.nn.functional.pad(x, (1, 1)), False),
    "on the host": (lambda x: torch.linalg.inv(x @ x.T) + x.sum(), False),
    "of blocks": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), False),
}


def ops(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function" and n.users]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_core_ops_stays_itself(name: str) -> None:
    function, is_core = PROGRAMS[name]
    module = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
    if module is not function:
        module.forward = function
    program = torch.export.export(module.eval(), (X,))
    core = core_program(program, host=True)
    assert (core is program) == is_core
    table = torch.export.default_decompositions()
    for op in kept_whole():
        del table[op]
    same = ops(program.run_decompositions(table)) == ops(program)
    assert same or not is_core
    if name != "of blocks":
        weft_results = weft.from_torch(program)(X)
        torch.testing.assert_close(weft_results, module(X), rtol=1e-4, atol=1e-4)


def test_an_op_defined_later_is_in_the_table() -> None:
    before = kept_whole()
    with torch.library._scoped_library("weft_test_export", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        module = torch.nn.Module()
        module.forward = lambda x: torch.ops.weft_test_export.twice(x) + 1
        program = torch.export.export(module, (X,))
        assert "weft_test_export.twice.default" not in ops(core_program(program))
        torch.testing.assert_close(weft.from_torch(program, host=False)(X), X * 2 + 1)
    assert kept_whole() == before


def repeated(x: Any) -> Any:
    for _ in range(6):
        x = torch.nn.functional.dropout(x.T.reshape(2, 4), 0.5, False) * 2
    return x.reshape(4, 2), torch.var_mean(x, 1)


def chained(x: Any) -> Any:
    y = x * 2
    z = torch.nn.functional.dropout(y, 0.5, False)  # y itself
    z.relu_().add_(x)
    return y, z.mul_(3)


def through_a_view(x: Any) -> Any:
    y = x * 2
    row = y[0]
    y.add_(1)
    return row * 1


def of_the_same_type(x: Any) -> Any:
    y = x * 2
    y.type_as(x).add_(1)
    return y * 1


def through_a_dropout(x: Any) -> Any:
    y = x * 2
    torch.nn.functional.alpha_dropout(y, 0.5, training=False).add_(1)
    return y * 1


def to_an_input(x: Any) -> Any:
    x.add_(1)
    return x * 2


def with_constants(x: Any) -> Any:
    return torch.nn.functional.pad(x, (1, 1)) + torch.tensor([1.0, 2, 3, 4, 5, 6])


def of_two_types(x: Any) -> Any:
    return x.to(torch.float32) + (x * 8).to(torch.int32).to(torch.float32)


EXPANDED: dict[str, tuple[Callable[..., Any], bool]] = {
    "repeated": (repeated, True),
    "two types": (of_two_types, True),
    "two shapes": (lambda x: (x.flatten(), x[:1].flatten(), x.flatten() + 1), True),
    "in place": (chained, True),
    "written below a view": (through_a_view, False),
    "written through type_as": (of_the_same_type, True),
    "written through a dropout": (through_a_dropout, True),
    "written input": (to_an_input, False),
    "a constant": (with_constants, True),
    "a size from data": (lambda x: x[x > 0].reshape(-1) * 2, False),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_each_kind_of_call_is_decomposed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, in_parts = EXPANDED[name]
    module = torch.nn.Module()
    module.forward = function
    program = torch.export.export(module.eval(), (X.clone(),))
    before = program.graph_module.code
    traced: list[int] = []
    whole = torch.export.ExportedProgram.run_decompositions

    def counted(self: Any, *args: Any) -> Any:
        traced.append(len(self.graph.nodes))
        return whole(self, *args)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    core = core_program(program)
    assert (traced.count(len(program.graph.nodes)) == 0) == in_parts
    assert program.graph_module.code == before
    assert all(
        not n.target._schema.is_mutable for n in core.graph.nodes if hasattr(n.target, "_schema")
    )
    given, expected = X.clone(), module(X.clone())
    torch.testing.assert_close(weft.from_torch(core)(given), expected, rtol=1e-5, atol=1e-6)


def test_parts_keep_dynamic_sizes() -> None:
    module = torch.nn.Module()
    module.forward = lambda x: torch.nn.functional.pad(x, (1, 2)).T.flatten()
    n = torch.export.Dim("n", min=2, max=16)
    program = torch.export.export(module, (X,), dynamic_shapes=({0: n},))
    f = weft.from_torch(program)
    for rows in (2, 5, 16):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(f(x), module(x))
