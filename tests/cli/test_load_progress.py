"""The bar that is shown while weights are repacked."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from weft.cli import console as console_module
from weft.cli.console import LoadProgress


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, patience: float) -> str:
    text = io.StringIO()
    errors = Console(file=text, force_terminal=terminal, width=100)
    monkeypatch.setattr(console_module, "errors", errors)
    monkeypatch.setattr(console_module, "PATIENCE", patience)
    with LoadProgress() as progress:
        for position in (250_000, 500_000, 1_000_000):
            progress(position, 1_000_000)
    return text.getvalue()


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, patience=0)
    assert "loading weights" in text and "1.0/1.0 MB" in text


def test_nothing_where_it_is_quick_or_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=True, patience=100) == ""
    assert shown(monkeypatch, terminal=False, patience=0) == ""
