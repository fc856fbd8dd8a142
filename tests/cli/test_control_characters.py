"""A stranger's text on a terminal: a template's, a file's or a model's."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.table import Table

from weft.cli.console import TextOut
from weft.cli.screen import Screen
from weft.serve.log import _Lines
from weft.tables import CONTROLS

EVIL = "a\x1b]0;owned\x07b\x1b[2J\x9b31mc\x7f\n\td"


def printed(what: object) -> str:
    out = io.StringIO()
    Screen(file=out, width=200, force_terminal=True, color_system="standard").print(
        what, style="red", markup=False, highlight=False
    )
    return out.getvalue()


def test_messages_and_tables_show_escapes() -> None:
    table = Table(EVIL)
    table.add_row(EVIL)
    for what in (EVIL, table):
        text = printed(what)
        for order in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\x7f"):
            assert order not in text
        assert "\\x1b]0;owned" in text
        assert "\x1b[31m" in text  # a colour of our own


def test_messages_show_what_turns_the_order_of_text() -> None:
    assert "a\\u202eb\\u2066c" in printed("a\u202eb\u2066c")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()])
def test_what_models_write(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    TextOut().write(EVIL)
    # a pipe gets the text as it is
    assert out.getvalue() == ("a]0;ownedb[2J31mc\n\td" if out.isatty() else EVIL)


def test_line_breaks_and_tabs_stay() -> None:
    assert "a\tb\nc".translate(CONTROLS) == "a\tb\nc"


def test_lines_of_the_log() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "said %s", (EVIL,), None)
    line = _Lines().format(record)
    assert "\x1b" not in line and "\\x1b[2J" in line
