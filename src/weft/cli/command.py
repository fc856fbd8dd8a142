"""`WeftCommand` parses a command line and shows help with options in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from weft.cli.console import note
from weft.cli.foreign_options import foreign_option, in_place_of, without_usual
from weft.cli.quick_values import take_plain_values
from weft.options import ADAPTERS, ADVANCED, DEVICES, MODEL, PLACEMENT

__all__ = [
    "ADAPTERS",
    "ADVANCED",
    "CONSTRAINTS",
    "DEVICES",
    "MACHINES",
    "MODEL",
    "OTHERS",
    "PLACEMENT",
    "SAMPLING",
    "SAMPLING_MORE",
    "SWITCH",
    "TEMPLATE",
    "THREADS",
    "ReaderLeft",
    "UsageError",
    "WeftCommand",
    "in_words",
    "usage_error",
]

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The error of a wrong command line, which is raised before anything runs."""


def usage_error(message: str, ctx: Any = None) -> Exception:
    """An error for a wrong command line; the exit code is 2."""
    kind: Any = UsageError
    error: Exception = kind(message, ctx)
    return error


FIT = "The best types for a machine"
SAMPLING = "Sampling"
CONSTRAINTS = "Constraints of the text"
SAMPLING_MORE = "More of sampling"
TEMPLATE = "Chat template and reasoning"
THREADS = "Threads in detail"
MACHINES = "Many machines"
SEVERAL = "Several models"
OTHERS = "A server for others"

_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_GROUPS = (
    *(_ARGUMENTS, _OPTIONS, "Without a model", FIT, MODEL, DEVICES, SAMPLING, CONSTRAINTS),
    *(SAMPLING_MORE, TEMPLATE, ADAPTERS, PLACEMENT, THREADS, MACHINES, SEVERAL, OTHERS, ADVANCED),
)

_METAVARS = {
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "path": "FILE",
    "file": "FILE",
    "Path": "FILE",
}
_TYPE = re.compile(r" <(?:list\[)?([^<>\[\]]+)\]?>")

_OPTIONAL_VALUE = dict.fromkeys(
    (
        *("-fa", "--flash-attn", "-nkvo", "--no-kv-offload", "-nopo", "--no-op-offload"),
        *("--cpu-strict", "--think"),
    ),
    "on",
)
"""Options whose value may be left out, and the value they have then."""
SWITCH = {"on": True, "1": True, "true": True, "auto": True, "off": False, "0": False,
          "false": False}  # fmt: skip
"""The words that such an option takes as its value."""


_ALIKE = 0.7
"""The least similarity, from 0 to 1, of an option that is suggested for an unknown one."""


class ReaderLeft(Exception):
    """The reader of the output has closed the pipe."""


class WeftCommand(TyperCommand):
    """A command whose help lists options by `rich_help_panel`, as plain text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses a line; errors name an unknown option as it was typed."""
        params = self.get_params(ctx)
        take_plain_values(params)
        args = without_usual(_with_files(args), _known(params))
        args = _with_settings(_with_values(_with_switches(args, params), params), params)
        typed = list(args)
        _require_own_options(params, typed, ctx)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            _say_as_typed(error, typed)
            raise _unknown_option(self.get_params(ctx), typed, ctx, error) from None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; raises ReaderLeft if the reader of a pipe has left."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderLeft from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The metavars of the arguments to show, without another pair of brackets."""
        shown = [p for p in self.get_params(ctx) if not getattr(p, "hidden", False)]
        pieces = [piece for p in shown for piece in p.get_usage_pieces(ctx)]
        return ["[OPTIONS]", *(re.sub(r"^[\[{](.*)[\]}]", r"\1", piece) for piece in pieces)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes a list of options for every group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(_group_of(param), []).append(_plain(param, record))
        for name in sorted(groups, key=_GROUPS.index):
            with formatter.section(name):
                formatter.write_dl(groups[name])


def _group_of(param: Any) -> str:
    if param.param_type_name == "argument":
        return _ARGUMENTS
    return getattr(param, "rich_help_panel", None) or _OPTIONS


def _plain(param: Any, record: tuple[str, str]) -> tuple[str, str]:
    """A line of the help, with a metavar in place of the type."""
    left, right = record
    if param.param_type_name == "argument":
        return (param.metavar or left) + ("..." if param.nargs != 1 else ""), right
    return _TYPE.sub(lambda match: " " + _METAVARS.get(match[1], match[1]), left), right


def _with_files(args: Sequence[str]) -> list[str]:
    """Joins the profiles behind `--machines a.toml b.toml` to one value."""
    joined: list[str] = []
    for arg in args:
        last = joined[-1] if joined else ""
        if joined[-2:-1] == ["--machines"] and _is_profile(last) and _is_profile(arg):
            joined[-1] = f"{last},{arg}"
        else:
            joined.append(arg)
    return joined


def _is_profile(arg: str) -> bool:
    """Whether a word of the command line names profiles: files, or machines that weft knows."""
    from weft.schedule.profile import shipped_profiles  # only behind --machines

    name = arg.rpartition(",")[2]
    return arg[:1] != "-" and (name.endswith(".toml") or name in shipped_profiles())


def _with_switches(args: Sequence[str], params: Sequence[Any]) -> list[str]:
    """Options without a value, such as `--fit`, where other engines write `--fit on` or `--fit=0`:
    `on` is the option, `off` the one that says the opposite, or none."""
    flags = {name: p for p in params if getattr(p, "is_flag", False) for name in _names_of(p)}
    take = _taking_values(params)
    full: list[str] = []
    skip = value = False
    for number, arg in enumerate(args):
        if skip or value:
            full += [] if skip else [arg]
            skip = value = False
            continue
        if arg == "--":
            return [*full, *args[number:]]
        value = arg in take
        name, sign, word = arg.partition("=")
        if name not in flags or name in _OPTIONAL_VALUE:
            full.append(arg)
            continue
        if not sign:
            following = args[number + 1] if number + 1 < len(args) else ""
            word = following if following in _WORDS else ""
            skip = bool(word)
        said = SWITCH.get(word, True) if word != "auto" else None
        if sign and word not in SWITCH:
            full.append(arg)
        elif said is True:
            full.append(name)
        elif said is False:
            full += _opposite(flags[name], name)
    return full


_WORDS = ("on", "off", "auto", "true", "false")
"""The words that are taken for the value of an option that has none; 0 and 1 only behind `=`."""


def _names_of(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts]


def _opposite(param: Any, name: str) -> list[str]:
    """The option that says the opposite of `name`, if there is one."""
    others = param.secondary_opts if name in param.opts else param.opts
    return list(others[:1]) if param.secondary_opts else []


def _with_values(args: Sequence[str], params: Sequence[Any]) -> list[str]:
    """Adds the values of options that lack one; see `_OPTIONAL_VALUE`."""
    take = _taking_values(params)
    full: list[str] = []
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        full.append(arg)
        if arg in take and arg in _OPTIONAL_VALUE and following.partition(",")[0] not in SWITCH:
            full.append(_OPTIONAL_VALUE[arg])
        if arg == "--ray" and arg in take and not _is_ray_address(following):
            full.append("auto")
    return full


def _with_settings(args: list[str], params: Sequence[Any]) -> list[str]:
    """Replaces the name of a Modelfile by its model, and puts its settings in front, so that
    options of the line go before them."""
    place = _model_at(args, params)
    if place is None or args[place].endswith(".gguf"):
        return args
    from weft.cli.modelfile import find_modelfile, with_settings

    sign = "--model=" if args[place].startswith("--model=") else ""
    name = args[place].removeprefix(sign)
    if find_modelfile(name) is None:
        return args
    shown = _known([p for p in params if not getattr(p, "hidden", False)])
    model, options, left = with_settings(name, shown, escaped="--no-escape" not in args)
    if left and "--temp" in shown:
        note(f"without effect here: {', '.join(left)} of {name}")
    if "--alias" in shown and not Path(name).exists():
        options.append(f"--alias={name.removesuffix(':latest')}")
    return [*options, *args[:place], f"{sign}{model}", *args[place + 1 :]]


def _model_at(args: Sequence[str], params: Sequence[Any]) -> int | None:
    """The place of the word of a line that names the model, if its command has one."""
    if not any(p.name == "model_argument" for p in params):
        return None
    take = _taking_values(params)
    first = None
    value = False
    for place, arg in enumerate(args):
        if value:
            value = False
            if args[place - 1] in ("-m", "--model"):
                return place
        elif arg.startswith("--model="):
            return place
        elif arg == "--":
            return first if first is not None or place + 1 == len(args) else place + 1
        elif arg.startswith("-") and arg != "-":
            value = arg in take
        elif first is None:
            first = place
    return None if {"-hf", "-hfr", "--hf-repo"} & set(args) else first


def _is_ray_address(text: str) -> bool:
    """True for a value of `--ray`: neither a file nor an option."""
    return re.fullmatch(r"auto|local|ray://.+|[^/\\-][^/\\]*:\d+", text) is not None


def _taking_values(params: Sequence[Any]) -> set[str]:
    """The options that take the next word as their value."""
    return {name for p in params if not getattr(p, "is_flag", False) for name in p.opts}


def _known(params: Sequence[Any]) -> set[str]:
    return {name for p in params for name in (*p.opts, *p.secondary_opts) if name[0] == "-"}


def _require_own_options(params: Sequence[Any], args: Sequence[str], ctx: Any) -> None:
    """Raises a usage error for an option of other engines, with what there is in its place."""
    name = foreign_option(args, _known(params), _taking_values(params))
    if name:
        raise usage_error(f"there is no option {name}: {in_place_of(name)}", ctx)


def _say_as_typed(error: Any, args: Sequence[str]) -> None:
    """Makes an error about an option name it as it was typed."""
    names = getattr(getattr(error, "param", None), "opts", ())
    used = [arg.partition("=")[0] for arg in args]
    error.param_hint = next((name for name in names if name in used), None)


def _unknown_option(
    params: Sequence[Any], args: Sequence[str], ctx: Any, error: Exception
) -> Exception:
    """An error for an option that is unknown as a whole, or else `error`.

    Click reads `-ngll 5` as `-n gll`, and its message about that would not help."""
    known = _known(params)
    shown = _known([p for p in params if not getattr(p, "hidden", False)])
    for arg in args:
        if arg == "--":
            break
        name = arg.partition("=")[0]
        is_word = re.fullmatch(r"--?[A-Za-z][\w-]*", name)
        if is_word and name not in known and _caused(error, name):
            return usage_error(f"there is no option {name}{_meant(name, shown)}", ctx)
    return in_words(error)


def in_words(error: Any) -> Exception:
    """The parser's error, with weft's sentence for an unknown option."""
    if not hasattr(error, "possibilities"):  # which the error for an unknown option has
        known: Exception = error
        return known
    name, near = error.option_name, set(error.possibilities or ())
    return usage_error(f"there is no option {name}{_meant(name, near)}", error.ctx)


def _caused(error: Exception, name: str) -> bool:
    """True if an error is about the option `name`, whole or cut into letters."""
    option = getattr(error, "option_name", None)
    if option is not None:
        return option == name or (name[1] != "-" and len(option) == 2)
    param = getattr(error, "param", None)
    return param is not None and name[1] != "-" and name[:2] in param.opts


def _meant(name: str, known: set[str]) -> str:
    close = get_close_matches(name, sorted(known), 3, _ALIKE)
    return f"; did you mean {' or '.join(close)}?" if close else ""
