"""What the tests of this folder share: modules out of functions, and graphs out of modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.frontends import fx
from weft.frontends.fx.export import core_program

__all__ = ["Function", "check", "convert", "ops_of"]


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Calls it."""
        return self.function(*args)


def convert(module: torch.nn.Module, *inputs: Any, **options: Any) -> fx.Converted:
    """The graph of a module."""
    return fx.convert(core_program(torch.export.export(module.eval(), inputs, **options)))


def ops_of(converted: fx.Converted) -> Counter[str]:
    """How often each op occurs, views left out."""
    return Counter(t.op.name for t in converted.graph.nodes if not t.op.is_view)


def check(
    module: torch.nn.Module | Callable[..., Any],
    *inputs: Any,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> weft.torch_module.TorchModule:
    """Runs a module on the cpu device alone and compares with eager; returns what ran."""
    if not isinstance(module, torch.nn.Module):
        module = Function(module)
    program = weft.from_torch(module.eval(), inputs, host=False)
    with torch.no_grad():
        expected = module(*inputs)
    torch.testing.assert_close(program(*inputs), expected, rtol=rtol, atol=atol, equal_nan=True)
    return program
