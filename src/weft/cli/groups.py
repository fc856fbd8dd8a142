"""Groups of options: classes whose fields are flags, which a command takes as one object.

    class Output(Group):
        quiet: bool = option(False, "Print the new text only.", "--quiet -q")

    @grouped
    def run(model: ModelFile, own: Output) -> None: ...

A field without a value has the option of its name in `table`. What a command gets may be something
else than the group, which its annotation says: `Annotated[SamplingParams, SamplingFlags]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

from weft.cli.mistakes import flag_name, name_flag
from weft.errors import named
from weft.options import Option

Command = Callable[..., None]

ABSENT: Any = object()
"""The value of a field that a group has not, though the group that it is derived from has it; its
objects have None there."""


class Group:
    """Options of a command. A class that is derived from a group may change some of them."""

    table: ClassVar[Mapping[str, Option]] = {}
    """The options of fields that are given without a value, or with their default alone."""
    last: ClassVar[bool] = False
    """True if the values of the other groups are checked first."""

    def __init__(self, **values: Any) -> None:
        """Fields that are not given have their defaults. Raises TypeError for an unknown name."""
        for name, (_, option) in self.options().items():
            setattr(self, name, values.pop(name, option.default))
        for name in _hints(type(self)):
            if getattr(self, name, None) is ABSENT:
                setattr(self, name, None)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Option]]:
        """The type and the option of each field, in order; one without flags has one like its
        name."""
        found = {}
        for name, kind in _hints(cls).items():
            given = getattr(cls, name, cls.table.get(name))
            if given is ABSENT or get_origin(kind) is ClassVar:
                continue
            if not isinstance(given, Option):
                given = cls.table[name]._replace(default=given)
            flags = given.flags or (f"--{name.replace('_', '-')}",)
            found[name] = (kind, given._replace(flags=flags))
        return found

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The parameters of a command that has these options."""
        return [_parameter_of(name, *each) for name, each in cls.options().items()]

    def made(self, given: Mapping[str, Any]) -> Any:
        """The object that the command gets; `given` has the values of all its parameters."""
        return self


_known: dict[type[Group], dict[str, Any]] = {}


def _hints(group: type[Group]) -> dict[str, Any]:
    """The types of the fields, which take time to be evaluated."""
    if group not in _known:
        _known[group] = get_type_hints(group, include_extras=True)
    return _known[group]


def changed(option: Option, **parts: Any) -> Any:
    """The option with other parts, as the value of a field."""
    return option._replace(**parts)


def _parameter_of(name: str, kind: Any, option: Option) -> inspect.Parameter:
    """The parameter of a command for an option."""
    name_flag(name, option.flags[0].partition("/")[0])
    info = typer.Option(
        *(f" {flag}" if flag[0] == "/" else flag for flag in option.flags),
        help=option.help or named(option.about, _in_help), parser=option.read,
        metavar=option.metavar, rich_help_panel=option.panel or None, **option.more,
    )  # fmt: skip
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option.default,
        annotation=Annotated[kind, info],
    )  # fmt: skip


def _in_help(argument: str) -> str:
    return flag_name(argument, "`{}`")


def _groups_of(parameter: inspect.Parameter) -> Iterator[type[Group]]:
    for part in (parameter.annotation, *get_args(parameter.annotation)):
        if isinstance(part, type) and issubclass(part, Group):
            yield part


def grouped(command: Command) -> Command:
    """Replaces each parameter of a command that is a group by the options of the group."""
    groups: dict[str, type[Group]] = {}
    flags: dict[str, list[str]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = next(_groups_of(parameter), None)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        own = group.parameters()
        groups[parameter.name] = group
        flags[parameter.name] = [p.name for p in own]
        parameters += own
    in_order = sorted(groups, key=lambda name: groups[name].last)

    @wraps(command)
    def with_groups(**given: Any) -> None:
        made = {
            name: groups[name](**{flag: given[flag] for flag in flags[name]}).made(given)
            for name in in_order
        }
        taken = {flag for names in flags.values() for flag in names}
        command(**{name: v for name, v in given.items() if name not in taken}, **made)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
    del with_groups.__wrapped__  # typer would read its signature
    return with_groups
