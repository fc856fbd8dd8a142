"""`weft bench` beside llama-bench, or with -npl beside llama-batched-bench, in turns.

    python benchmarks/benches.py "16k: -m M.gguf -t 1 -p 512 -n 16 -d 16384" --peer NAME=PATH

A case is a name and options that all commands know. Each sample is a process of its own with one
timed run; medians are tokens per second, of all sequences together with -npl. The ratio is weft to
the fastest peer: above 1, weft is faster. A peer that cannot run a case has a dash there, and the
reason is on standard error. With `--processor-time` seconds are those of the processor, of one
thread, for a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_peer import PeerError, build_clock, parse_peer

WEFT = [sys.executable, "-m", "weft", "bench"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "cases", nargs="+", metavar="NAME: OPTIONS",
        help="a row's name and the options of all commands, as one argument",
    )  # fmt: skip
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PATH [OPTIONS]",
        help="an executable to compare with, and options of its own",
    )  # fmt: skip
    parser.add_argument("--repetitions", "-r", type=int, default=5, help="samples of a case (5)")
    parser.add_argument("--processor-time", action="store_true", help="seconds of the processor")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions is {args.repetitions}; at least 1 is needed")
    try:
        commands = {"weft": WEFT} | dict(parse_peer(text) for text in args.peer)
        cases = [parse_case(text) for text in args.cases]
    except ValueError as e:
        parser.error(str(e))
    try:
        measure(cases, commands, args)
    except PeerError as e:
        sys.exit(str(e))


def parse_case(text: str) -> tuple[str, list[str]]:
    """The name and the options of a case. Raises ValueError."""
    name, _, words = text.partition(": ")
    try:
        options = shlex.split(words)
        if "-npl" in options:
            cells(options)
    except ValueError as e:
        raise ValueError(f"the options of case {text!r} cannot be read: {e}") from e
    if not options:
        raise ValueError(f"a case is {text!r}; it is NAME: OPTIONS")
    return name, options


def measure(
    cases: Sequence[tuple[str, Sequence[str]]],
    commands: Mapping[str, Sequence[str]],
    args: argparse.Namespace,
) -> None:
    """Prints the table. Raises PeerError where weft cannot run a case."""
    print(f"| case | test | {' | '.join(commands)} | ratio |\n|{'---|' * (len(commands) + 3)}")
    with tempfile.TemporaryDirectory() as folder:
        preload = {"LD_PRELOAD": str(build_clock(Path(folder)))} if args.processor_time else {}
        for name, options in cases:
            for row in rows(name, options, commands, args.repetitions, preload):
                print(row, flush=True)


def rows(
    case: str,
    options: Sequence[str],
    commands: Mapping[str, Sequence[str]],
    repetitions: int,
    preload: Mapping[str, str],
) -> list[str]:
    """A line of the table for each test of a case. Raises PeerError where weft cannot run it."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    failed: set[str] = set()
    for number in range(repetitions):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            if name in failed:
                continue
            try:
                measured = speeds(commands[name], options, preload)
            except PeerError as e:
                if name == "weft":
                    raise
                failed.add(name)
                print(f"{case}: {name}: {e}", file=sys.stderr)
                continue
            for test, speed in measured.items():
                samples[name].setdefault(test, []).append(speed)
    lines = []
    for test, own in samples["weft"].items():
        medians = [statistics.median(samples[name].get(test, [0.0])) for name in commands]
        best = max(medians[1:], default=0.0)
        cells = [f"{speed:.4g}" if speed else "-" for speed in medians]
        ratio = f"{statistics.median(own) / best:.2f}x" if best else "-"
        lines.append(f"| {case} | {test} | {' | '.join(cells)} | {ratio} |")
    return lines


def speeds(
    command: Sequence[str], options: Sequence[str], preload: Mapping[str, str]
) -> dict[str, float]:
    """Tokens per second of each test. Raises PeerError."""
    own = command is WEFT
    if "-npl" in options:
        line = [*command, *options, "--output-format", "jsonl"]
        line += ["-r", "1"] if own else ["-c", str(cells(options))]
    else:
        line = [*command, *options, "-r", "1", "-o", "json"]  # ik_llama.cpp has no jsonl
    try:
        run = subprocess.run(line, capture_output=True, text=True, env={**os.environ, **preload})
    except OSError as e:
        raise PeerError(f"{shlex.join(line)} cannot be started: {e.strerror}") from e
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:]
        raise PeerError(f"{shlex.join(line)} ended with code {run.returncode}: {''.join(last)}")
    found: dict[str, float] = {}
    if "-npl" in options:
        answers = [json.loads(text) for text in run.stdout.split("\n") if text.startswith("{")]
    else:
        answers = json.loads(run.stdout)
    for answer in answers:
        if "pl" in answer:
            found[f"{answer['pl']} x pp{answer['pp']}"] = answer["speed_pp"]
            found[f"{answer['pl']} x tg{answer['tg']}"] = answer["speed_tg"]
        else:
            test = f"tg{answer['n_gen']}" if answer["n_gen"] else f"pp{answer['n_prompt']}"
            depth = answer.get("n_depth")
            found[f"{test} @ d{depth}" if depth else test] = answer["avg_ts"]
    if not found:
        raise PeerError(f"{shlex.join(line)} said no speed")
    return found


def cells(options: Sequence[str]) -> int:
    """Cells of the cache that the largest test of -npl takes. Raises ValueError."""

    def largest(option: str) -> int:
        return max(map(int, options[options.index(option) + 1].split(",")))

    try:
        return largest("-npl") * (largest("-npp") + largest("-ntg"))
    except (ValueError, IndexError) as e:
        raise ValueError("-npl, -npp and -ntg each need numbers, such as -npl 1,8") from e


if __name__ == "__main__":
    main()
