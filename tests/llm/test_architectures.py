"""The table of architectures and the files it names say the same."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from weft.errors import FormatError
from weft.frontends.architectures import FILES, RELATED
from weft.frontends.hf.families import families_of
from weft.llm.models import _OTHERS, ARCHITECTURES, find_architecture


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_the_architectures_that_the_table_says(file: str) -> None:
    module = import_module(f"weft.llm.models.{file}")
    names = [name for name in FILES[file] if name not in RELATED]
    assert list(module.ARCHITECTURES) == names
    for name in names:
        assert find_architecture(name) is module.ARCHITECTURES[name]


@pytest.mark.parametrize("file", [file for file, kinds in FILES.items() if any(kinds.values())])
def test_a_file_has_the_families_that_the_table_says(file: str) -> None:
    families = import_module(f"weft.frontends.hf.families.{file}").FAMILIES
    for name, classes in FILES[file].items():
        if classes:
            arch = families[name].arch
            assert (arch != name) == (name in RELATED) and arch in FILES[file]
            assert families[name] in families_of(arch)


def test_an_unknown_one_is_refused_with_the_known_names() -> None:
    with pytest.raises(FormatError, match=r"unknown architecture 'nonsense'.*qwen3moe"):
        find_architecture("nonsense")
    assert len(ARCHITECTURES) == len(set(ARCHITECTURES))


def test_those_that_are_not_there_yet_are_refused_by_name() -> None:
    assert not set(_OTHERS) & set(ARCHITECTURES)
    with pytest.raises(FormatError, match=r"'gptj' does not run in weft yet; docs/add-a-model\.md"):
        find_architecture("gptj")


def test_a_page_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs/held.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(.+?)` \|", text, re.M) == sorted(ARCHITECTURES)
