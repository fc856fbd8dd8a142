"""Values that typer need not convert: the same as typer's, and its errors where it refuses."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperCommand

from weft.cli import quick_values
from weft.cli.quick_values import take_plain_values


class Color(StrEnum):
    red = "red"
    blue = "blue"


def half(text: str | int) -> int:
    if int(text) % 2:
        raise ValueError(f"{text} is odd")
    return int(text) // 2


class _Quick(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        take_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)


def outcome(args: list[str], kind: type[TyperCommand]) -> Any:
    """The values that a command gets, or the type and the text of the error."""
    got: dict[str, Any] = {}

    def command(
        name: str,
        more: Annotated[list[str] | None, typer.Argument()] = None,
        n: Annotated[int, typer.Option("-n")] = 3,
        x: Annotated[float | None, typer.Option("-x")] = 0.5,
        few: Annotated[int | None, typer.Option("--few", min=1, max=4)] = None,
        on: Annotated[bool | None, typer.Option("--on/--off")] = None,
        color: Annotated[Color, typer.Option("--color")] = Color.red,
        each: Annotated[list[int] | None, typer.Option("--each")] = None,
        file: Annotated[Path | None, typer.Option("--file")] = None,
        there: Annotated[Path | None, typer.Option("--there", exists=True)] = None,
        halved: Annotated[int | None, typer.Option("--half", parser=half)] = None,
    ) -> None:
        got.update(locals())
        got.pop("got")

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=kind)(command)
    try:
        typer.main.get_command(app)(args, standalone_mode=False)
    except Exception as error:
        return type(error), str(error), getattr(error, "message", "")
    return {name: (type(value), value) for name, value in got.items()}


LINES = [
    ["a"],
    [],
    ["a", "b", "c", "-n", "5", "-x", "-2.25", "--few", "4", "--on"],
    ["a", "-n", "-7", "-x", "1e-3", "--off", "--color", "blue"],
    ["a", "--each", "1", "--each", "2", "--file", "no/such", "--half", "8"],
    ["a", "--file", __file__, "--there", __file__],
    ["a", "-x", "nan"],
    ["a", "-n", " 5"],
    ["a", "-n", "1_0"],
    ["a", "-n", "five"],
    ["a", "-x", "five"],
    ["a", "--each", "1", "--each", "two"],
    ["a", "--few", "9"],
    ["a", "--color", "green"],
    ["a", "--there", "no/such"],
    ["a", "--half", "3"],
]


WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "write a whole number",
    "Input should be a valid number, unable to parse string as a number": "write a number",
    "Value error, ": "",
}
"""What typer says of a value, and what weft says."""


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_values_and_errors_are_typers(line: list[str]) -> None:
    expected = str(outcome(line, TyperCommand))
    for typers, wefts in WORDS.items():
        expected = expected.replace(typers, wefts)
    assert str(outcome(line, _Quick)) == expected


def test_usual_values_need_no_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("typer was asked")

    real = quick_values._processing
    monkeypatch.setattr(quick_values, "_processing", lambda param, _: real(param, refuse))
    line = ["a", "b", "-n", "5", "-x", "0.5", "--on", "--each", "1", "--file", "f", "--half", "8"]
    values = outcome(line, _Quick)
    assert values["halved"] == (int, 4) and values["each"] == (list, [1])


def test_a_usual_command_line_imports_no_pydantic() -> None:
    code = (
        "import sys\nsys.argv = ['weft', 'run', 'none.gguf', '-p', 'x', '-n', '4', '-t', '2',"
        " '--temp', '0.5', '-c', '4k']\n"
        "from weft.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'weft.llm.llm' in sys.modules and 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
