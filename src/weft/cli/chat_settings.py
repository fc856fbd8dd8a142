"""Settings of a conversation, which `/set` changes and `/show` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from weft.errors import ChatError, ContextError
from weft.llm import SamplingParams
from weft.llm.chat.template import NO_REASONING
from weft.llm.generate_options import GenerateOptions, stop_strings

_EFFORTS = ("low", "medium", "high")
_THINKS = ("enable_thinking", "thinking", "reasoning_effort")


class ChatSettings:
    """The settings of a conversation."""

    def __init__(
        self, options: GenerateOptions, variables: dict[str, Any], *, verbose: bool
    ) -> None:
        """`options` are options of `LLM.generate`, `variables` the template's."""
        self.options = options
        self.variables = variables
        self.verbose = verbose
        """True if tokens and speed follow each answer."""
        self.wraps = True
        """True if lines are broken between words on a terminal."""
        self._changes: dict[str, Callable[[str], None]] = {
            "parameter": self._set_parameter,
            "think": self._think,
            "nothink": lambda _: self._replace(NO_REASONING),
            "format": self._set_format,
            "noformat": lambda _: self._sample(json_schema=None),
            "verbose": lambda _: setattr(self, "verbose", True),
            "quiet": lambda _: setattr(self, "verbose", False),
            "wordwrap": lambda _: setattr(self, "wraps", True),
            "nowordwrap": lambda _: setattr(self, "wraps", False),
        }

    @property
    def sampling(self) -> SamplingParams:
        """The options of sampling."""
        return SamplingParams.combine(self.options.get("sampling"), {})

    def change(self, text: str) -> None:
        """Does what is written behind `/set`. Raises ChatError or ContextError if it cannot."""
        name, _, value = text.partition(" ")
        change = self._changes.get(name.lower())
        if change is None:
            raise ChatError(
                "write /set parameter NAME VALUE, /set system TEXT, or /set and one of: "
                + ", ".join(list(self._changes)[1:])
            )
        change(value.strip())

    def lines(self) -> Iterator[str]:
        """The settings, a line each."""
        default = asdict(SamplingParams())
        for name, value in asdict(self.sampling).items():
            if name in ("temperature", "top_k", "top_p", "min_p", "seed") or value != default[name]:
                yield f"{name} {-1 if value is None else value}"
        limit = self.options.get("max_tokens")
        yield f"num_predict {-1 if limit is None else limit}"
        for stop in stop_strings(self.options):
            yield f"stop {stop!r}"
        if self.variables:
            yield f"template: {json.dumps(self.variables)}"

    def _set_parameter(self, text: str) -> None:
        name, _, value = text.partition(" ")
        name, value = name.lower().replace("-", "_"), value.strip()
        if name == "stop":
            self.options["stop"] = (*stop_strings(self.options), value.strip('"'))
        elif name in ("num_predict", "max_tokens"):
            n = _number(name, value)
            if not isinstance(n, int):
                raise ContextError(f"{name} is {value!r:.40}; it must be a whole number")
            self.options["max_tokens"] = None if n < 0 else n
        elif name in ("num_ctx", "n_ctx"):
            raise ChatError(f"{name} is set at the start: weft chat -c {value or 'N'}")
        elif isinstance(getattr(SamplingParams(), name, None), int | float):
            self._sample(**{name: _number(name, value)})
        elif name == "seed":
            n = _number(name, value)
            self._sample(seed=None if n < 0 else n)
        else:
            raise ChatError(f"there is no parameter {name!r:.40}; there are {_parameters()}")

    def _think(self, effort: str) -> None:
        if effort and effort not in _EFFORTS:
            raise ChatError(f"/set think {effort:.40}: write low, medium, high, or nothing")
        level = {"reasoning_effort": effort} if effort else {}
        self._replace({"enable_thinking": True} | level)

    def _replace(self, variables: dict[str, Any]) -> None:
        kept = {k: v for k, v in self.variables.items() if k not in _THINKS}
        self.variables = kept | variables

    def _set_format(self, name: str) -> None:
        if name not in ("json", ""):
            raise ChatError("/set format json is the one format; --json-schema has others")
        self._sample(json_schema='{"type": "object"}')

    def _sample(self, **changes: Any) -> None:
        self.options["sampling"] = SamplingParams.combine(self.sampling, changes)


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ContextError(f"{name} is {text!r:.40}; it must be a number") from None


def _parameters() -> str:
    default = asdict(SamplingParams())
    numbers = [name for name, value in default.items() if isinstance(value, int | float)]
    return ", ".join([*numbers, "seed", "num_predict", "stop"])
