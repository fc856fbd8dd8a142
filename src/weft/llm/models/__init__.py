"""Architectures by the name that GGUF files give in `general.architecture`.

Adding one: a file whose `ARCHITECTURES` says how it differs from the skeleton of `architecture.py`,
put together from `parts.py`, and a line here; docs/add-a-model.md has the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from weft.errors import FormatError
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]

_FILES = {
    "arcee": ("arcee",),
    "bert": ("bert", "nomic-bert"),
    "bitnet": ("bitnet",),
    "bloom": ("bloom",),
    "commandr": ("command-r", "cohere2"),
    "deepseek2": ("deepseek2",),
    "ernie": ("ernie4_5",),
    "exaone4": ("exaone4",),
    "falcon": ("falcon",),
    "gemma": ("gemma",),
    "gemma2": ("gemma2",),
    "gemma3": ("gemma3",),
    "glm4": ("glm4",),
    "gpt2": ("gpt2",),
    "gptneox": ("gptneox",),
    "gptoss": ("gpt-oss",),
    "granite": ("granite", "granitemoe"),
    "lfm2": ("lfm2",),
    "llama": ("llama",),
    "mamba": ("mamba", "mamba2"),
    "mpt": ("mpt",),
    "nemotron": ("nemotron",),
    "olmo": ("olmo",),
    "olmo2": ("olmo2",),
    "olmoe": ("olmoe",),
    "phi2": ("phi2",),
    "phi3": ("phi3",),
    "qwen2": ("qwen2", "qwen2moe"),
    "qwen3": ("qwen3", "qwen3moe"),
    "seed_oss": ("seed_oss",),
    "smollm3": ("smollm3",),
    "stablelm": ("stablelm",),
    "starcoder2": ("starcoder2",),
}
"""Files of this folder, and the architectures in each."""


class _Table(Mapping[str, Architecture]):
    """Architectures by name; a file is imported when one of its own is asked for."""

    def __init__(self) -> None:
        self._file_of = {name: file for file, names in _FILES.items() for name in names}

    def __getitem__(self, name: str) -> Architecture:
        module = import_module(f"{__name__}.{self._file_of[name]}")
        architecture: Architecture = module.ARCHITECTURES[name]
        return architecture

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


ARCHITECTURES = _Table()


def find_architecture(name: str) -> Architecture:
    """The architecture called `name`; raises FormatError with the known names."""
    if name not in ARCHITECTURES:
        raise FormatError(
            f"unknown architecture {name!r}; known architectures: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
