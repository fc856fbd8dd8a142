"""The listings of docs/reserving.md are what the commands print, its snippets what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.in_process import weft as command
from tests.listings import missing, runs

ROOT = Path(__file__).parents[2]
PAGE = "docs/reserving.md"


def commands(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page, and what stands below each."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M):
        for part in re.split(r"^    \$ ", block, flags=re.M)[1:]:
            line, *rest = part.splitlines()
            yield line, "\n".join(row.removeprefix("    ") for row in rest)


def snippets(page: str) -> list[str]:
    """The Python of a page, in its order."""
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M
    )


@pytest.mark.parametrize(
    ("line", "shown"), tuple(commands(PAGE)), ids=lambda value: str(value)[:24].strip()
)
def test_listings(line: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *arguments = shlex.split(line)
    assert name == "weft" and any(runs(shown))
    done = command(*arguments)
    assert done.returncode == 0
    said = missing(shown, done.stdout)
    assert said is None, f"{line}\n{said}\nis not in\n{done.stdout}"


def test_there_are_listings() -> None:
    assert len(list(commands(PAGE))) == 4 and len(snippets(PAGE)) == 6


def test_snippets_print_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for snippet in snippets(PAGE):
        said = [
            value
            for found in re.findall(r"^ *print\(.*\)  # (.*)$", snippet, re.M)
            for value in found.split(" | ")  # in a loop
        ]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(snippet, PAGE, "exec"), names)
        assert out.getvalue().splitlines() == said
    assert os.getcwd() == str(ROOT)
