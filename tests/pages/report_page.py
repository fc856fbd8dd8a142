"""Reports in a browser; the browser itself is that of `conftest.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["show", "views"]


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
