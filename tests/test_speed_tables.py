"""The tables of docs/speed.md, their summary there, and four rows of it in README.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.tables import (
    PAGE,
    README,
    ROOT,
    TABLES,
    blocks,
    headlines,
    marks,
    printed,
    summarized,
)  # fmt: skip


def test_the_summaries_say_what_the_tables_have() -> None:
    begin, end = marks("summary")
    page = PAGE.read_text("utf-8")
    for file, text in ((PAGE, summarized(page)), (README, headlines(page))):
        assert file.read_text("utf-8").partition(begin)[2].partition(end)[0] == text
    assert len(headlines(page).splitlines()) == 2 + 4


def test_tables_have_rows_their_command_and_their_ratios() -> None:
    for name, target, text in blocks(PAGE.read_text("utf-8")):
        head, *rows = printed(text, "")
        assert rows and f"WEFT_TARGET={target} python benchmarks/" in text, (name, target)
        assert set(TABLES[name].ratios) <= set(head), (name, target)


def test_a_ratio_below_one_is_bold_and_counted() -> None:
    begin, end = marks("programs avx2")
    rows = (
        "| model | best peer / weft |\n|---|---|\n| a | **0.90x** (0.91x) |\n| b | 1.50x (2x) |\n"
    )
    assert (
        "| PyTorch programs, one thread | `avx2` | 2 | **0.90x** | 1.20x | 1.50x |"
        in summarized(begin + rows + end)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "a case is 'nothing'; it is NAME: OPTIONS"),
        (["a: -m x -npl 4"], "-npl, -npp and -ntg each need numbers, such as -npl 1,8"),
        (["a: -m 'x"], "cannot be read: No closing quotation"),
        (["a: -m x", "-r", "0"], "--repetitions is 0; at least 1 is needed"),
        (["a: -m x", "--peer", "p"], "--peer is 'p'; it is NAME=PATH"),
    ],
)
def test_benches_refuses_what_it_cannot_read(arguments: list[str], message: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/benches.py"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and message in run.stderr and not run.stdout
