"""`weft doctor` checks whether the kernels of this machine's targets, or of a device, compute
correctly."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.status import Status
from rich.table import Table

from weft.backends.cases import SOME_FORMATS
from weft.backends.cpu.backend import require_target
from weft.backends.cpu.record import choose
from weft.cli.console import StatusLine, chosen_devices, errors, say, wide
from weft.errors import DeviceError
from weft.execute.doctor import Checked, Failure, Report, check_devices, check_targets
from weft.flags import FLAGS
from weft.native import _native

_SHOWN = 12
"""Maximum number of failures that are listed one by one; --json has all."""

_LIMIT = 300.0
"""The default of --limit. Drivers that compile kernels on a processor take a second for each."""


def doctor(
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Kernel target to check; default: the best of this machine."
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Check all targets that this machine can run; with --devices, all formats "
            "instead of one of each kind.",
        ),
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="CPU threads; default: cores, at most 4.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            "--device",
            "-dev",
            metavar="NAMES",
            help="Check these devices instead of the cpu's targets, e.g. cuda:0, against NumPy.",
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="With --devices: end the check of a device after this time, with what is known; "
            "default: 300, with --all none.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every kernel against the baseline and NumPy. A target that fails is not used again."""
    reports = []
    with _may_be_ended(), _progress(not as_json) as show:
        if devices is None:
            if limit is not None:
                raise DeviceError("--limit is for devices; add --devices, or leave it out")
            checks = check_targets(_targets(target, every), threads, progress=show)
        elif target is not None or threads is not None:
            raise DeviceError("--target and --threads are the cpu's; leave out --devices")
        else:
            most = _LIMIT if limit is None and not every else limit
            checks = check_devices(
                chosen_devices(devices), every=every, limit=most, progress=show,
                finished=None if as_json else _print_op,
            )  # fmt: skip
        for report in checks:
            reports.append(report)
            if not as_json:
                _print(report)
                if devices is not None:
                    _print_left_out(report, every)
    used, why = used_target()
    if as_json:
        rows = [asdict(r) | {"ok": r.ok} for r in reports]
        print(json.dumps({"targets": rows, "used": used, "why": why}, indent=1))
    elif devices is None:
        wide().print(f"in use: {used or 'none'} ({why})", markup=False)
    if not all(r.ok for r in reports):
        raise typer.Exit(1)


@contextmanager
def _may_be_ended() -> Iterator[None]:
    """Turns SIGTERM into an orderly end, so that it is not recorded as the crash of a kernel."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def used_target() -> tuple[str | None, str]:
    """The target that is used if no option names one, and why; None if there is none."""
    try:
        if FLAGS.target:
            require_target(FLAGS.target, even_if_failing=False)
            return FLAGS.target, "WEFT_TARGET says so"
        choice = choose()
    except DeviceError as error:
        return None, str(error)
    return choice.target, choice.why


def _targets(target: str | None, every: bool) -> list[str]:
    usable = [name for name, score in sorted(_native.targets(), key=lambda t: t[1]) if score]
    if every and target is not None:
        raise DeviceError("--all checks every target; leave out --target")
    if every:
        return usable
    chosen = target or FLAGS.target or usable[-1]
    if chosen not in usable:
        raise DeviceError(
            f"this machine cannot run kernel target {chosen!r}; it can run {', '.join(usable)}"
        )
    return [chosen]


Show = Callable[[str, int, int], None]


class _Shown:
    """A line on the terminal with the progress of the check."""

    def __init__(self) -> None:
        self._status = Status("", console=errors)

    def __enter__(self) -> Show:
        self._status.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def _show(self, target: str, done: int, total: int) -> None:
        self._status.update(f"{target}: {done} of {total}")


@contextmanager
def _lines() -> Iterator[Show]:
    """A line about every 10 s with the progress of the check."""
    with StatusLine() as status:
        yield lambda target, done, total: status(f"{target}: {done} of {total} cases checked")


def _progress(wanted: bool) -> AbstractContextManager[Any]:
    if errors.is_terminal:
        return _Shown() if wanted else nullcontext()
    return _lines()


def _print_op(checked: Checked) -> None:
    """Prints a line about an op of a device, with what is wrong, while others are to come."""
    n, wrong = checked.cases, len(checked.failures)
    said = f"{wrong} of {n} wrong" if wrong else f"{n} ok" if n else "refused"
    more = f", {checked.refused} refused" if n and checked.refused else ""
    say(f"{checked.target}: {checked.op}: {said}{more}, {checked.seconds:.1f} s")
    for failure in checked.failures[:_SHOWN]:
        say(f"  {failure.kernel}: {failure.how}")


def _print_left_out(report: Report, every: bool) -> None:
    """Prints what the check of a device did not try."""
    out = wide()
    if report.not_run:
        n = report.cases + len(report.refused) + len(report.not_run)
        out.print(f"  {len(report.not_run)} of {n} cases were not run for lack of time (--limit)")
    if not every:
        out.print(f"  formats: {', '.join(SOME_FORMATS)}; --all checks every format")


def _print(report: Report) -> None:
    out = wide()
    others = dict(_native.targets()).keys() - {"baseline"}
    alone = report.target not in others or "baseline" not in dict(_native.targets())
    held_to = "NumPy" if alone else "NumPy and the baseline"
    word = "[green]ok[/green]" if report.ok else "[red]FAILED[/red]"
    out.print(
        f"{report.target}: {word}, {report.cases} cases of {report.ops} ops against {held_to} "
        f"in {report.seconds:.1f} s{_left_to_others(report)}"
    )
    if report.ok:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for column in ("kernel", "against", "what is wrong"):
        table.add_column(column, no_wrap=column == "kernel")
    for failure in report.failures[:_SHOWN]:
        table.add_row(failure.kernel, failure.against, failure.how.replace("[", r"\["))
    out.print(table)
    n_more = len(report.failures) - _SHOWN
    if n_more > 0:
        out.print(f"  and {n_more} more, of {_ops(report.failures[_SHOWN:])}")


def _left_to_others(report: Report) -> str:
    """The number of cases that the device has no kernels for, which do not fail the check."""
    n = len(report.refused)
    if not n:
        return ""
    return f"; it has no kernels for {n} more, which other devices run (weft devices --ops)"


def _ops(failures: list[Failure]) -> str:
    return ", ".join(sorted({f.op for f in failures}))
