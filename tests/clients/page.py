"""The lines of docs/clients.md."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
URL = "http://127.0.0.1:8080"
"""The server that the page names."""


def block(heading: str, language: str, url: str) -> str:
    """The first block in `language` below the heading that begins with `heading`, for a server at
    `url`."""
    section = next(s for s in PAGE.split("\n## ") if s.startswith(heading))
    found = re.search(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found, f"{heading}: no block in {language}"
    assert URL in found[1]
    return found[1].replace(URL, url)
