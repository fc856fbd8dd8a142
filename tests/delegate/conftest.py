"""Exporting and running for the tests of the ExecuTorch delegate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.export import export

from tests.frontends.fx.operators import operators_once

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.runtime import Method, Program

    from weft_executorch import Options, WeftPartitioner

__all__ = ["Lowered", "executorch", "lower", "lower_module", "operators_once", "same"]


@pytest.fixture(scope="session", autouse=True)
def executorch() -> None:
    """Imports ExecuTorch, which takes seconds, and loads the delegate into its runtime.

    Tests import nothing of it before they run, so that collecting them stays quick."""
    with warnings.catch_warnings():  # theirs, not ours
        warnings.simplefilter("ignore")
        import executorch.exir
        import executorch.runtime  # noqa: F401

        import weft_executorch
    weft_executorch.load()


@dataclass
class Lowered:
    """A lowered model: the file, the partitioner of its first method, the graphs."""

    pte: bytes
    partitioner: WeftPartitioner
    edge: EdgeProgramManager

    def program(self) -> Program:
        """The file, loaded by the official runtime; it reads the bytes where they are."""
        from executorch.runtime import Runtime

        program = Runtime.get().load_program(self.pte)
        program.bytes = self.pte  # the runtime does not keep them
        return program

    def method(self, name: str = "forward") -> Method:
        """A loaded method."""
        program = self.program()
        method = program.load_method(name)
        assert method is not None
        method.program = program
        return method

    def left(self, name: str = "forward") -> list[str]:
        """Names of the ops that stayed outside of the delegate."""
        nodes = self.edge.exported_program(name).graph.nodes
        ours = ("executorch_call_delegate", "getitem", "alloc")
        return [n.name for n in nodes if n.op == "call_function" and not n.name.startswith(ours)]

    def delegates(self, name: str = "forward") -> int:
        """How many parts weft was given."""
        nodes = self.edge.exported_program(name).graph.nodes
        return sum(n.op == "call_function" and "call_delegate" in n.name for n in nodes)


def lower_module(
    module: Any, inputs: Any, options: Options | None = None, dynamic_shapes: Any = None, **how: Any
) -> Lowered:
    """Exports a module, or a dict of them (with a dict of inputs), and lowers it to weft."""
    from executorch.exir import to_edge_transform_and_lower

    from weft_executorch import WeftPartitioner

    modules = module if isinstance(module, dict) else {"forward": module}
    by_method = inputs if isinstance(module, dict) else {"forward": inputs}
    shapes = dynamic_shapes if isinstance(module, dict) else {"forward": dynamic_shapes}
    partitioners = {name: WeftPartitioner(options, **how) for name in modules}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        programs = {
            name: export(m, by_method[name], dynamic_shapes=(shapes or {}).get(name), strict=False)
            for name, m in modules.items()
        }
        edge = to_edge_transform_and_lower(
            programs, partitioner={name: [p] for name, p in partitioners.items()}
        )
        pte = edge.to_executorch().buffer
    return Lowered(bytes(pte), next(iter(partitioners.values())), edge)


@pytest.fixture
def lower() -> Callable[..., Lowered]:
    """`lower_module`, with PyTorch's seed set."""
    torch.manual_seed(0)
    return lower_module


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """Sets a function that changes the tables of every delegated program before they are written,
    as another exporter or damage would."""

    def by(change: Callable[[Any], None]) -> None:
        from weft_executorch import program_generated as fb

        pack = fb.ProgramT.Pack

        def changed(program: Any, builder: Any) -> Any:
            change(program)
            return pack(program, builder)

        monkeypatch.setattr(fb.ProgramT, "Pack", changed)

    return by


@pytest.fixture
def same() -> Callable[..., None]:
    """Runs a loaded method and the module on the same inputs and compares all outputs."""

    def check(method: Method, module: Any, *inputs: Any, tolerance: float = 1e-4) -> None:
        with torch.no_grad():
            want = module(*inputs)
        want = want if isinstance(want, tuple | list) else (want,)
        got = method.execute(list(inputs))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, atol=tolerance, rtol=tolerance)

    return check
