"""The table of architectures and the files it names say the same."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from weft.errors import FormatError
from weft.llm.models import _FILES, _NOT_YET, ARCHITECTURES, find_architecture


@pytest.mark.parametrize("file", _FILES)
def test_a_file_has_the_architectures_that_the_table_says(file: str) -> None:
    module = import_module(f"weft.llm.models.{file}")
    assert tuple(module.ARCHITECTURES) == _FILES[file]
    for name in _FILES[file]:
        assert find_architecture(name) is module.ARCHITECTURES[name]


def test_an_unknown_one_is_refused_with_the_known_names() -> None:
    with pytest.raises(FormatError, match=r"unknown architecture 'nonsense'.*qwen3moe"):
        find_architecture("nonsense")
    assert len(ARCHITECTURES) == len(set(ARCHITECTURES))


def test_those_that_are_not_there_yet_are_refused_by_name() -> None:
    assert not set(_NOT_YET) & set(ARCHITECTURES)
    with pytest.raises(FormatError, match="does not run the architecture 'deepseek4' yet"):
        find_architecture("deepseek4")


def test_the_readme_lists_them() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    start = text.index("by their names in GGUF files: ")
    listed = text[start:].partition(": ")[2].replace("\n", " ").partition(". ")[0]
    assert listed.split(", ") == sorted(ARCHITECTURES)
