"""The options for LoRA adapters and control vectors, in llama.cpp's spellings and vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import ADAPTERS, usage_error

__all__ = [
    "ControlVector",
    "ControlVectorLayers",
    "ControlVectorScaled",
    "Lora",
    "LoraLater",
    "LoraModules",
    "LoraScaled",
    "adapter_arguments",
    "scaled_path",
    "vector_arguments",
    "with_modules",
]

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
ControlVector = Annotated[
    list[str] | None,
    typer.Option(
        "--control-vector", metavar="[NAME=]FILE,...", rich_help_panel=ADAPTERS,
        help="A control vector, which steers the model: a GGUF file; repeatable.",
    ),
]  # fmt: skip
ControlVectorScaled = Annotated[
    list[str] | None,
    typer.Option(
        "--control-vector-scaled", metavar="[NAME=]FILE:SCALE,...", rich_help_panel=ADAPTERS,
        help="The same at another scale than 1; repeatable.",
    ),
]  # fmt: skip
ControlVectorLayers = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--control-vector-layer-range", metavar="START END", rich_help_panel=ADAPTERS,
        help="Steer these layers only, both included.",
    ),
]  # fmt: skip

Scaled = tuple[Path, float]


def adapter_arguments(
    lora: Sequence[str] | None, lora_scaled: Sequence[str] | None
) -> dict[str, Scaled] | None:
    """The adapters that these options name, as an argument of `LLM`; None: there are none."""
    return _given("--lora", "adapter", lora, lora_scaled)


def vector_arguments(
    vectors: Sequence[str] | None,
    vectors_scaled: Sequence[str] | None,
    layers: tuple[int, int] | None,
) -> dict[str, Any]:
    """The control vectors that these options name, as arguments of `LLM`."""
    given = _given("--control-vector", "control vector", vectors, vectors_scaled)
    if given is None and layers is not None:
        raise usage_error("--control-vector-layer-range is for --control-vector FILE")
    return {"control_vectors": given, "control_vector_layers": layers}


def scaled_path(flag: str, text: str) -> tuple[str, float]:
    """The file and the scale of `FILE:SCALE`, which was given with `flag`."""
    path, colon, scale = text.rpartition(":")
    try:
        return path, float(scale if colon and path else "")
    except ValueError:
        raise usage_error(f"{flag} {text}: write FILE:SCALE, e.g. law.gguf:0.5") from None


def _given(
    flag: str, what: str, plain: Sequence[str] | None, scaled: Sequence[str] | None
) -> dict[str, Scaled] | None:
    given = [(text, 1.0) for text in _parts(plain)]
    given += [scaled_path(f"{flag}-scaled", text) for text in _parts(scaled)]
    return _added({}, given, flag, what) or None


def with_modules(
    adapters: Mapping[str, Scaled] | None, lora_modules: Sequence[str] | None
) -> dict[str, Scaled] | None:
    """The adapters of `adapter_arguments` and those that only requests which name them use."""
    given = [(text, 0.0) for text in _parts(lora_modules)]
    return _added(adapters or {}, given, "--lora", "adapter") or None


def _added(
    others: Mapping[str, Scaled], given: Sequence[tuple[str, float]], flag: str, what: str
) -> dict[str, Scaled]:
    added = dict(others)
    for text, scale in given:
        name, path = _named(text)
        if name in added:
            raise usage_error(
                f"two {what}s are called {name}; call one of them otherwise: {flag} NAME={path}"
            )
        added[name] = (path, scale)
    return added


def _parts(texts: Sequence[str] | None) -> Iterator[str]:
    """The files in `a.gguf,b.gguf`; a file that exists may have a comma in its name."""
    for text in texts or ():
        yield from [text] if Path(text).exists() else text.split(",")


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return Path(text).stem, Path(text)
    return name, Path(path)
