"""Options by name: a record of each, errors that suggest the nearest one, and signatures that show
all of them.

A table of options maps names to `Option`s; a TypedDict with the same keys has their types.
`shows_options` adds a table to what `help()` and `inspect.signature` show; `weft.cli.groups` makes
flags of it, and `weft.serve.many.settings` keys of files.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

from weft.errors import ArgumentError, ContextError, WeftError, warn

MODEL = "Model and context"
ADAPTERS = "Adapters"
DEVICES = "Devices and threads"
PLACEMENT = "Placement by hand"
ADVANCED = "Advanced"

F = TypeVar("F", bound=Callable[..., Any])

_OTHER_NAMES = {
    "temp": "temperature", "max_new_tokens": "max_tokens", "max_length": "max_tokens",
    "max_completion_tokens": "max_tokens", "n_predict": "max_tokens", "num_predict": "max_tokens",
    "num_ctx": "n_ctx", "ctx_size": "n_ctx", "context_length": "n_ctx", "max_model_len": "n_ctx",
    "max_seq_len": "n_ctx", "repetition_penalty": "repeat_penalty",
    "penalty_repeat": "repeat_penalty", "penalty_last_n": "repeat_last_n",
    "penalty_present": "presence_penalty", "penalty_freq": "frequency_penalty",
    "typ_p": "typical_p", "typical": "typical_p", "mirostat_mode": "mirostat",
    "mirostat_lr": "mirostat_eta", "mirostat_ent": "mirostat_tau", "guided_json": "json_schema",
    "guided_regex": "regex", "guided_grammar": "grammar", "stop_sequences": "stop",
    "stop_strings": "stop", "random_seed": "seed", "streaming": "stream",
    "num_threads": "n_threads", "num_gpu": "n_gpu_layers", "ngl": "n_gpu_layers",
    "gpu_layers": "n_gpu_layers", "device": "devices", "flash_attn": "flash",
    "flash_attention": "flash", "batch_size": "n_batch", "ubatch_size": "n_ubatch",
    "embedding": "embeddings", "cache_type_k": "type_k", "cache_type_v": "type_v", "ctk": "type_k",
    "ctv": "type_v", "tensor_split": "place", "backend": "devices", "backends": "devices",
    **dict.fromkeys(("model", "model_path", "model_name", "filename", "file"), "path"),
    **dict.fromkeys(("prompts", "text", "texts", "inputs"), "prompt"),
}  # fmt: skip
"""Names of options in other programs, and the names that weft has for them."""

_WRITTEN = {"ray": ("machines", 'machines="ray", or machines="ray:HOST:PORT"')}
"""Names that are values of another option here: that option, and how it is written."""


class Option(NamedTuple):
    """All that is said about an option besides its type."""

    default: Any
    about: str
    """Says what the option does, in which unit, and what a default of None means."""
    flags: tuple[str, ...] = ()
    """The names of the option on the command line, the one for errors first; `--on/--off` has a
    name for each of two values. Empty: it has no flag."""
    panel: str = ""
    """The group in which the help of commands lists the flags."""
    metavar: str | None = None
    """Stands for a value in the help of commands; None: the type says it."""
    help: str = ""
    """The text for the command line; empty: `about`."""
    read: Callable[[Any], Any] | None = None
    """Converts a text of the command line; raises ValueError. None: the type says how."""
    more: Mapping[str, Any] = MappingProxyType({})
    """Other arguments of `typer.Option`."""


def option(
    default: Any, about: str, flags: str = "", panel: str = "", metavar: str | None = None,
    *, help: str = "", read: Callable[[Any], Any] | None = None, **more: Any,
) -> Any:  # fmt: skip
    """An `Option`, as the entry of a table or the value of a field; `flags` has spaces between."""
    return Option(default, about, tuple(flags.split()), panel, metavar, help, read, more)


_COUNT = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)


def parse_tokens(text: str | int) -> int:
    """Parses a number of tokens, such as `4096`, `4k` or `0.5k` (k: 1024, m: 1024 k)."""
    count = _COUNT.fullmatch(str(text).strip())
    if count is None:
        raise ValueError(f"{text!r} is no number of tokens; write 4096, 32k or 1m")
    return int(float(count[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[count[2].lower()])


def parse_layers(text: str | int) -> int:
    """Parses a number of layers, such as `20`; -1 for `all`, `auto` or `-1`."""
    word = str(text).strip().lower()
    if word in ("all", "auto", "-1"):
        return -1
    if not word.isdigit():
        raise ValueError(f"{text!r} is no number of layers; write 20, or all")
    return int(word)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None if none is similar."""
    names = list(known)
    other = _OTHER_NAMES.get(name.lower())
    if other in names:
        return other
    near = get_close_matches(name.lower(), names, 1)
    return near[0] if near else None


def require_options(what: str, names: Iterable[str], known: Sequence[str], see: str = "") -> None:
    """Raises ArgumentError for the first of `names` that is not in `known`.

    For the message, `what` says what has the options and `see` where all of them are listed."""
    for name in names:
        if name in known:
            continue
        near = nearest(name, known)
        other, written = _WRITTEN.get(name, ("", ""))
        if other in known:
            hint = f"it is written {written}"
        elif near is not None:
            hint = f"did you mean {near}?"
        elif not known:
            hint = "it has none"
        elif len(known) <= 6:
            hint = f"it has {', '.join(known)}"
        else:
            hint = f"it has {', '.join(known[:3])} and {len(known) - 3} more"
        listed = f" ({see} lists all)" if see and len(known) > 1 else ""
        raise ArgumentError(f"{what} has no option {name!r}; {hint}{listed}")


class Retired(NamedTuple):
    """An option of the last version, which this one takes and the next one refuses."""

    instead: str
    """A clause for the warning: what to write instead."""
    refused_from: str
    """The version that refuses it."""
    name: str = ""
    """The option that has its value now; empty: the value has no effect."""


def without_retired(
    what: str, options: Mapping[str, Any], retired: Mapping[str, Retired]
) -> dict[str, Any]:
    """`options` under their names of today, with a DeprecationWarning for each retired one.

    `what` says what has the options; the warning names the line that called weft. Raises
    ArgumentError for an option that is given under both names."""
    taken = dict(options)
    for old in [name for name in retired if name in options]:
        instead, version, name = retired[old]
        if name in options:
            raise ArgumentError(f"{what} has one option {name!r}, once {old!r}; give {name} alone")
        value = taken.pop(old)
        if name:
            taken[name] = value
        warn(f"{what} refuses {old!r} from weft {version} on; {instead}", DeprecationWarning)
    return taken


def require_choice(
    argument: str, value: object, known: Sequence[str], error: type[WeftError] = ArgumentError
) -> None:
    """Raises `error`, which suggests the nearest word, if `value` is not in `known`."""
    if value in known:
        return
    near = nearest(value, known) if isinstance(value, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    words = " or ".join(map(repr, known))
    raise error(f"is {value!r}; it must be {words}{hint}", argument=argument)


def plain_values(types: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with every whole number as an `int` and every switch as a `bool`; NumPy's are
    neither. `types` is the TypedDict with the same keys, whose types say which these are.

    Raises ContextError for another type in place of a whole number, and ArgumentError in place of a
    switch and of a function. None passes: it stands for the default."""
    plain = dict(options)
    for name, value in options.items():
        if value is None or name not in types.__annotations__:
            continue
        kinds = {word for word in _type_text(types, name).split(" | ") if word != "None"}
        if kinds == {"int"}:
            plain[name] = whole_number(name, value)
        elif kinds == {"bool"}:
            if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
                raise ArgumentError(f"is {value!r:.60}; it must be True or False", argument=name)
            plain[name] = bool(value)
        elif kinds <= _CALLED and not callable(value):
            raise ArgumentError(f"is {value!r:.60}; it must be a function", argument=name)
    return plain


_CALLED = {"Progress", "TensorCallback"}
"""The types of options that are functions."""


def whole_number(argument: str, value: object, error: type[WeftError] = ContextError) -> int:
    """A whole number, also one of NumPy, as an `int`. Raises `error` for anything else, True and
    False among it."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise error(f"is {value!r:.60}; it must be a whole number", argument=argument)


def path_text(path: object, argument: str = "path") -> str:
    """The text of a path that a user gave. Raises ArgumentError for an empty one, and for what is
    neither a text nor a `pathlib.Path`."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str) and text:
        return text
    raise ArgumentError(
        f"is {path!r:.60}; it must be a text or a pathlib.Path, such as 'model.gguf'",
        argument=argument,
    )


def shows_options(types: type, options: Mapping[str, Option], heading: str) -> Callable[[F], F]:
    """Decorates a function that takes `**options` so that its signature and docstring list each
    option with type and default. `types` is the TypedDict with the same keys."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        own = {p.name: p.annotation for p in shown}
        lines = ["", "", heading, ""]
        for name, option in options.items():
            annotation = own.get(name) or _type_text(types, name)
            if name not in own:
                shown.append(_parameter(name, option.default, annotation))
            lines.append(f"  {name}: {annotation} = {option.default!r}")
            lines += textwrap.wrap(option.about, 92, initial_indent=" " * 6,
                                   subsequent_indent=" " * 6)  # fmt: skip
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n".join(lines)
        return asks_by_name(function)

    return decorate


def asks_by_name(function: F) -> F:
    """Decorates a method with options by name: a call without its first argument, or with more
    arguments by place than it has, raises an ArgumentError that says how it is written."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [
        p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
    ]
    what = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        missing = next((name for name in needed[len(args) - 1 :] if name not in given), None)
        if missing is not None:
            other = next((name for name in given if _OTHER_NAMES.get(name) == missing), None)
            hint = "" if other is None else f"; {other!r} is written {missing}"
            raise ArgumentError(f"{what} needs {missing}, its first argument{hint}")
        if len(args) - 1 > len(places):
            raise ArgumentError(
                f"{what} takes {', '.join(places)} by place and options by name, such as "
                "sampling=weft.SamplingParams(...)"
            )
        return function(*args, **given)

    return cast(F, checked)


def _parameter(name: str, default: object, annotation: str) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _type_text(types: type, name: str) -> str:
    """The type of a key of a TypedDict, as the source writes it. Raises TypeError without one."""
    for base in (types, *getattr(types, "__orig_bases__", ())):
        annotation = getattr(base, "__annotations__", {}).get(name)
        if annotation is not None:
            return str(getattr(annotation, "__forward_arg__", annotation))
    raise TypeError(f"the option {name!r} has no type: {types.__name__} needs a key {name!r}")
