"""Feeds damaged inputs to every door that a stranger's file or request comes in through.

    python -m tests.fuzz [NAME...] [--seconds 120] [--seed N]   `make fuzz` does this
    python -m tests.fuzz NAME --again 0xROUND                   a round that was unclean, once more

A driver is a module of this folder with

    NATIVE: bool                        whether kernels or the delegate are reached
    def prepare(folder: Path) -> Round  what tries one input (rounds.py), with a folder for files

or, where it needs neither, with `run(seed, n)` that tries n inputs and returns how many were taken.

Drivers run one after the other, each in a process of its own and for its share of the seconds. With
--native and --delegate, which `make fuzz` gives, those with NATIVE run over libraries that were
built with AddressSanitizer. Rounds that were unclean once are kept in tests/data/fuzz and run first
(`make test` runs them, too)."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEEDS = ROOT / "tests" / "data" / "fuzz"
_OURS = {"__main__", "child", "mutate", "rounds"}


def drivers() -> list[str]:
    """The names of all drivers."""
    names = {path.stem for path in HERE.glob("*.py")} - _OURS
    return sorted(name for name in names if not name.startswith("test_"))


def seeds_of(name: str) -> list[str]:
    """Rounds of a driver that were unclean once."""
    file = SEEDS / f"{name}.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def run_driver(
    name: str, seed: int, seconds: float, *, most: int = 0, environ: dict[str, str] | None = None
) -> tuple[Counter[str], str]:
    """What its rounds came to, and what is wrong; nothing is wrong with an empty text."""
    kept = seeds_of(name)
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder) / "last"
        rest = (str(seed), str(seconds), str(most), str(last), *kept)
        output, wrong = _child(name, *rest, environ=environ)
        if not wrong:
            return Counter(json.loads(output.splitlines()[-1])), ""
        number = last.read_text() if last.exists() else "that prepares"
    if number in kept:
        return Counter(), f"round {number} is unclean again: {wrong}:\n{output}"
    return Counter(), f"{wrong} in round {number}:\n{output}"


def _child(name: str, *rest: str, environ: dict[str, str] | None) -> tuple[str, str]:
    """Output, and what is wrong with the end of the process."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.child", name, *rest],
        cwd=ROOT,
        env=os.environ | (environ or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if "again" in rest else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if process.returncode == 0:
        return process.stdout, ""
    output = (process.stdout + (process.stderr or ""))[-20_000:]
    ended = "an error" if process.returncode == 1 else f"the process ended ({process.returncode})"
    return output, ended


def sanitized(native: Path | None, delegate: Path | None) -> dict[str, str]:
    """The environment in which libraries with AddressSanitizer load."""
    if native is None:
        return {}
    compiler = os.environ.get("CXX", "c++")
    names = ("libasan.so", "libubsan.so")
    ask = [[compiler, f"-print-file-name={name}"] for name in names]
    preload = [subprocess.check_output(command, text=True).strip() for command in ask]
    environ = {
        "WEFT_FUZZ_NATIVE": str(native.resolve()),
        "LD_PRELOAD": " ".join(preload),
        # Python's own leaks; big requests are refused with an error, as without a sanitizer
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    if delegate is not None:
        environ["WEFT_FUZZ_DELEGATE"] = str(delegate.resolve())
    return environ


def main() -> int:
    """The exit status: 1 where something was unclean."""
    parser = argparse.ArgumentParser(description="damaged inputs for every door")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(drivers()))
    parser.add_argument("--seconds", type=float, default=120.0, help="of all drivers together")
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--again", metavar="0xROUND", help="one round of one driver")
    parser.add_argument("--native", type=Path, help="a weft._native with sanitizers")
    parser.add_argument("--delegate", type=Path, help="a libweft_executorch.so with sanitizers")
    options = parser.parse_args()
    environ = sanitized(options.native, options.delegate)
    names = options.names or drivers()
    if unknown := sorted(set(names) - set(drivers())):
        parser.error(f"no driver {', '.join(unknown)}; there are {', '.join(drivers())}")
    if options.again:
        output, wrong = _child(names[0], "again", options.again, environ=environ)
        print(output.strip())
        return int(bool(wrong))
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    share = options.seconds / len(names)
    failed = 0
    print(f"seed {seed}, {share:.0f} s for each of {len(names)} drivers", flush=True)
    for name in names:
        reached = environ if getattr(import_module(f"tests.fuzz.{name}"), "NATIVE", False) else {}
        counts, wrong = run_driver(name, seed, share, environ=reached)
        how = " (sanitized)" if reached else ""
        parts = ", ".join(f"{n:,} {word}" for word, n in counts.most_common())
        print(f"{name}{how}: {wrong or f'{counts.total():,} rounds: {parts}'}", flush=True)
        failed += bool(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
