"""Warnings in the middle of a text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from weft.cli import console, mistakes


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [True, False])
def test_a_warning_gets_a_line_of_its_own(screen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is so on a screen; a pipe gets only the text."""
    out = Screen() if screen else io.StringIO()
    err = Console(file=out if screen else io.StringIO(), force_terminal=screen, width=80)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr(console, "errors", err)
    for piece in ("Once", " upon", ""):
        console.text_out.write(piece)
    mistakes.show_warning("going on with cpu")
    console.text_out.write(" a time\n")
    mistakes.show_warning("again")
    plain = out.getvalue().replace("\x1b[33m", "").replace("\x1b[0m", "")
    if screen:
        assert plain == "Once upon\nwarning: going on with cpu\n a time\nwarning: again\n"
    else:
        assert plain == "Once upon a time\n"
