"""Opens reports in Chromium, and notes what a page must not do: errors, and requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Opened", "chromium", "opened"]


class Opened:
    """A page of a report, and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "blob:", "data:")):
            self.wrong.append(f"request: {request.url}")

    def show(self, path: Path, view: str = "") -> None:
        """Opens a report from disk and waits until it is drawn."""
        self.page.goto(f"{path.as_uri()}#{view}" if view else path.as_uri())
        self.page.wait_for_selector("#report[data-ready]", timeout=20_000)

    def __call__(self, script: str, argument: Any = None) -> Any:
        """Evaluates a function of the page."""
        return self.page.evaluate(script, argument)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium, in which the report is opened (Debian: chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[Opened]:
    """A fresh page; fails if anything went wrong in it."""
    page = browser.new_page(**options)
    one = Opened(page)
    yield one
    page.close()
    assert one.wrong == []
