"""The options of sampling, by llama.cpp's names.

    @sampling_flags
    def run(model: ModelFile, sampling: SamplingParams) -> None: ...

The decorator replaces the parameter `sampling` by all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from weft.cli.command import CONSTRAINTS, SAMPLING, SAMPLING_MORE
from weft.cli.mistakes import flag_name
from weft.cli.replaced import replaces
from weft.errors import ContextError, named
from weft.llm.sampling import BREAKERS, SAMPLERS, SAMPLING_OPTIONS, SamplingParams
from weft.options import require_options

__all__ = ["default_sampling_flags", "sampling_flags", "sampling_params"]


_USUAL = ("--temp", "--top-k", "--top-p", "--min-p", "--seed", "--repeat-penalty")
_LIMITING = ("--grammar", "--json-schema", "--regex")
RANDOM_SEEDS = (-1, 2**32 - 1)
"""Values of --seed that mean a random seed."""


class _Flag:
    """The flag of an option of `SamplingParams`."""

    def __init__(
        self,
        option: str,
        *,
        help: str = "",
        metavar: str | None = None,
        read: Callable[[Any], Any] = lambda value: value,
        **other: Any,
    ) -> None:
        """`help` is by default the library's text of the option. `read` converts the value on the
        command line to the option's value. `other` may have a `type` and a `default` that differ
        from those of the option."""
        names = SAMPLING_OPTIONS[option].flags
        self.parameter = names[0].removeprefix("--").replace("-", "_")
        self.read = read
        self._other = other
        group = SAMPLING if names[0] in _USUAL else SAMPLING_MORE
        panel = CONSTRAINTS if names[0] in _LIMITING else group
        about = help or named(SAMPLING_OPTIONS[option].about, flag_name)
        self._typer = typer.Option(*names, help=about, metavar=metavar, rich_help_panel=panel)

    def signature(self, option: str) -> inspect.Parameter:
        """The parameter of a command."""
        return inspect.Parameter(
            self.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=self._other.get("default", SAMPLING_OPTIONS[option].default),
            annotation=Annotated[self._other.get("type", _TYPES[option]), self._typer],
        )


def _top_k(k: int) -> int:
    return 0 if k == -1 else k


def _seed(seed: int | None) -> int | None:
    return None if seed in RANDOM_SEEDS else seed


def _breakers(texts: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(_unescaped(b) for b in texts if b != "none") if texts else BREAKERS


def _biases(texts: Sequence[str] | None) -> dict[int, float] | None:
    if not texts:
        return None
    biases = {}
    for text in texts:
        match = re.fullmatch(r"(\d+)([+-].+)", text.strip())
        try:
            if match is None:
                raise ValueError
            biases[int(match[1])] = float(match[2])
        except ValueError:
            raise ContextError(
                f"--logit-bias {text!r}: write ID+NUMBER or ID-NUMBER, e.g. 13-2.5 or 13-inf"
            ) from None
    return biases


def _text_or_file(option: str, text: str | None) -> str | None:
    """The text itself, or the contents of the file of that name."""
    if text is None or any(sign in text for sign in '\n"{}'):
        return text
    path = Path(text)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise ContextError(f"{option}: cannot read {path}: {e}") from None
    if path.suffix in (".json", ".gbnf", ".lark"):
        raise ContextError(f"{option}: no such file {path}")
    return text


def _unescaped(text: str) -> str:
    r"""Replaces `\n` and `\t`, written as two characters each, by the character."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


_TYPES = get_type_hints(SamplingParams)
_OWN: dict[str, dict[str, Any]] = {
    "top_k": {"read": _top_k},
    "seed": {
        "help": "Seed of sampling; -1, the default: a random seed.",
        "read": _seed,
    },
    "dry_sequence_breakers": {
        "help": "Text that ends a sequence, in place of the defaults; repeatable; none: none.",
        "type": list[str] | None,
        "default": None,
        "read": _breakers,
    },
    "logit_bias": {
        "help": "Added to the logit of token ID; repeatable.",
        "metavar": "ID+X|ID-X",
        "type": list[str] | None,
        "read": _biases,
    },
    "samplers": {
        "help": "The chain in order; those not named are left out.",
        "metavar": "NAMES",
        "type": str,
        "default": ";".join(SAMPLERS),
    },
    "grammar": {
        "help": "A grammar for the text, Lark or GBNF: itself or its file.",
        "read": partial(_text_or_file, "--grammar"),
    },
    "json_schema": {
        "help": "Write JSON of this schema: itself or its file.",
        "type": str | None,
        "read": partial(_text_or_file, "--json-schema"),
    },
}
"""Flags whose values differ from those in Python."""
_FLAGS = {option: _Flag(option, **_OWN.get(option, {})) for option in SAMPLING_OPTIONS}
_PARAMETERS = {option: flag.signature(option) for option, flag in _FLAGS.items()}


def sampling_params(**values: Any) -> SamplingParams:
    """Converts the values of flags, by their names, to `SamplingParams`; others have defaults.

    Raises ContextError for values out of range."""
    options = {}
    for option, flag in _FLAGS.items():
        value = values.pop(flag.parameter, _PARAMETERS[option].default)
        options[option] = flag.read(value)
    require_options("sampling", values, [flag.parameter for flag in _FLAGS.values()])
    return SamplingParams(**options)


def _given_options(**values: Any) -> dict[str, Any]:
    """The options of sampling that are given, as arguments of `SamplingParams`; checked.

    Raises ContextError for values out of range."""
    given = {
        option: flag.read(values[flag.parameter])
        for option, flag in _FLAGS.items()
        if values.get(flag.parameter) is not None
    }
    SamplingParams(**given)
    return given


_DEFAULTS = [
    parameter.replace(default=None, annotation=Annotated[args[0] | None, *args[1:]])
    for option, parameter in _PARAMETERS.items()
    if SAMPLING_OPTIONS[option].flags[0] not in _LIMITING
    for args in [get_args(parameter.annotation)]
]
default_sampling_flags = replaces("sampling", _DEFAULTS, _given_options)
"""Replaces the parameter `sampling` of a command by the flags that are no constraints; it gets a
dict of those that are given."""
sampling_flags = replaces("sampling", _PARAMETERS.values(), sampling_params)
"""Replaces the parameter `sampling` of a command by the flags."""
