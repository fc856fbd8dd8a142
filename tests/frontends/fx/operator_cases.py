"""The cases of ExecuTorch's operator suite (in its wheel) as models with inputs.

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
        names = (
            [n.strip() for n in mark.args[0].split(",")]
            if isinstance(mark.args[0], str)
            else list(mark.args[0])
        )
        lists.append(
            [dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in mark.args[1]]
        )
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


def main() -> None:
    """Converts and runs the cases; prints a line for each that does not pass, and a count."""
    import argparse
    import collections
    import traceback

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("-k", default="", help="part of file::name")
    parser.add_argument("-v", action="store_true", help="with tracebacks")
    parser.add_argument("-d", default="cpu", help="device")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for case in cases(options.k):
        try:
            outcome, why = run(case, options.d)
        except Exception as error:
            outcome, why = "fail", f"{type(error).__name__}: {error}"
            if options.v:
                traceback.print_exc()
        counts[outcome] += 1
        if outcome != "pass":
            print(
                f"{outcome:<12} {case.file}::{case.name}  {' | '.join(why.splitlines())[:300]}",
                flush=True,
            )
    print(dict(counts))


def run(case: Case, device: str) -> tuple[str, str]:
    """`pass`, `eager-fails`, `unsupported` or `wrong`, and why."""
    import weft

    model = case.model.eval()
    try:
        expected = model(*case.inputs)
        program = torch.export.export(model, case.inputs, dynamic_shapes=case.dynamic_shapes)
    except Exception as error:
        return "eager-fails", str(error)
    try:
        converted = weft.from_torch(program, devices=(device,))(*case.inputs)
    except weft.UnsupportedOpError as error:
        return "unsupported", str(error)
    torch.testing.assert_close(converted, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    return "pass", ""


if __name__ == "__main__":
    main()
