"""How long commands take from the start of their process to the first token, side by side.

    python benchmarks/start.py MODEL.gguf --peer "llama-simple -m {model} -n 1 {prompt}"

`weft run` writes one token. It takes turns with each `--peer`, a command line in which {model},
{prompt} and {threads} are filled in, after a first round that does not count and leaves the file
and the bytecode of Python in the system's cache. Each is a process of its own, imports included:
its time until the first byte on stdout (of commands that print the prompt, until then) and until it
ends, and the time of the processor. Medians, with the minimum beside them; on a machine with other
work, compare the time of the processor.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

COLUMNS = ("first output", "whole", "processor")


@dataclass(frozen=True)
class Sample:
    """Seconds of one process."""

    first: float
    whole: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", "-r", type=int, default=5)
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("-r must be 1 or more")
    own = "{python} -m weft run {model} -q -n 1 -t {threads} -p {prompt}"
    commands = [_filled(line, args) for line in (own, *args.peer)]
    names = ["weft", *(os.path.basename(shlex.split(line)[0]) for line in args.peer)]
    samples: list[list[Sample]] = [[] for _ in commands]
    for number in range(args.repetitions + 1):
        order = range(len(commands))
        for i in order if number % 2 else reversed(order):
            sample = measure(commands[i])
            if number:
                samples[i].append(sample)
    print(f"{args.model}, {args.threads} threads, {args.repetitions} rounds; seconds (minimum)")
    print("| command | " + " | ".join(COLUMNS) + " |\n|---|---|---|---|")
    for name, rows in zip(names, samples, strict=True):
        columns = zip(*((s.first, s.whole, s.processor) for s in rows), strict=True)
        cells = (f"{median(values):.3f} ({min(values):.3f})" for values in columns)
        print(f"| {name} | " + " | ".join(cells) + " |")


def _filled(line: str, args: argparse.Namespace) -> list[str]:
    values = {"{model}": args.model, "{prompt}": args.prompt, "{threads}": str(args.threads),
              "{python}": sys.executable}  # fmt: skip
    words = []
    for word in shlex.split(line):
        for name, value in values.items():
            word = word.replace(name, value)
        words.append(word)
    return words


def measure(command: Sequence[str]) -> Sample:
    """Runs a process to its end. Exits with its status where that is not 0."""
    read, write = os.pipe()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = perf_counter()
    pid = os.posix_spawnp(
        command[0], command, environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )  # fmt: skip
    os.close(write)
    first = 0.0
    with os.fdopen(read, "rb", buffering=0) as output:
        while output.read(1 << 16):
            first = first or perf_counter() - start
    _, status, usage = os.wait4(pid, 0)
    whole = perf_counter() - start
    if status:
        sys.exit(f"{shlex.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return Sample(first, whole, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()
