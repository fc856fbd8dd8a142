"""Reports in a browser; the browser itself is that of `conftest.py`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.cli.in_process import weft

__all__ = ["compare", "report", "show", "views"]

TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")


def show(page: Any, path: Path, view: str = "") -> Any:
    """Opens a report from disk and waits until it is drawn; returns the page."""
    page.goto(f"{path.as_uri()}#{view}" if view else path.as_uri())
    page.wait_for_selector("#report[data-ready]")
    return page


def views(page: Any) -> list[str]:
    """The views of an open report."""
    names: list[str] = page.evaluate(
        "() => report.views.filter((v) => v.needs(report.data)).map((v) => v.id)"
    )
    return names


def report(model: Path, folder: Path, *args: str) -> Path:
    """Writes the report of a model, as a user would."""
    path = folder / "report.html"
    done = weft("explain", model, "--html", path, *args)
    assert done.returncode == 0, done.stderr
    assert f"report written to {path}" in done.stderr
    return path


def explained(model: Path, at: dict[str, Any], *args: str) -> list[dict[str, Any]]:
    """The rows of memory of `weft explain --json` with the sizes of a position."""
    done = weft(
        "explain", model, *args, "--json", "-c", str(at["ctx"]), "-ub", str(at["ub"]),
        "-np", str(at["seqs"]), "-ctk", at["k"], "-ctv", at["v"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["memory"]
    return rows


def bytes_of(rows: list[dict[str, Any]]) -> list[tuple[str, str, int, int | None]]:
    """What rows of memory say in numbers."""
    return [(r["buffer"], r["memory"], r["bytes"], r.get("lower_bound")) for r in rows]


def positions(page: Any, n: int) -> list[dict[str, Any]]:
    """`n` positions that the sliders of an open report can take, the plan's own first; every second
    one differs from it in one size and the cache types."""
    sliders = page.evaluate("() => report.data.sliders")
    chosen = [sliders["base"]]
    rnd = random.Random(7)
    while len(chosen) < n:
        at = {name: rnd.choice(sliders[name]) for name in ("ctx", "ub", "seqs")}
        if len(chosen) % 2:
            name = rnd.choice(("ctx", "ub", "seqs"))
            at = sliders["base"] | {name: at[name]}
        at |= {"k": rnd.choice(TYPES), "v": rnd.choice(TYPES)}
        covered = page.evaluate("at => report.variant(report.data.sliders, at) !== null", at)
        if at not in chosen and covered:
            chosen.append(at)
    return chosen


def compare(page: Any, model: Path, *args: str, n: int = 10) -> None:
    """Compares the bytes in a page with those that weft prints, at `n` positions.

    Where weft made no plan, compute memory is at least the lower bound; that happens only where
    several sizes differ from the plan's own, or one that is not a power of two.
    The page says which of the two it shows."""
    own = page.evaluate("() => report.data.sliders.base")
    for at in positions(page, n):
        page.evaluate("at => report.move(at)", at)
        layout = page.evaluate("() => report.state.get('layout')")
        shown, exact = layout["rows"], layout["exact"]
        expected = explained(model, at, *args)
        said = page.locator(".sizes").inner_text()
        if exact:
            assert at == own or "Exact: weft planned these sizes" in said, at
            assert bytes_of(shown) == bytes_of(expected), at
        else:
            other = [at[name] for name in ("ctx", "ub", "seqs") if at[name] != own[name]]
            assert len(other) > 1 or other[0].bit_count() > 1, at
            assert "By formulas" in said and "at least" in said, at
            for row, wanted in zip(shown, expected, strict=True):
                least = wanted.get("lower_bound", wanted["bytes"])
                assert row["buffer"] == wanted["buffer"] and row["memory"] == wanted["memory"]
                assert least <= row["bytes"] <= wanted["bytes"], at
        # people see the same bytes
        page.evaluate("() => report.state.set({view: 'memory'})")
        text = page.locator(".buffers").inner_text()
        assert all(f"{row['bytes']:,}" in text for row in shown), at
