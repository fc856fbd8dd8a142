"""The cases of ExecuTorch's operator suite (in its wheel) as models with inputs, without its runner.

    python -m tests.frontends.fx.operator_cases [-k add] [-v]

exports each, converts it, runs it on the cpu device and compares with eager PyTorch.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["Case", "cases"]


@dataclass
class Case:
    """A model and its inputs."""

    file: str
    name: str
    model: torch.nn.Module
    inputs: tuple[Any, ...]
    dynamic_shapes: Any


class _Collector:
    """Stands for the suite's runner: keeps what it is given."""

    _flow = SimpleNamespace(quantize=False)

    def __init__(self) -> None:
        self.found: list[tuple[torch.nn.Module, Any, Any]] = []

    def lower_and_run_model(
        self, model: torch.nn.Module, inputs: Any, *_: Any, dynamic_shapes: Any = None, **__: Any
    ) -> None:
        self.found.append((model, inputs, dynamic_shapes))


def cases(pattern: str = "") -> Iterator[Case]:
    """Every case whose `file::name` contains `pattern`; inputs are seeded."""
    import executorch.backends.test.suite.operators as suite

    for module_info in pkgutil.iter_modules(suite.__path__):
        if not module_info.name.startswith("test_"):
            continue
        module = importlib.import_module(f"{suite.__name__}.{module_info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and "test_runner" in inspect.signature(function).parameters:
                yield from _variants(module_info.name[5:], name, function, pattern)


def _variants(file: str, name: str, function: Any, pattern: str) -> Iterator[Case]:
    marks = [m for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
    lists = []
    for mark in marks:
        names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
        lists.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in mark.args[1]])
    for chosen in itertools.product(*lists):
        kwargs = {k: v for d in chosen for k, v in d.items()}
        label = f"{name}[{','.join(str(v) for v in kwargs.values())}]" if kwargs else name
        if pattern not in f"{file}::{label}":
            continue
        collector = _Collector()
        torch.manual_seed(0)
        try:
            function(collector, **kwargs)
        except BaseException as error:  # pytest.skip
            if type(error).__name__ not in ("Skipped", "SkipTest"):
                raise
            continue
        for model, inputs, dynamic in collector.found:
            yield Case(file, label, model, inputs, dynamic)
