"""The settings of a server's models from a TOML file.

[defaults]
ctx-size = 8192

[models.small]                 # the model small.gguf or the folder small
aliases = ["gpt-4o-mini"]
ctx-size = 4096
keep-alive = "10m"

[models.other]                 # a model elsewhere
path = "/data/other.gguf"
system = "You are a pirate."
chat-template = "pirate.jinja"                # a file, or the template itself
chat-template-kwargs = {enable_thinking = false}
sampling = {temperature = 0.7, top_p = 0.8}   # by the names of weft.llm.SamplingParams
lora = ["ship.gguf"]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from weft.errors import ContextError, FormatError, ScheduleError
from weft.files import read_text
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.chat.template import CHATML, OWN_VARIABLES
from weft.llm.hub import local_path
from weft.llm.planning.options import LLM_OPTIONS
from weft.llm.sampling import SAMPLING_OPTIONS, SamplingParams
from weft.options import Option
from weft.records import dataclass
from weft.schedule.offload import read_op_offload

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_TIME = 'it must be seconds or a time such as "5m", -1 for always'
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_duration(value: Any) -> float | None:
    """The seconds of a number or a text such as `1h30m`; None for a negative one, which means
    always. Raises ValueError for anything else."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
            if not _DURATION.fullmatch(text):
                raise ValueError(
                    'it must be seconds or a time such as "5m", -1 for always'
                ) from None
            value = sign * sum(float(n) * _SECONDS[unit] for n, unit in _PART.findall(text))
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(_TIME)
    return None if value < 0 or value > 1e9 else float(value)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of one model; None: those of the command line."""

    path: Path | None = None
    aliases: tuple[str, ...] = ()
    """Further names of the model."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Service` by weft's names, such as `n_ctx`."""
    parallel: int | None = None
    max_tokens: int | None = None
    mmproj: Path | None = None
    embeddings: bool | None = None
    keep_alive: float | str | None = field(default="")
    """Seconds; None: always; empty: as the server has it."""
    system: str | None = None
    """System message of chats that have none."""
    chat_template: str | None = None
    """Jinja template in place of the model's."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template for requests that do not set them."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Options of `SamplingParams` for requests that do not set them."""
    lora: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """LoRA adapters by name: their files and scales."""
    load: bool | None = None
    """True loads the model at the start."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The settings of all models that a file names."""

    defaults: ModelSettings = field(default_factory=ModelSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def of(self, name: str) -> ModelSettings:
        """The settings of a model, completed by the defaults."""
        own = self.models.get(name)
        if own is None:
            return self.defaults
        empty = ModelSettings()
        merged = {}
        for f in fields(ModelSettings):
            value = getattr(own, f.name)
            merged[f.name] = (
                getattr(self.defaults, f.name) if value == getattr(empty, f.name) else value
            )
        merged["arguments"] = {**self.defaults.arguments, **own.arguments}
        return ModelSettings(**merged)


def read_settings(path: Path) -> SettingsFile:
    """Reads a file. Paths in it are relative to it. Raises FormatError, which names the file, the
    model and the key, for anything that is not a setting."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        ini = "; a preset of llama-server has another form" if path.suffix == ".ini" else ""
        raise FormatError(f"{path} is not TOML: {error}{ini}, see docs/many-models.md") from None
    unknown = sorted(set(data) - {"defaults", "models"})
    if unknown:
        raise FormatError(f"{path} has {unknown[0]!r}; there are [defaults] and [models.NAME]")
    tables = data.get("models", {})
    if not isinstance(tables, dict):
        raise FormatError(f"{path}: models is no table; write [models.NAME]")
    defaults = _settings(path, "defaults", data.get("defaults", {}))
    if defaults.path or defaults.aliases or defaults.mmproj or defaults.lora:
        raise FormatError(
            f"{path}: path, aliases, mmproj and lora are of one model, not of [defaults]"
        )
    return SettingsFile(
        defaults, {name: _settings(path, f"models.{name}", t) for name, t in tables.items()}
    )


def _settings(path: Path, where: str, table: Any) -> ModelSettings:
    if not isinstance(table, dict):
        raise FormatError(f"{path}: [{where}] is no table")
    values: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for key, value in table.items():
        name, reader = _ARGUMENTS.get(key, (key.replace("-", "_"), _READERS.get(key)))
        if reader is None:
            known = ", ".join(sorted({*_READERS, *_ARGUMENTS}))
            raise FormatError(f"{path}: [{where}] has {key!r}; known are {known}")
        try:
            (arguments if key in _ARGUMENTS else values)[name] = reader(path, value)
        except ValueError as error:
            raise FormatError(f"{path}: {key} of [{where}] is {value!r:.60}; {error}") from None
    return ModelSettings(arguments=arguments, **values)


def _count(low: int) -> Callable[[Path, Any], int]:
    def read(_: Path, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"it must be a whole number, {low} or more")
        return value

    return read


def _flag(_: Path, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def _text(_: Path, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it must be a text")
    return value


def _names(path: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("it must be a list of texts")
    return tuple(_text(path, name) for name in value)


def _template(path: Path, value: Any) -> str:
    text = _text(path, value)
    if "{{" in text or "{%" in text:
        return text
    if text == "chatml":
        return CHATML
    file = path.parent / Path(text).expanduser()
    try:
        return read_text(file)
    except (OSError, FormatError) as error:
        raise ValueError(f"it must be a Jinja template or its file: {error}") from None


def _variables(_: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it must be a table")
    for name in value:
        if name in OWN_VARIABLES or not name.isidentifier():
            raise ValueError(f"{name!r} is not to be set")
    return value


_OF_REQUESTS = ("grammar", "json_schema", "regex", "logit_bias")
"""Options of sampling that a request alone can have."""


def _sampling(_: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it must be a table")
    known = [name for name in SAMPLING_OPTIONS if name not in _OF_REQUESTS]
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is none of {', '.join(known)}")
    options: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in value.items()
    }
    try:
        SamplingParams(**options)
    except (ContextError, TypeError) as error:
        raise ValueError(str(error)) from None
    return options


def _adapters(path: Path, value: Any) -> dict[str, tuple[str, float]]:
    files = _names(path, value)
    places = [_place(path, file) for file in files]
    return {place.stem: (str(place), 1.0) for place in places}


def _place(path: Path, value: Any) -> Path:
    return path.parent / local_path(_text(path, value)).expanduser()


def _op_offload(_: Path, value: Any) -> Any:
    try:
        read_op_offload(value)
    except ScheduleError as error:
        raise ValueError(str(error)) from None
    return value


Reader = Callable[[Path, Any], Any]


def _key(option: Option) -> str:
    """The key of an option: its flag in words."""
    return next(flag for flag in option.flags if flag.startswith("--")).removeprefix("--")


_ARGUMENTS: Mapping[str, tuple[str, Reader]] = {
    _key(LLM_OPTIONS[name]): (name, reader)
    for name, reader in (
        ("n_ctx", _count(0)), ("n_ubatch", _count(1)), ("type", _text),
        *((name, _text) for name in CacheTypes._fields),
    )
} | {"op-offload": ("op_offload", _op_offload)}  # fmt: skip
"""By key: an argument of `Service`, and what reads its value."""
_READERS: Mapping[str, Reader] = {
    "path": _place,
    "aliases": _names,
    "parallel": _count(1),
    "max-tokens": _count(1),
    "mmproj": _place,
    "embeddings": _flag,
    "keep-alive": lambda _, value: parse_duration(value),
    "load": _flag,
    "system": _text,
    "chat-template": _template,
    "chat-template-kwargs": _variables,
    "sampling": _sampling,
    "lora": _adapters,
}
