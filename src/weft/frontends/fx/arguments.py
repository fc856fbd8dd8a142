"""Arguments of a call, by position or keyword, in the order that a program was exported with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import ProgramError
from weft.frontends.fx.converted import Converted

__all__ = ["bound_arguments", "positional_names"]


def positional_names(converted: Converted) -> tuple[str, ...]:
    """What positional arguments are called where none of them nests; nothing where one does."""
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
    """Arguments as the program was exported with them: whichever were given by keyword.

    `parameters`: those that may be positional, in order. Raises ProgramError naming arguments that
    are missing, given twice, or not the program's."""
    spec = converted.in_spec
    n, keywords = spec.child(0).num_children, list(spec.child(1).context or ())
    if len(args) == n and list(kwargs) == keywords:
        return args, dict(kwargs)
    if len(parameters) < max(n, len(args)):
        return args, dict(kwargs)  # nobody knows their names
    wanted = [*parameters[:n], *keywords]
    given = dict(zip(parameters, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise ProgramError(f"argument {name} is given twice")
        given[name] = value
    missing = [name for name in wanted if name not in given]
    others = [name for name, value in given.items() if name not in wanted]
    if missing or others:
        says = [f"{', '.join(missing)} missing"] if missing else []
        says += [f"{', '.join(others)} not among its example inputs"] if others else []
        raise ProgramError(
            f"the program was exported for the arguments {', '.join(wanted)}: {'; '.join(says)}"
        )
    return tuple(given[name] for name in parameters[:n]), {k: given[k] for k in keywords}
