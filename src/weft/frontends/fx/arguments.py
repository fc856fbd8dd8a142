"""Arguments of a call, by position or keyword, in the order that a program was exported with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import ProgramError
from weft.frontends.fx.converted import Converted

__all__ = ["bound_arguments", "positional_names"]


def positional_names(converted: Converted) -> tuple[str, ...]:
    """The names of positional arguments where none of them nests; empty where one does."""
    spec = converted.in_spec
    if spec is None:
        return ()
    positional = spec.child(0)
    flat = positional.num_leaves == positional.num_children
    names = tuple(port.name for port in converted.inputs)
    return names[: positional.num_children] if flat else ()


def bound_arguments(
    converted: Converted,
    parameters: Sequence[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in the order of the exported program, whichever were given by keyword.

    `parameters` are those that may be positional, in order. Raises ProgramError naming arguments
    that are missing, given twice, or not the program's."""
    spec = converted.in_spec
    n, keywords = spec.child(0).num_children, list(spec.child(1).context or ())
    if len(args) == n and list(kwargs) == keywords:
        return args, dict(kwargs)
    if len(parameters) < max(n, len(args)):
        return args, dict(kwargs)  # their names are unknown
    expected = [*parameters[:n], *keywords]
    by_name = dict(zip(parameters, args, strict=False))
    for name, value in kwargs.items():
        if name in by_name:
            raise ProgramError(f"argument {name} is given twice")
        by_name[name] = value
    missing = [name for name in expected if name not in by_name]
    others = [name for name, value in by_name.items() if name not in expected]
    if missing or others:
        says = [f"{', '.join(missing)} missing"] if missing else []
        says += [f"{', '.join(others)} not among its example inputs"] if others else []
        raise ProgramError(
            f"the program was exported for the arguments {', '.join(expected)}: {'; '.join(says)}"
        )
    return tuple(by_name[name] for name in parameters[:n]), {k: by_name[k] for k in keywords}
