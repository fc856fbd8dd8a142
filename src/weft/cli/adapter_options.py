"""The options for LoRA adapters and control vectors, in llama.cpp's spellings and vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.cli.command import usage_error
from weft.cli.groups import Group
from weft.options import ADAPTERS, option

Scaled = tuple[Path, float]


class AdapterFlags(Group):
    """The options for adapters and control vectors of every command that loads a model."""

    lora: list[str] | None = option(
        None, "A LoRA adapter: a GGUF file; repeatable. Its name is the file's if none is given.",
        panel=ADAPTERS, metavar="[NAME=]FILE,...",
    )  # fmt: skip
    lora_scaled: list[str] | None = option(
        None, "The same at another scale than 1; repeatable.", panel=ADAPTERS,
        metavar="[NAME=]FILE:SCALE,...",
    )  # fmt: skip
    control_vector: list[str] | None = option(
        None, "A control vector, which steers the model: a GGUF file; repeatable.", panel=ADAPTERS,
        metavar="[NAME=]FILE,...",
    )  # fmt: skip
    control_vector_scaled: list[str] | None = option(
        None, "The same at another scale than 1; repeatable.", panel=ADAPTERS,
        metavar="[NAME=]FILE:SCALE,...",
    )  # fmt: skip
    control_vector_layers: tuple[int, int] | None = option(
        None, "Steer these layers only, both included.", "--control-vector-layer-range", ADAPTERS,
        metavar="START END",
    )  # fmt: skip

    def adapter_arguments(self) -> dict[str, Any]:
        """The adapters and control vectors that the options name, as arguments of `LLM`."""
        vectors = _given("--control-vector", "control vector", self.control_vector,
                         self.control_vector_scaled)  # fmt: skip
        layers = self.control_vector_layers
        if vectors is None and layers is not None:
            raise usage_error("--control-vector-layer-range is for --control-vector FILE")
        return {
            "adapters": _given("--lora", "adapter", self.lora, self.lora_scaled),
            "control_vectors": vectors,
            "control_vector_layers": layers,
        }


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
    """The adapters of `AdapterFlags` and those that only requests which name them use."""
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
