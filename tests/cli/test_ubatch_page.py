"""The snippets of docs/ubatch.md print what they say, and its listings are what commands print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.in_process import weft as command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ubatch.md").read_text(encoding="utf-8")
LISTINGS = re.findall(r"^    \$ weft (.*)\n((?:    .*\n)+)", PAGE, re.M)
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


@pytest.mark.parametrize(("line", "below"), LISTINGS, ids=lambda value: str(value)[-24:])
def test_listings(line: str, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = command(*shlex.split(line))
    listed = "".join(row.removeprefix("    ") for row in below.splitlines(keepends=True))
    assert done.returncode == 0 and f"\n{listed}" in f"\n{done.stdout}"


def test_snippets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for snippet in SNIPPETS:
        said = [
            text
            for found in re.findall(r"^ *print\(.*\)  # (.*)$", snippet, re.M)
            for text in found.split(" | ")  # of a loop
        ]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(snippet, "docs/ubatch.md", "exec"), names)
        assert out.getvalue().splitlines() == said


def test_there_are_listings() -> None:
    assert len(LISTINGS) == 3 and len(SNIPPETS) == 9
