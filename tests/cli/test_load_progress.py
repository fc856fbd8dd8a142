"""What is shown while weights are repacked and kernels are compiled."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from weft.cli import console as console_module
from weft.cli.console import CompileProgress, CountProgress, LoadProgress


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


def compiled(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, patience: float) -> str:
    """What is shown of two waits, of which the second is within another bar."""
    text = io.StringIO()
    errors = Console(file=text, force_terminal=terminal, width=100)
    monkeypatch.setattr(console_module, "errors", errors)
    monkeypatch.setattr(console_module, "_on_terminal", lambda: terminal)
    monkeypatch.setattr(console_module, "say", lambda line: text.write(f"{line}\n"))
    for name in ("PATIENCE", "LINE_SECONDS"):
        monkeypatch.setattr(console_module, name, patience)
    progress = CompileProgress()
    for ready in (37, 38, 120):
        progress("webgpu:0", ready, 120)
    progress.stop()
    with CountProgress("answering tasks") as other:
        other(1, 2)
        progress("webgpu:0", 120, 125)
        progress.stop()
        other(2, 2)
    return text.getvalue()


def test_kernels_are_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compiled(monkeypatch, terminal=True, patience=0)
    assert "compiling kernels for webgpu:0" in text and "120/120" in text
    assert "120/125" not in text and "2/2" in text
    assert compiled(monkeypatch, terminal=True, patience=100) == ""


def test_kernels_are_a_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = compiled(monkeypatch, terminal=False, patience=0).splitlines()
    assert first == "compiling kernels for webgpu:0: 37 of 120"
    assert compiled(monkeypatch, terminal=False, patience=100) == ""
