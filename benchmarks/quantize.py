"""Quantizing a file: weft beside llama-quantize, which must write the same bytes.

    python benchmarks/quantize.py MODEL.gguf --peer PATH/llama-quantize --imatrix IMATRIX.gguf

For each type both write the model, one after the other, as often as `--repeat` says; each goes
first every other time. The table has the shortest times of each: seconds of the clock, and seconds
of all processors, which other work on the machine changes less. Whole processes are measured, with
their start and with reading and writing the files. Without an importance matrix, leave out the
types that need one; `--random-imatrix` makes one of random numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.imatrix_file import Imatrix, ImatrixEntry, write_imatrix

TYPES = "Q4_0,Q8_0,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, required=True, help="the llama-quantize executable")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--random-imatrix", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.random_imatrix:
            options.imatrix = random_imatrix(options.model, Path(folder) / "imatrix.gguf")
        weighted = "with an importance matrix" if options.imatrix else "without importance matrix"
        print(f"{options.model.name}, {options.threads} threads, {weighted}\n")
        print(
            "| type | llama-quantize | weft | ratio | processors: theirs | weft | ratio | bytes |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for kind in options.types.split(","):
            print(row(kind, options, Path(folder)), flush=True)


def row(kind: str, options: argparse.Namespace, folder: Path) -> str:
    """Measures one type."""
    outs = {"peer": folder / "peer.gguf", "weft": folder / "weft.gguf"}
    imatrix = ["--imatrix", str(options.imatrix)] if options.imatrix else []
    commands = {
        "peer": [str(options.peer)], "weft": [sys.executable, "-m", "weft", "quantize"],
    }  # fmt: skip
    best: dict[str, tuple[float, float]] = {}
    for turn in range(options.repeat):
        for engine in sorted(commands, reverse=turn % 2 == 1):
            outs[engine].unlink(missing_ok=True)
            command = [*commands[engine], *imatrix, "--allow-requantize", str(options.model),
                       str(outs[engine]), kind, str(options.threads)]  # fmt: skip
            wall, processor = timed(command)
            before = best.get(engine, (wall, processor))
            best[engine] = (min(wall, before[0]), min(processor, before[1]))
    same = "same" if same_tensors(outs["peer"], outs["weft"]) else "**differ**"
    peer, weft = best["peer"], best["weft"]
    return (
        f"| {kind} | {peer[0]:.1f} s | {weft[0]:.1f} s | {peer[0] / weft[0]:.1f} "
        f"| {peer[1]:.1f} s | {weft[1]:.1f} s | {peer[1] / weft[1]:.1f} | {same} |"
    )


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds of the clock and of processors that a command takes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{said.decode()[-1000:]}")
    return wall, usage.ru_utime + usage.ru_stime


def same_tensors(a: Path, b: Path) -> bool:
    """Whether two files have the same tensors, in any order."""
    with open_gguf(a) as one, open_gguf(b) as other:
        return one.tensors.keys() == other.tensors.keys() and all(
            t.dtype is other.tensors[name].dtype
            and np.array_equal(t.data, other.tensors[name].data)
            for name, t in one.tensors.items()
        )


def random_imatrix(model: Path, path: Path) -> Path:
    """An importance matrix of random numbers for every matrix of a model."""
    random = np.random.default_rng(1)
    with open_gguf(model) as file:
        entries = {
            t.name: ImatrixEntry(
                random.chisquare(1, (t.ne[2], t.ne[0])).astype(np.float32),
                np.ones(t.ne[2], np.int64),
            )
            for t in file.tensors.values()
            if t.ne[1] > 1
        }
    write_imatrix(path, Imatrix(entries, ("random",), 1, 1, False, True))
    return path


if __name__ == "__main__":
    main()
