"""Which worker runs which tests, and in what order.

Tests are given to workers in units: a file is a unit, except that

- every test of a file with a line `SPREAD = True` is a unit of its own;
- files that name an `xdist_group("NAME")` are one unit together, so that they share what a session
  keeps for them: a cluster, a browser, a server.

The longest unit goes first, by the seconds in `durations.json`, which `make durations` writes anew.
`--shuffle SEED` puts units, and tests within units, in random order instead.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = Path(__file__).with_name("durations.json")
USUAL = 2.0
"""Seconds of a unit that was never measured."""
LEAST = 0.5
"""Units of fewer seconds are not written down; they count as this many."""


@cache
def _file_unit(file: str) -> str | None:
    """The unit of the tests of a file; None: each is its own."""
    text = (ROOT / file).read_text()
    if re.search(r"^SPREAD = True$", text, re.MULTILINE):
        return None
    group = re.search(r"\bxdist_group\(\"([^\"]+)\"\)", text)
    return group[1] if group else file


def unit_of(nodeid: str) -> str:
    """The unit that a test belongs to."""
    return _file_unit(nodeid.split("::", 1)[0]) or nodeid


def in_order(items: list[pytest.Item], seed: int | None) -> list[pytest.Item]:
    """The tests by unit, the longest unit first, or in an order drawn by `seed`."""
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[unit_of(item.nodeid)].append(item)
    names = list(units)
    if seed is None:
        known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        names.sort(key=lambda name: -known.get(name, LEAST if known else USUAL))
    else:
        draw = random.Random(seed)
        draw.shuffle(names)
        for name in names:
            draw.shuffle(units[name])
    return [item for name in names for item in units[name]]


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker the next unit when it has two tests left."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Notes that a test ended. Finished units are forgotten: their tests would be counted
        again after every test."""
        super().mark_test_complete(node, item_index, duration)
        unit = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node].get(unit, {}).values()):
            self.assigned_work[node].pop(unit, None)


class Durations:
    """Adds up the seconds of every unit and writes them down when the session ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the seconds of a test's setup, call or teardown."""
        self.seconds[unit_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Writes the file, with units of this run new and others as they were."""
        known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        for unit, seconds in self.seconds.items():
            known[unit] = round(seconds, 1)
        kept = {
            unit: seconds
            for unit, seconds in sorted(known.items())
            if seconds >= LEAST and (".py" not in unit or (ROOT / unit.split("::")[0]).exists())
        }
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
