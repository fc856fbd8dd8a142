"""`replaces` gives commands the flags of a function in place of a parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

__all__ = ["parameters_of", "replaces"]

Command = Callable[..., None]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, with their annotations as objects."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def replaces(
    name: str, flags: Iterable[inspect.Parameter], make: Callable[..., Any]
) -> Callable[[Command], Command]:
    """A decorator that replaces the parameter `name` of a command by `flags`. The command gets what
    `make` makes of their values."""
    own = list(flags)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_flags(**arguments: Any) -> None:
            chosen = {flag.name: arguments.pop(flag.name) for flag in own}
            command(**arguments, **{name: make(**chosen)})

        parameters = []
        for parameter in parameters_of(command):
            parameters += own if parameter.name == name else [parameter]
        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        with_flags.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return decorate
