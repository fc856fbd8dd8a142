"""Patterns of prose that a stranger reads twice: their number in a file may only fall.

`python tests/test_prose.py` writes the numbers of today to `prose.json`, and refuses to where the
number of a pattern in all files together grew; moved and renamed files are then listed anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = Path(__file__).with_name("prose.json")
PATTERNS = {
    "that of": r"\b(that|those) of\b",  # repeat the noun
    "is no": r"\b(?<!there )(is|are|was|were) no (?!longer\b|more\b|less\b|other\b)",  # "is not a"
    "so many": r"\bso many\b",  # name the parameter
}
FRAGMENT = re.compile(r"(Of|That|Those|Its|What|As|Most) (?!is\b|are\b)")
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
COMMENT = re.compile(r"(?:^|  )#.*", re.MULTILINE)
REPEATED = "cli.md"
"""A page that repeats texts of the code, for each command that has the option."""
CELL = 200
"""The maximum number of characters in a cell of a table."""
MOST_OF_A_DECISION = 460
"""The maximum number of characters in an entry of docs/decisions.md."""


def found() -> dict[str, dict[str, int]]:
    """The number of each pattern by file."""
    files = [*(ROOT / "src/weft").rglob("*.py"), *(ROOT / "executorch/src").rglob("*.py")]
    written = (path for path in ROOT.glob("docs/**/*.md") if path.name != REPEATED)
    pages = {path: Counter(_of_page(path.read_text("utf-8"))) for path in written}
    code = {path: Counter(_of_code(path.read_text("utf-8"))) for path in files}
    numbers = ((str(path.relative_to(ROOT)), count) for path, count in (code | pages).items())
    return {name: dict(sorted(count.items())) for name, count in sorted(numbers) if count}


def _of_code(text: str) -> Iterator[str]:
    """The patterns in docstrings and comments, each as often as it is there."""
    for words in DOCSTRING.findall(text):
        yield from _patterns(words)
        if FRAGMENT.match(words):
            yield "fragment"
    for comment in COMMENT.findall(DOCSTRING.sub("", text)):
        yield from _patterns(comment)


def _of_page(text: str) -> Iterator[str]:
    yield from _patterns(text)
    rows = (line for line in text.splitlines() if line.startswith("|"))
    yield from ("long cell" for row in rows for cell in row.split("|") if len(cell.strip()) > CELL)


def _patterns(text: str) -> Iterator[str]:
    for name, pattern in PATTERNS.items():
        yield from (name for _ in re.finditer(pattern, " ".join(text.split())))


def test_no_file_has_more_of_a_pattern_than_is_allowed() -> None:
    allowed = json.loads(ALLOWED.read_text())
    more = [
        f"{file}: {count} of {name!r}, {allowed.get(file, {}).get(name, 0)} allowed"
        for file, counts in found().items()
        for name, count in counts.items()
        if count > allowed.get(file, {}).get(name, 0)
    ]
    assert not more, "\n".join([*more, "say it otherwise, or see the head of this file"])


def test_patterns_are_found() -> None:
    code = '"""As the other, that of\nits host."""\nx = 1  # is no list of so many\n'
    assert Counter(_of_code(code)) == {"fragment": 1, "that of": 1, "is no": 1, "so many": 1}
    assert [*_of_code('"""The size is no longer fixed: there is no limit."""')] == []
    page = f"| a | {'b' * (CELL + 1)} |\n| c | {'d' * CELL} |\n"
    assert [*_of_page(page)] == ["long cell"]


def test_decisions_have_three_lines_each() -> None:
    page = (ROOT / "docs/decisions.md").read_text("utf-8")
    entries = [text for text in page.split("\n\n") if text.startswith("**")]
    long = [text[:60] for text in entries if text.count("\n") > 2 or len(text) > MOST_OF_A_DECISION]
    assert len(entries) > 300 and not long


def test_the_files_that_the_layout_names_are_there() -> None:
    page = (ROOT / "docs/layout.md").read_text("utf-8")
    named = set(re.findall(r"`([\w/.-]+\.(?:py|cpp|cmake|fbs))`", page))
    folders = ("src", "native", "executorch", "schema", "tests", "docs")
    there = [path.as_posix() for folder in folders for path in ROOT.glob(f"{folder}/**/*.*")]
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
    assert len(named) > 100 and not missing


def refresh() -> None:
    """Writes the numbers of today, unless a pattern grew."""
    before, now = json.loads(ALLOWED.read_text()), found()
    sums = [sum((Counter(counts) for counts in of.values()), Counter()) for of in (before, now)]
    if grown := sums[1] - sums[0]:
        sys.exit(f"not written: there are more than before: {dict(grown)}")
    lines = (f"{json.dumps(file)}: {json.dumps(counts)}" for file, counts in now.items())
    ALLOWED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    refresh()
