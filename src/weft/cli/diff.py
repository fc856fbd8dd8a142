"""`weft diff` shows the differences between two plans, or a plan and a log of ggml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from weft.bounds import LOG_BYTES
from weft.cli.console import say, size_text, wide
from weft.cli.mistakes import show_error
from weft.errors import FormatError, WeftError
from weft.files import write_text
from weft.schedule.alignment import is_log
from weft.schedule.diff import beside
from weft.schedule.diff import diff as plan_diff
from weft.schedule.ggml_log import read_log


def diff(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN",
            help="A plan of `weft explain --save` or `--json`, or what llama.cpp printed with "
            "GGML_SCHED_DEBUG=2 and -v.",
        ),
    ],
    b: Annotated[Path, typer.Argument(metavar="OTHER", help="Another plan or log.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write both side by side to look at: one HTML file."),
    ] = None,
    graph: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With a log: its graph of this number, from 1. Default: the one reserved last for "
            "the largest batches, and the one for single tokens.",
        ),
    ] = None,
) -> None:
    """Show what differs between two plans, or between ggml's log and a plan. Lists options, weights
    and nodes that changed device, causes, copies, totals and memory, each with the reason; nothing
    if the plans agree. Exits with 1 if they differ, with 2 if one cannot be read."""
    try:
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        one, two = (_read(path, name, graph) for path, name in zip((a, b), names, strict=True))
        if graph is not None and not any(is_log(plan) for plan in (one, two)):
            raise FormatError("--graph chooses a graph of a log of ggml; both files are plans")
        one, two = beside(one, two)
        for plan in (one, two):
            pairs = plan.get("names", {}).items()
            if renamed := [f"{name} is {other}" for name, other in pairs if name != other]:
                say("devices: " + ", ".join(renamed))
        changes = plan_diff(one, two)
        if html is not None:
            from weft.report import diff_data, report_html

            write_text(html, report_html(diff_data(one, two, names)))
            say(f"report written to {html}")
    except WeftError as error:
        show_error(error)
        raise typer.Exit(2) from None
    if changes:
        if html is None:
            out = wide()
            out.print(Text(changes), soft_wrap=not out.is_terminal)
        raise typer.Exit(1)


def _read(path: Path, name: str, graph: int | None) -> Any:
    """A plan, or the graphs of a log as one; says which."""
    try:
        with path.open("rb") as file:
            data = file.read(LOG_BYTES + 1)
    except OSError as error:
        raise FormatError(f"plan {path}: {error.strerror or error}") from None
    long = f"more than {size_text(LOG_BYTES, 0)}" if len(data) > LOG_BYTES else ""
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        if long:
            raise FormatError(f"plan {path}: {long}, which no plan of weft has")
        try:
            return json.loads(data)
        except RecursionError:
            raise FormatError(f"plan {path}: lists are nested too deeply") from None
        except ValueError as error:  # JSON and UTF-8
            raise FormatError(f"plan {path}: not JSON ({error})") from None
    try:
        log = read_log(data)
        number = log.main() if graph is None else graph - 1
        plan = log.plan(number)
        small = log.smallest() if graph is None else None
        if small not in (None, number):
            plan["smaller"] = [log.plan(small)]
    except FormatError as error:
        seen = f"{long}, of which the first were read: " if long else ""
        raise FormatError(f"{path}: {seen}{error}") from None
    chosen = [n for n in (number, small) if n is not None]
    say(f"{name}: a log of ggml, " + "; ".join(
        [*(log.about(n) for n in dict.fromkeys(chosen)), *([] if chosen else ["no graph in it"])]
    ))  # fmt: skip
    if log.shortened:
        say(f"{name}: only the first {size_text(LOG_BYTES, 0)} were read")
    return plan
