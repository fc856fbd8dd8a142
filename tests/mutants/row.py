"""`Mutant`: a row of the table, and the table as it is read and checked."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AREAS", "TABLE", "Mutant", "TableError", "problems", "read_table"]

TABLE = Path(__file__).with_name("table")
AREAS = tuple(sorted(path.stem for path in TABLE.glob("*.toml")))
_KEYS = {"file", "old", "new", "breaks", "tests"}


class TableError(Exception):
    """The table itself is wrong."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: one fragment of one file, replaced."""

    name: str
    area: str
    file: str
    """The file, from the root of the repository."""
    old: str
    """The fragment, which occurs once in the file."""
    new: str
    breaks: str
    """What goes wrong, as a sentence."""
    tests: tuple[str, ...]
    """Arguments of pytest: the tests that must notice it."""

    @property
    def build(self) -> str:
        """What has to be built of the file: `native`, `delegate`, or nothing (empty)."""
        if self.file.endswith((".cpp", ".h")):
            return "delegate" if self.file.startswith("executorch/") else "native"
        return ""

    @property
    def test_files(self) -> list[str]:
        """The files of its tests."""
        return [part.partition("::")[0] for part in self.tests if part.startswith("tests/")]

    def applied(self, text: str) -> str:
        """The text of the file with the mistake in it; raises TableError unless the fragment occurs
        once."""
        n = text.count(self.old)
        if n != 1:
            raise TableError(f"{self.name}: {self.old!r} occurs {n} times in {self.file}")
        return text.replace(self.old, self.new)


def read_table() -> list[Mutant]:
    """All rows, area by area. Raises TableError for a row that lacks something."""
    rows: list[Mutant] = []
    for area in AREAS:
        for name, row in tomllib.loads((TABLE / f"{area}.toml").read_text()).items():
            if row.keys() != _KEYS:
                raise TableError(f"{area}.toml, {name}: a row has the keys {sorted(_KEYS)}")
            tests = tuple(shlex.split(row.pop("tests")))
            rows.append(Mutant(name=name, area=area, tests=tests, **row))
    return rows


def problems(rows: Iterable[Mutant], root: Path) -> list[str]:
    """What is wrong with rows for the tree at `root`, a sentence each."""
    found: list[str] = []
    known: set[str] = set()
    for row in rows:
        if row.name in known:
            found.append(f"{row.name}: two rows have this name")
        known.add(row.name)
        if not row.test_files:
            found.append(f"{row.name}: it names no test file")
        found += [
            f"{row.name}: there is no {path}"
            for path in (row.file, *row.test_files)
            if not (root / path).is_file()
        ]
        before, after = row.old.splitlines(), row.new.splitlines() or [""]
        if sum(map(str.__ne__, before, after)) != 1 or len(before) != len(after):
            found.append(f"{row.name}: a mistake changes one line, and others stand for context")
        if (root / row.file).is_file():
            try:
                row.applied((root / row.file).read_text())
            except TableError as error:
                found.append(str(error))
    return found
