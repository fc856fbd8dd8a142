"""The table of `make mutants` fits the tree: each of its fragments occurs once."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.row import problems, read_table

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_fits_the_tree() -> None:
    assert problems(read_table(), ROOT) == []
