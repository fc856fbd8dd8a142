"""Exporting and running for the tests of the ExecuTorch delegate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

with warnings.catch_warnings():  # theirs, not ours
    warnings.simplefilter("ignore")
    import torch

    import weft_executorch

    weft_executorch.load()
    from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
    from executorch.runtime import Method, Program, Runtime
    from torch.export import export

    from weft_executorch import Options, WeftPartitioner


@dataclass
class Lowered:
    """A lowered model: the file, the partitioner of its first method, the graphs."""

    pte: bytes
    partitioner: WeftPartitioner
    edge: EdgeProgramManager

    def program(self) -> Program:
        """The file, loaded by the official runtime; it reads the bytes where they are."""
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
