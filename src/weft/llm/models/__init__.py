"""The architectures, by the names that GGUF files have in `general.architecture`.

A new architecture is a row of `ARCHITECTURES` in a file of this folder, which says how it differs
from the skeleton in `architecture.py` and is composed of the parts in `parts.py`, and a line in
`frontends/architectures.py`. The steps are in docs/add-a-model.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module

from weft.errors import FormatError
from weft.frontends.architectures import FILES, RELATED
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]


class _Table(Mapping[str, Architecture]):
    """Architectures by name; a file is imported when one of its architectures is first used."""

    def __init__(self) -> None:
        self._file_of = {
            name: file for file, names in FILES.items() for name in names if name not in RELATED
        }

    def __getitem__(self, name: str) -> Architecture:
        module = import_module(f"{__name__}.{self._file_of[name]}")
        architecture: Architecture = module.ARCHITECTURES[name]
        return architecture

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


ARCHITECTURES = _Table()


_OTHERS = {
    "gptj": "does not run in weft yet; docs/add-a-model.md says how to add one",
    "qwen3tts": "makes sound, and weft does not run it yet",
    "wavtokenizer-dec": "makes sound of codes (give it to weft speak as --mmproj, with OuteTTS)",
    "pockettts": "says a text as a sound (give it to weft speak)",
    "parakeet": "writes down what is said in a sound (give it to weft transcribe)",
    "whisper": "writes down what is said in a sound (give it to weft transcribe)",
    "clip": "turns images or sounds into rows for another model (give it as --mmproj)",
}
"""Architectures that do not write text by themselves or do not run yet, and what they do."""


def find_architecture(name: str) -> Architecture:
    """The architecture called `name`. Raises FormatError if there is none: it says that weft does
    not run it yet, or names those alike and lists the known ones."""
    if name in _OTHERS:
        raise FormatError(f"a model of the architecture {name!r} {_OTHERS[name]}")
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, 3, 0.7)
        hint = f" (names alike: {', '.join(near)})" if near else ""
        raise FormatError(
            f"unknown architecture {name!r}{hint}; known architectures: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
