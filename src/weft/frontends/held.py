"""The references that each architecture was held against, by tests that passed.

The data are in `held.json`. The script `held.py` among the tests makes it: it runs these tests and
writes down the architecture of each model that they opened.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from weft.records import dataclass

REFERENCES = {
    "golden": "golden files of llama.cpp",
    "transformers": "transformers",
    "numpy": "its equations in NumPy",
}
"""The references, by their names in `held.json`, as a sentence says them."""


@dataclass(frozen=True, slots=True)
class Held:
    """The tests that an architecture passed."""

    against: dict[str, list[str]]
    """The golden scenarios, or the models and settings that were compared, by reference."""
    scenarios: list[str]
    """Names of tests in which the same tokens gave the same logits in another way."""


@cache
def held() -> dict[str, Held]:
    """The tests of each architecture, by its name in files."""
    rows = json.loads(Path(__file__).with_name("held.json").read_text("utf-8"))
    return {
        arch: Held({name: row[name] for name in REFERENCES if name in row}, row["scenarios"])
        for arch, row in rows.items()
    }


def in_words(arch: str) -> str:
    """A sentence that names the references of an architecture; empty if no test knows it."""
    row = held().get(arch)
    if row is None:
        return ""
    parts = []
    for name, cases in row.against.items():
        n = len(cases)
        what = "scenario" if name == "golden" else "model"
        parts.append(f"{REFERENCES[name]} ({n} {what}{'s' * (n != 1)})")
    if len(parts) > 1:
        parts[-2:] = [f"{parts[-2]} and {parts[-1]}"]
    beside = f"{arch} was held against {', '.join(parts)}" if parts else ""
    if not row.scenarios:
        return beside
    tested = f"tested with {', '.join(row.scenarios)}"
    return f"{beside}; {tested}" if beside else f"{arch} was {tested}"
