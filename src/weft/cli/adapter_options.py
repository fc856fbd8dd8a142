"""The options for LoRA adapters, in llama.cpp's spellings and vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import ADAPTERS, usage_error

__all__ = ["Lora", "LoraLater", "LoraModules", "LoraScaled", "adapter_arguments", "with_modules"]

Lora = Annotated[
    list[str] | None,
    typer.Option(
        "--lora", metavar="[NAME=]FILE,...", rich_help_panel=ADAPTERS,
        help="A LoRA adapter: a GGUF file; repeatable. Its name is the file's if none is given.",
    ),
]  # fmt: skip
LoraScaled = Annotated[
    list[str] | None,
    typer.Option(
        "--lora-scaled", metavar="[NAME=]FILE:SCALE,...", rich_help_panel=ADAPTERS,
        help="The same at another scale than 1; repeatable.",
    ),
]  # fmt: skip
LoraModules = Annotated[
    list[str] | None,
    typer.Option(
        "--lora-modules", metavar="NAME=FILE", rich_help_panel=ADAPTERS,
        help="An adapter for requests alone that name it as their model; repeatable.",
    ),
]  # fmt: skip
LoraLater = Annotated[
    bool,
    typer.Option(
        "--lora-init-without-apply", rich_help_panel=ADAPTERS,
        help="Adapters start at scale 0, until a request or POST /lora-adapters says otherwise.",
    ),
]  # fmt: skip

Scaled = tuple[Path, float]


def adapter_arguments(
    lora: Sequence[str] | None, lora_scaled: Sequence[str] | None
) -> dict[str, Scaled] | None:
    """The adapters that these options name, as an argument of `LLM`; None: there are none."""
    given = [(text, 1.0) for text in _parts(lora)] + [_split(text) for text in _parts(lora_scaled)]
    return _added({}, given) or None


def with_modules(
    adapters: Mapping[str, Scaled] | None, lora_modules: Sequence[str] | None
) -> dict[str, Scaled] | None:
    """The adapters of `adapter_arguments` and those that only requests which name them use."""
    return _added(adapters or {}, [(text, 0.0) for text in _parts(lora_modules)]) or None


def _added(adapters: Mapping[str, Scaled], given: Sequence[tuple[str, float]]) -> dict[str, Scaled]:
    added = dict(adapters)
    for text, scale in given:
        name, path = _named(text)
        if name in added:
            raise usage_error(
                f"two adapters are called {name}; call one of them otherwise: --lora NAME={path}"
            )
        added[name] = (path, scale)
    return added


def _parts(texts: Sequence[str] | None) -> Iterator[str]:
    """The files in `a.gguf,b.gguf`; a file that exists may have a comma in its name."""
    for text in texts or ():
        yield from [text] if Path(text).exists() else text.split(",")


def _split(text: str) -> tuple[str, float]:
    path, colon, scale = text.rpartition(":")
    try:
        return path, float(scale if colon and path else "")
    except ValueError:
        raise usage_error(f"--lora-scaled {text}: write FILE:SCALE, e.g. law.gguf:0.5") from None


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return Path(text).stem, Path(text)
    return name, Path(path)
