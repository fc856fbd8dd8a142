"""Runs ExecuTorch's operator suite and writes the table of docs/executorch.md.

python -m weft_executorch.suite run RESULTS.jsonl [--flows weft,weft_q8_0] [--files abs,add]
python -m weft_executorch.suite table RESULTS.jsonl... [--beside XNNPACK.csv] [--into PAGE.md]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

__all__ = ["main"]

_PORTABLE = "portable"  # the flow without a delegate
_BEGIN, _END = "<!-- suite: begin -->", "<!-- suite: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m weft_executorch.suite",
        description="ExecuTorch's operator suite: run it by flows, make the table of the results.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run cases, a line of JSON each (an hour for all)")
    run.add_argument("results", type=Path, help="the file of lines to write")
    run.add_argument(
        "--flows", default="weft", help="of weft, weft_q8_0, portable; default: %(default)s"
    )
    run.add_argument("--files", default="", help="names such as abs,add; default: all")
    table = commands.add_parser("table", help="print the table of such files")
    table.add_argument("results", type=Path, nargs="+", help="what `run` has written")
    table.add_argument("--beside", type=Path, help="a CSV with another backend's figures")
    table.add_argument("--into", type=Path, help="a page with the two marks of the table")
    args = parser.parse_args(argv)
    if args.command == "run":
        return _run(args.results, args.flows, [f for f in args.files.split(",") if f])
    text = _table(args.results, args.beside)
    if args.into is None:
        print(text)
    else:
        _insert(args.into, text)
    return 0


def _run(results: Path, flows: str, files: Sequence[str]) -> int:
    spec = find_spec("executorch.backends.test.suite.operators")
    if spec is None or spec.origin is None:
        raise SystemExit("the operator suite is not in this executorch; install executorch==1.5.1")
    folder = Path(spec.origin).parent
    what = [str(folder / f"test_{name}.py") for name in files] or [str(folder)]
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull,
        "-p", "weft_executorch.suite_plugin", "-p", "no:cacheprovider",
        "--rootdir", str(folder), "-W", "ignore", "--tb=line",
        "--weft-flows", flows, "--weft-results", str(results.resolve()), *what,
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def _table(results: Iterable[Path], beside: Path | None) -> str:
    rows = [json.loads(line) for path in results for line in path.read_text().splitlines()]
    flows = list(dict.fromkeys(row["flow"] for row in rows if row["flow"]))
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        for flow in [row["flow"]] if row["flow"] else flows:
            counts.setdefault((row["file"], flow), Counter())[row["outcome"]] += 1
    other = _read_beside(beside) if beside is not None else {}
    files = sorted({file for file, _ in counts})
    head = ["operator", "cases"]
    for flow in flows:
        delegates = ["delegated", "of these partly"] if flow != _PORTABLE else []
        first, *others = [*delegates, "undelegated", "skipped", "failed"]
        head += [f"{flow}: {first}", *others]
    if other:
        head += ["XNNPACK: delegated", "undelegated", "failed"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    total: list[int] = []
    for file in files:
        numbers = [sum(counts[file, flows[0]].values())]
        for flow in flows:
            outcomes = counts.get((file, flow), Counter())
            if flow != _PORTABLE:
                numbers += [outcomes["delegated"] + outcomes["partly"], outcomes["partly"]]
            numbers += [outcomes["undelegated"], outcomes["skipped"], outcomes["failed"]]
        if other:
            numbers += other.get(file, [0, 0, 0])
        total = [a + b for a, b in zip(total or [0] * len(numbers), numbers, strict=True)]
        lines.append(f"| {file} | " + " | ".join(map(str, numbers)) + " |")
    lines.append("| **all** | " + " | ".join(f"**{n}**" for n in total) + " |")
    return "\n".join(lines)


def _read_beside(path: Path) -> dict[str, list[int]]:
    with path.open() as file:
        columns = ("delegated_pass", "undelegated_pass", "fail")
        return {row["file"]: [int(row[c]) for c in columns] for row in csv.DictReader(file)}


def _insert(page: Path, text: str) -> None:
    before, mark, remaining = page.read_text().partition(_BEGIN)
    _, end, after = remaining.partition(_END)
    if not mark or not end:
        raise SystemExit(f"{page} has no place for the table: the lines {_BEGIN} and {_END}")
    page.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
