"""Modelfiles, Ollama's way to keep a model with its settings, which become options of the command
line.

    FROM ./smollm2.gguf
    SYSTEM You are a pirate.
    PARAMETER temperature 0.7
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from weft.errors import FormatError
from weft.files import read_text
from weft.flags import FLAGS
from weft.records import dataclass

NAME = re.compile(r"\w[\w.-]*")
"""The names of kept models."""
_MOST_BYTES = 1 << 20
"""Maximum number of bytes of a file that may be a Modelfile."""
_DEEPEST = 8
"""Maximum number of Modelfiles that are made one from the other."""
_FLAGS = {
    "SYSTEM": "--system",
    "TEMPLATE": "--chat-template",
    "ADAPTER": "--lora",
    "MESSAGE": "--message",
    "num_ctx": "--ctx-size",
    "num_predict": "--n-predict",
    "num_keep": "--keep",
    "num_batch": "--ubatch-size",
    "num_thread": "--threads",
    "num_gpu": "--gpu-layers",
    "temperature": "--temp",
    "typical_p": "--typical",
    "mirostat_tau": "--mirostat-ent",
    "mirostat_eta": "--mirostat-lr",
    **{name: f"--{name.replace('_', '-')}" for name in (
        "top_k", "top_p", "min_p", "seed", "repeat_penalty", "repeat_last_n", "presence_penalty",
        "frequency_penalty", "mirostat", "stop",
    )},
}  # fmt: skip
"""The option that holds an instruction, or a parameter."""
_NO_EFFECT = ("main_gpu", "numa", "use_mmap", "use_mlock", "low_vram", "f16_kv", "vocab_only",
              "tfs_z", "penalize_newline", "draft_num_predict")  # fmt: skip
_UNREAD = ("LICENSE", "PARSER", "RENDERER", "REQUIRES")
"""Instructions of Ollama that say nothing here."""
_ESCAPED = ("SYSTEM", "stop")
"""Settings in which the command line reads backslashes."""
_FIRST = re.compile(
    rb"(?i)(?:\xef\xbb\xbf)?(?:\s*#[^\n]*\n)*\s*(?:FROM|SYSTEM|TEMPLATE|PARAMETER|ADAPTER)[ \t]+\S"
)
"""The beginning of a Modelfile: comments, and an instruction."""
_GO = re.compile(r"\{\{-?\s*(?:\.|\$|/\*|(?:if|range|end|else|with|block|define|template)\b)")
"""An action of Go's templates; Jinja has `{% if %}`."""


@dataclass(frozen=True, slots=True)
class Modelfile:
    """A model with its settings."""

    model: str
    """The name of the model, which may be kept with settings, too."""
    settings: tuple[tuple[str, str], ...]
    """Instructions and parameters with their values, by the keys of `_FLAGS`."""
    go: bool = False
    """True if its template is in Go's language, which is left out."""

    def text(self) -> str:
        """The same as the text of a Modelfile."""
        lines = [f'FROM """{self.model}"""']
        for name, value in self.settings:
            key = name if name.isupper() else f"PARAMETER {name}"
            if name == "MESSAGE":
                role, _, value = value.partition(" ")
                key = f"MESSAGE {role}"
            lines.append(f'{key} """{value}"""')
        return "\n".join(lines) + "\n"


def kept_folder() -> Path:
    """The folder of models that are kept with their settings, a Modelfile each."""
    return Path(FLAGS.cache) / "models"


def kept_model(name: str) -> Path | None:
    """The Modelfile that is kept under that name; None if there is none."""
    name = name.removesuffix(":latest")
    path = kept_folder() / name
    return path if NAME.fullmatch(name) and os.path.isfile(path) else None


def find_modelfile(name: str) -> Path | None:
    """The Modelfile at that path, or else the one kept under that name; None if there is none."""
    path = Path(name)
    if os.path.exists(path):  # not `path.exists()`, which raises for names that are too long
        return path if _is_modelfile(path) else None
    return kept_model(name)


def _is_modelfile(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return False
    return _FIRST.match(path.read_bytes()) is not None


def read_modelfile(path: Path) -> Modelfile:
    """Reads a Modelfile. Files that it names are relative to its folder.

    Raises FormatError for a line without an instruction, and a parameter that is not known."""
    model = ""
    settings: list[tuple[str, str]] = []
    go = False
    for key, value in _instructions(path):
        if key == "FROM":
            model = _place(path, value)
        elif key == "ADAPTER":
            settings.append((key, _place(path, value)))
        elif key == "TEMPLATE" and _GO.search(value):
            go = True
        elif key in ("SYSTEM", "TEMPLATE"):  # the last one counts
            settings = [(k, v) for k, v in settings if k != key] + [(key, value)]
        elif key == "MESSAGE":
            settings.append((key, value))
        elif key == "PARAMETER":
            settings += _parameter(path, *value.partition(" ")[::2])
        elif key not in _UNREAD:
            raise FormatError(
                f"{path}: there is no instruction {key!r:.40}; there are FROM, SYSTEM, TEMPLATE, "
                "PARAMETER, ADAPTER and MESSAGE"
            )
    if not model:
        raise FormatError(f"{path}: FROM is missing, which names the model")
    return Modelfile(model, tuple(settings), go)


def _parameter(path: Path, name: str, value: str) -> Iterator[tuple[str, str]]:
    name = name.lower()
    if name in _NO_EFFECT:
        return
    if name not in _FLAGS or name.isupper():
        known = ", ".join(key for key in _FLAGS if key.islower())
        raise FormatError(f"{path}: there is no parameter {name!r:.40}; there are {known}")
    if name != "stop":
        try:
            float(value)
        except ValueError:
            raise FormatError(f"{path}: {name} is {value!r:.40}; it must be a number") from None
    yield name, value


def _instructions(path: Path) -> Iterator[tuple[str, str]]:
    """The instructions of a Modelfile; a text in quotes may have several lines."""
    try:
        rest = iter(read_text(path).replace("\r\n", "\n").split("\n"))
    except UnicodeDecodeError:
        raise FormatError(f"{path} is no UTF-8 text") from None
    for line in rest:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, value, *_ = *line.strip().split(None, 1), ""
        key, first = key.upper(), ""
        if key in ("PARAMETER", "MESSAGE"):
            first, value, *_ = *value.split(None, 1), "", ""
        while (text := _unquoted(value)) is None:
            more = next(rest, None)
            if more is None:
                raise FormatError(f"{path}: the quotes of {key} do not end")
            value = f"{value}\n{more}"
        yield key, f"{first} {text}" if first else text


def _unquoted(text: str) -> str | None:
    """A value without the quotes around it; None if they do not end."""
    mark = next((m for m in ('"""', '"') if text.startswith(m)), "")
    if not mark:
        return text
    text = text.rstrip()
    ends = text.endswith(mark) and len(text) >= 2 * len(mark)
    return text[len(mark) : -len(mark)] if ends else None


def _place(path: Path, name: str) -> str:
    beside = path.parent / os.path.expanduser(name)
    return os.path.abspath(beside) if os.path.exists(beside) else name


def modelfiles_of(name: str) -> Iterator[Path]:
    """The Modelfiles that a word of the command line leads to, each FROM the next."""
    for _ in range(_DEEPEST):
        path = find_modelfile(name)
        if path is None:
            return
        yield path
        name = read_modelfile(path).model
    raise FormatError(f"{path}: more than {_DEEPEST} Modelfiles, each FROM the next")


def with_settings(
    name: str, known: Collection[str], *, escaped: bool
) -> tuple[str, list[str], list[str]]:
    """The model that a word of the command line means, the options that its settings are, of those
    that are `known`, and the settings without one. With `escaped`, texts are read with
    backslashes."""
    options: list[str] = []
    left: list[str] = []
    for path in modelfiles_of(name):
        file = read_modelfile(path)
        own: list[str] = []
        for key, value in file.settings:
            if _FLAGS[key] not in known:
                left.append(key)
                continue
            if escaped and key in _ESCAPED:
                value = value.replace("\\", "\\\\")
            own.append(f"{_FLAGS[key]}={value}")
        options = own + options
        name = file.model
    return name, options, list(dict.fromkeys(left))
