"""The order of tests, which parts they have, and what is said of skips; in a small suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import units
from tests.conftest import PARTS, ROOT

FILES = {
    "test_short.py": "def test_it(): pass",
    "test_long.py": "def test_a(): pass\ndef test_b(): pass",
    "test_apart.py": "SPREAD = True\ndef test_quick(): pass\ndef test_slow(): pass",
    "test_one.py": "import pytest\npytestmark = pytest.mark.xdist_group('x')\ndef test_1(): pass",
    "test_two.py": "import pytest\npytestmark = pytest.mark.xdist_group('x')\ndef test_2(): pass",
}
SECONDS = {"test_long.py": 9.0, "test_apart.py::test_slow": 5.0, "x": 3.0, "test_short.py": 0.6}


class Item:
    """As much of a test as its place in the order depends on."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """The tests of FILES, in the order of their files' names."""
    durations = tmp_path / "durations.json"
    durations.write_text(json.dumps(SECONDS))
    monkeypatch.setattr(units, "ROOT", tmp_path)
    monkeypatch.setattr(units, "DURATIONS", durations)
    units._file_unit.cache_clear()
    found = []
    for name, text in sorted(FILES.items()):
        (tmp_path / name).write_text(text.replace("'", '"'))
        found += [Item(f"{name}::{line.split()[1][:-3]}") for line in text.splitlines()
                  if line.startswith("def ")]  # fmt: skip
    return found


def _names(items: list[Item], seed: int | None = None) -> list[str]:
    return [item.nodeid.split("::")[1] for item in units.in_order(items, seed)]  # type: ignore[arg-type]


def test_the_longest_unit_goes_first(items: list[Item]) -> None:
    assert _names(items) == [
        "test_a", "test_b", "test_slow", "test_1", "test_2", "test_it", "test_quick",
    ]  # fmt: skip


def test_files_of_a_group_are_one_unit(items: list[Item]) -> None:
    assert units.unit_of("test_one.py::test_1") == units.unit_of("test_two.py::test_2") == "x"
    assert units.unit_of("test_apart.py::test_quick") == "test_apart.py::test_quick"


def test_a_seed_gives_one_order_that_keeps_units_together(items: list[Item]) -> None:
    orders = [_names(items, seed) for seed in range(20)]
    assert orders[3] == _names(items, 3)
    assert len(set(map(tuple, orders))) > 10
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert all(abs(order.index("test_a") - order.index("test_b")) == 1 for order in orders)
    assert {order.index("test_a") < order.index("test_b") for order in orders} == {True, False}


def test_durations_keep_what_did_not_run(items: list[Item]) -> None:
    durations = units.Durations()
    durations.seconds.update({"test_long.py": 4.04, "test_apart.py::test_quick": 0.7})
    (units.ROOT / "test_short.py").unlink()
    durations.pytest_sessionfinish()
    assert json.loads(units.DURATIONS.read_text()) == {
        "test_apart.py::test_quick": 0.7, "test_apart.py::test_slow": 5.0, "test_long.py": 4.0,
        "x": 3.0,
    }  # fmt: skip


def test_parts_of_the_page_are_those_there_are() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"| `{name}` |" in page for name in PARTS)
    assert f"PARTS ?= {' '.join(PARTS)}\n" in makefile
