"""How programs that were exported in training mode differ from evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from weft.frontends.fx.export import as_module


def in_training(program: Any) -> bool:
    """Whether a module, or a module that a function calls, is in training mode."""
    return not isinstance(program, ExportedProgram) and as_module(program).training


def unlike_evaluation(program: ExportedProgram) -> list[str]:
    """The differences of an exported program from evaluation mode, as parts of a sentence; empty
    where there is none."""
    calls = [_arguments(n) for n in program.graph.nodes if _calls_op(n)]
    found = {
        "its dropout draws random numbers in every call": any(map(_drops, calls)),
        "its RReLU draws random slopes in every call": any(map(_slopes, calls)),
        "its norms take the mean and variance of each input, not those that they learned": any(
            map(_measures, calls)
        ),
    }
    return [what for what, is_there in found.items() if is_there]


def _calls_op(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call of an op by their names, with defaults."""
    op: Any = node.target
    schema = op._schema.arguments
    given: dict[str, Any] = dict(zip((a.name for a in schema), node.args, strict=False))
    given |= node.kwargs
    return {a.name: a.default_value for a in schema if a.has_default_value()} | given


def _trains(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("train") or arguments.get("training"))


def _drops(arguments: Mapping[str, Any]) -> bool:
    """Whether a call drops elements: a dropout, a recurrent layer or attention with one inside."""
    share = arguments.get("p") or arguments.get("dropout")
    return bool(_trains(arguments) and share) or bool(arguments.get("dropout_p"))


def _slopes(arguments: Mapping[str, Any]) -> bool:
    return _trains(arguments) and {"lower", "upper"} <= arguments.keys()


def _measures(arguments: Mapping[str, Any]) -> bool:
    """Whether a call normalises by its input, although it has a mean of its own."""
    measures = arguments.get("training") or arguments.get("use_input_stats")
    return bool(measures) and arguments.get("running_mean") is not None
