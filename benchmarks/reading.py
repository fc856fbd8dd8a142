"""How near generation comes to what memory gives: tokens as bytes of weights per second.

    python benchmarks/reading.py "1B, q4_0: M.gguf" --threads 1,2 [--peer NAME=PATH]

A program in C reads a GiB with as many threads, in turns with the engines, and its fastest pass is
what memory gives. A token reads each weight once, except the embedding, of which it reads a row,
unless the file has no output matrix of its own. The figures are medians. A peer is an executable
with llama-bench's command line.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_peer import PeerError, parse_peer
from benches import WEFT, speeds

from weft.frontends.gguf import open_gguf

GENERATED = ("-p", "0", "-n", "32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="+", metavar="NAME: FILE", help="a model, as one argument")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas (1,2)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH [OPTIONS]")
    parser.add_argument("--repetitions", "-r", type=int, default=5, help="samples of a case (5)")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions is {args.repetitions}; at least 1 is needed")
    try:
        threads = [int(text) for text in args.threads.split(",")]
        commands = {"weft": WEFT} | dict(parse_peer(text) for text in args.peer)
    except ValueError as e:
        parser.error(str(e))
    print(
        f"| model | threads | GB a token | {' | '.join(commands)} | GB/s | of memory's GB/s | "
        f"ratio |\n|{'---|' * (len(commands) + 6)}"
    )
    with tempfile.TemporaryDirectory() as folder:
        reader = Path(folder) / "read_memory"
        source = Path(__file__).with_name("read_memory.c")
        line = [
            os.environ.get("CC", "cc"),
            "-O3",
            "-march=native",
            "-pthread",
            source,
            "-o",
            reader,
        ]
        subprocess.run(line, check=True)
        for case in args.cases:
            name, _, file = case.partition(": ")
            for count in threads:
                try:
                    print(row(name, Path(file), count, commands, args.repetitions, reader))
                except PeerError as e:
                    sys.exit(str(e))


def row(
    name: str, file: Path, threads: int, commands: dict[str, list[str]], repetitions: int,
    reader: Path,
) -> str:  # fmt: skip
    """A line of the table. Raises PeerError where an engine fails."""
    size = read_of(file) / 1e9
    memory: list[float] = []
    samples: dict[str, list[float]] = {engine: [] for engine in commands}
    for number in range(repetitions):
        answer = subprocess.run([reader, str(threads)], capture_output=True, text=True, check=True)
        memory.append(float(answer.stdout) / 1e9)
        for engine in list(commands)[:: -1 if number % 2 else 1]:
            options = ["-m", str(file), "-t", str(threads), *GENERATED]
            samples[engine].append(*speeds(commands[engine], options, {}).values())
    medians = {engine: statistics.median(values) for engine, values in samples.items()}
    best = max((speed for engine, speed in medians.items() if engine != "weft"), default=0.0)
    given = statistics.median(memory)
    read = medians["weft"] * size
    ratio = f"{medians['weft'] / best:.2f}x" if best else "-"
    return (
        f"| {name} | {threads} | {size:.3f} | "
        f"{' | '.join(f'{speed:.4g}' for speed in medians.values())} | {read:.1f} | "
        f"{read / given:.0%} of {given:.1f} | {ratio} |"
    )


def read_of(file: Path) -> int:
    """The bytes of weights that a token reads."""
    tensors = open_gguf(file).tensors
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    own_output = "output.weight" in sizes
    return sum(
        size for name, size in sizes.items() if name != "token_embd.weight" or not own_output
    )


if __name__ == "__main__":
    main()
