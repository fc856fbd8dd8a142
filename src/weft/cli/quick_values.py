"""Values of options without typer's validators.

Typer makes a validator of pydantic for every parameter of a command, also for those that have their
default. Importing pydantic and making a hundred validators takes as long as the rest of a command's
start. Here are the values that need none; everything else, errors included, stays typer's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_NONE: Any = object()
"""Stands for a value that typer has to convert."""


def take_plain_values(params: Iterable[Any]) -> None:
    """Makes typer's parameters convert values of their own type, and plain texts, themselves."""
    for param in params:
        if hasattr(param, "type_descriptor") and "process_value" not in vars(param):
            param.process_value = _processing(param, param.process_value)


def _processing(param: Any, typers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def process(ctx: Any, value: Any) -> Any:
        plain = _plain(param, value)
        if plain is _NONE or (param.required and param.value_is_missing(plain)):
            return _by_typer(param, typers, ctx, value)
        return plain if param.callback is None else param.callback(ctx, param, plain)

    return process


def _by_typer(param: Any, typers: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    try:
        return typers(ctx, value)
    except typer.BadParameter as error:
        kind = param.type_descriptor.annotation
        several = get_origin(kind) in (list, tuple)
        kind = get_args(kind)[0] if several else kind
        parsed = param.type_descriptor.parameter_info.parser is not None
        values = value if several else [value]
        if parsed or kind not in _WANTED or all(_is(kind, v) for v in values):
            error.message = error.message.removeprefix("Value error, ")  # which pydantic puts there
            raise
        raise typer.BadParameter(_WANTED[kind], ctx, param) from None


_WANTED: dict[Any, str] = {int: "write a whole number", float: "write a number"}


def _is(kind: Callable[[Any], Any], value: Any) -> bool:
    try:
        kind(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _plain(param: Any, value: Any) -> Any:
    """The converted value; `_NONE`: typer has to convert it, or to refuse it."""
    about, kind = param.type_descriptor.parameter_info, param.type_descriptor.annotation
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    if about.parser is not None or about.min is not None or about.max is not None:
        return _NONE if about.parser is None or several else _parsed(about.parser, value)
    if not several:
        return _NONE if param.nargs != 1 else _converted(kind, value, about)
    if isinstance(value, str) or get_origin(kind) is not list:
        return _NONE
    each = [_converted(get_args(kind)[0], v, about) for v in value]
    return _NONE if any(v is _NONE for v in each) else each


def _parsed(parser: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parser(value)
    except (ValueError, AssertionError):
        return _NONE  # typer's message has the text of the error


def _converted(kind: Any, value: Any, about: Any) -> Any:
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, kind):
        return value
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if not isinstance(value, str):
        return _NONE
    if kind is int and _INTEGER.fullmatch(value):
        return int(value)
    if kind is float and _NUMBER.fullmatch(value):
        return float(value)
    return _path(value, about) if kind is Path else _NONE


def _path(value: str, about: Any) -> Any:
    """A path without conditions, or a file that can be read."""
    asked = about.exists or about.writable or about.resolve_path or about.allow_dash
    if asked or not (about.file_okay and about.dir_okay) or about.path_type is not None:
        return _NONE
    readable = not about.readable or not os.path.lexists(value) or os.access(value, os.R_OK)
    return Path(value) if readable and "\0" not in value else _NONE
