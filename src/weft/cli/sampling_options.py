"""The options of sampling, by llama.cpp's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from weft.cli.command import CONSTRAINTS, SAMPLING, SAMPLING_MORE
from weft.cli.groups import Group
from weft.errors import ContextError
from weft.llm.sampling import BREAKERS, SAMPLERS, SAMPLING_OPTIONS, SamplingParams
from weft.options import Option

_USUAL = ("--temp", "--top-k", "--top-p", "--min-p", "--seed", "--repeat-penalty")
_LIMITING = ("--grammar", "--json-schema", "--regex")
RANDOM_SEEDS = (-1, 2**32 - 1)
"""Values of --seed that mean a random seed."""


def _breakers(texts: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(_unescaped(b) for b in texts if b != "none") if texts else BREAKERS


def _biases(texts: Sequence[str] | None) -> dict[int, float] | None:
    if not texts:
        return None
    biases = {}
    for text in texts:
        if text.strip().upper() == "EOS-INF":
            raise ContextError("--logit-bias EOS-inf: --ignore-eos does that")
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
_OWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "seed": (int | None, {"help": "Seed of sampling; -1, the default: a random seed."}),
    "dry_sequence_breakers": (list[str] | None, {
        "help": "Text that ends a sequence, in place of the defaults; repeatable; none: none.",
        "default": None,
    }),
    "logit_bias": (list[str] | None, {
        "help": "Added to the logit of token ID; repeatable.", "metavar": "ID+X|ID-X",
    }),
    "samplers": (str, {
        "help": "The chain in order; those not named are left out.", "metavar": "NAMES",
        "default": ";".join(SAMPLERS),
    }),
    "diffusion_algorithm": (str, {"metavar": "NAME|0-4"}),
    "grammar": (str | None, {"help": "A grammar for the text, Lark or GBNF: itself or its file."}),
    "json_schema": (str | None, {"help": "Write JSON of this schema: itself or its file."}),
}  # fmt: skip
"""Flags that differ from the options in Python: their types, and the parts of their records."""
_READ: dict[str, Callable[[Any], Any]] = {
    "top_k": lambda k: 0 if k == -1 else k,
    "seed": lambda seed: None if seed in RANDOM_SEEDS else seed,
    "dry_sequence_breakers": _breakers,
    "logit_bias": _biases,
    "grammar": partial(_text_or_file, "--grammar"),
    "json_schema": partial(_text_or_file, "--json-schema"),
}
"""Makes options in Python of the values of flags."""


def _panel(flag: str) -> str:
    if flag in _LIMITING:
        return CONSTRAINTS
    return SAMPLING if flag in _USUAL else SAMPLING_MORE


class SamplingFlags(Group):
    """The options of sampling. The command gets `SamplingParams`."""

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Option]]:
        """The type and the option of every field of `SamplingParams`."""
        own = {}
        for name, option in SAMPLING_OPTIONS.items():
            kind, changed = _OWN.get(name, (_TYPES[name], {}))
            own[name] = (kind, option._replace(panel=_panel(option.flags[0]), **changed))
        return own

    def made(self, given: Mapping[str, Any]) -> Any:
        """The options; raises ContextError for values out of range."""
        return SamplingParams(**self.read())

    def read(self) -> dict[str, Any]:
        """The options in Python, without those that are None."""
        values = {name: v for name, v in vars(self).items() if v is not None}
        return {name: _READ[name](v) if name in _READ else v for name, v in values.items()}


class SamplingDefaults(SamplingFlags):
    """Options of sampling for requests that do not set them. The command gets a dict of those that
    are given; constraints are not among them."""

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Option]]:
        """The same without defaults."""
        return {
            name: (kind | None, option._replace(default=None))
            for name, (kind, option) in super().options().items()
            if option.panel != CONSTRAINTS
        }

    def made(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that are given; raises ContextError for values out of range."""
        options = self.read()
        SamplingParams(**options)
        return options
