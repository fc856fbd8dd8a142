"""`python -m tests.mutants`: see docs/mutants.md."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.mutants.row import AREAS, Mutant, TableError, problems, read_table
from tests.mutants.run import Outcome, run
from tests.mutants.tree import ROOT, BuildError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", choices=AREAS, help="only rows of this area")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this row")
    parser.add_argument("--list", action="store_true", help="print the table and check it")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows tried at a time")
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="what has not begun by then is not tried"
    )
    return parser.parse_args()


def _chosen(rows: list[Mutant], asked: argparse.Namespace) -> list[Mutant]:
    unknown = set(asked.only or ()) - {row.name for row in rows}
    if unknown:
        raise TableError(f"there is no row {sorted(unknown)[0]}")
    return [
        row
        for row in rows
        if (not asked.area or row.area in asked.area) and (not asked.only or row.name in asked.only)
    ]


def _say(outcome: Outcome) -> None:
    what = "noticed" if outcome.noticed else "SURVIVED" if outcome.tried else "NOT TRIED"
    by = f" by {outcome.by}" if outcome.noticed else f": {outcome.by}" if outcome.by else ""
    row = outcome.row
    print(f"{row.area}/{row.name}: {what}{by} ({outcome.seconds:.0f} s)", flush=True)


def main() -> int:
    """Returns 0 where every mistake was noticed."""
    asked = _arguments()
    try:
        rows = _chosen(read_table(), asked)
        wrong = problems(rows, ROOT)
    except TableError as error:
        wrong = [str(error)]
    if wrong:
        print("the table does not fit the tree:", *wrong, sep="\n  ", file=sys.stderr)
        return 2
    if asked.list:
        for row in rows:
            print(f"{row.area}/{row.name}  {row.file}\n    {row.breaks}\n    {' '.join(row.tests)}")
        print(f"{len(rows)} mistakes")
        return 0
    # also where a shell started this in the background, which ignores Ctrl-C
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    try:
        report = run(rows, asked.jobs, asked.minutes, _say)
    except BuildError as error:
        print(f"the build without a mistake failed:\n{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; no mistake is left behind", file=sys.stderr)
        return 130
    survived, untried = report.of(noticed=False), report.of(noticed=False, tried=False)
    noticed = len(report.of(noticed=True))
    minutes = (time.monotonic() - began) / 60
    print(f"{noticed} noticed, {len(survived)} survived in {minutes:.0f} minutes")
    for title, outcomes in (("survived", survived), ("not tried", untried)):
        for outcome in outcomes:
            row = outcome.row
            print(f"{title}: {row.area}/{row.name} ({row.file}): {row.breaks}")
    return 1 if survived or untried else 0


if __name__ == "__main__":
    sys.exit(main())
