"""Perplexity, KL divergence, importance matrices and tasks: weft beside llama.cpp's tools.

    python benchmarks/quality_peer.py BASE.gguf text.txt Q.gguf ... --peer llama.cpp/build/bin
        [-c 128] [--chunks 40] [--exact] [--hellaswag F] [--winogrande F] [--choices F]

Both programs score the text with BASE, compare each Q with BASE's probabilities (in the file that
llama-perplexity wrote), and measure BASE's importance matrix; tasks are scored with the last model.
--exact makes both compute in f32 (-ctk f32 -ctv f32 -fa off). Prints a table with both figures and
the seconds of each, starts included, with one thread each. llama.cpp's tools sometimes end before
their last lines are printed; they are run again then.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from weft.frontends.gguf.imatrix_file import read_imatrix

EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]


def timed(*words: object, until: str = "") -> tuple[str, float]:
    """What a program printed, and the seconds it took; it is run again, at most 10 times, where
    `until` is not in what it printed."""
    for _ in range(10):
        start = perf_counter()
        line = list(map(str, words))
        done = subprocess.run(line, capture_output=True, text=True, errors="replace")
        if done.returncode:
            sys.exit(f"{words}: {done.stderr[-500:]}")
        seconds = perf_counter() - start
        if re.search(until, done.stdout + done.stderr):
            break
    return done.stdout + done.stderr, seconds


def weft(*words: object) -> tuple[dict[str, float], float]:
    """The JSON that a command of weft prints."""
    start = perf_counter()
    line = [sys.executable, "-m", "weft", *map(str, words), "--json"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{line}: {done.stderr}")
    return json.loads(done.stdout), perf_counter() - start


def number(text: str, pattern: str) -> float:
    """The number behind the last match of `pattern`."""
    return float((math.nan, *re.findall(pattern + r"\s*(-?\d+\.\d+)", text))[-1])


def row(what: str, ours: float, theirs: float, seconds: tuple[float, float], n: int = 6) -> None:
    """Prints a row of the table."""
    print(
        f"| {what} | {ours:.{n}f} | {theirs:.{n}f} | {seconds[0]:.1f} | {seconds[1]:.1f} |",
        flush=True,
    )


def kl(name: str, path: Path, base: Path, peer: Path, more: list[str], n_ctx: int) -> None:
    """Compares a model with the base's file, by both."""
    ours, s = weft("perplexity", path, "--kl", "--kl-base", base, *more)
    batch = ("-c", n_ctx, "-b", n_ctx)
    text, t = timed(peer / "llama-perplexity", "-m", path, "--kl-divergence", *batch,
                    "--kl-divergence-base", base, *more, until="Same top p:")  # fmt: skip
    row(f"{name} PPL", ours["ppl"], number(text, r"Mean PPL\(Q\)\s*:"), (s, t))
    row(f"{name} mean KL", ours["kl"], number(text, r"Mean    KLD:"), (s, t))
    spread = ours["kl_spread"]["percentiles"]  # type: ignore[index]
    row(f"{name} 99 % KL", spread["99"], number(text, r"99.0%   KLD:"), (s, t))
    row(f"{name} RMS Δp, %", 100 * ours["p_change_rms"], number(text, r"RMS Δp    :"), (s, t), 3)
    row(f"{name} same top p, %", 100 * ours["same_top"], number(text, r"Same top p:"), (s, t), 3)


def tasks(kind: str, file: Path, model: Path, peer: Path, more: list[str]) -> None:
    """Scores tasks of a file, by both."""
    ours, s = weft("perplexity", model, f"--{kind}", "-f", file, *more)
    text, t = timed(peer / "llama-perplexity", "-m", model, f"--{kind}", "-bf", file, *more)
    last = re.findall(r"^\d+\t(\d+\.\d+)", text, re.MULTILINE)[-1]
    row(f"{kind}, {ours['n_tasks']} tasks, %", 100 * ours["accuracy"], float(last), (s, t), 4)


def matrices(model: Path, text: Path, peer: Path, more: list[str], n_ctx: int, out: Path) -> None:
    """Measures an importance matrix by both; prints how far sums are apart, relative to a row."""
    one, other = out / "one.gguf", out / "other.gguf"
    _, s = weft("imatrix", model, "-f", text, "-o", one, "-c", n_ctx, *more)
    _, t = timed(peer / "llama-imatrix", "-m", model, "-f", text, "-o", other, "-c", n_ctx, "-b",
                 n_ctx, *more)  # fmt: skip
    ours, theirs = read_imatrix(one).entries, read_imatrix(other).entries
    assert ours.keys() == theirs.keys()
    off = [
        np.linalg.norm(ours[n].sums.astype(float) - e.sums) / np.linalg.norm(e.sums.astype(float))
        for n, e in theirs.items()
    ]
    same = all((ours[n].counts == e.counts).all() for n, e in theirs.items())
    what, counts = f"imatrix, {len(off)} tensors: worst off", "same" if same else "other"
    print(f"| {what} | {max(off):.1e} | {counts} counts | {s:.1f} | {t:.1f} |", flush=True)


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("-c", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--exact", action="store_true")
    for kind in ("hellaswag", "winogrande", "choices"):
        parser.add_argument(f"--{kind}", type=Path)
    a = parser.parse_args()
    more = ["-t", "1", *(EXACT if a.exact else [])]
    print("| figure | weft | llama.cpp | weft, s | llama.cpp, s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        text_of = ("-f", a.text, "-c", a.c, "--chunks", a.chunks)
        ours, s = weft("perplexity", a.base, *text_of, "--kl-base", out / "own.kld", *more)
        save = ("-b", a.c, "--kl-divergence-base", out / "base.kld", *more)
        text, t = timed(a.peer / "llama-perplexity", "-m", a.base, *text_of, *save, until="PPL = ")
        row("base PPL", ours["ppl"], number(text, "PPL ="), (s, t), 4)
        for path in a.models:
            kl(path.stem, path, out / "base.kld", a.peer, more, a.c)
        matrices(a.base, a.text, a.peer, [*more, "--chunks", str(a.chunks)], a.c, out)
        for kind, file in (("hellaswag", a.hellaswag), ("winogrande", a.winogrande),
                           ("multiple-choice", a.choices)):  # fmt: skip
            if file:
                tasks(kind, file, (a.models or [a.base])[-1], a.peer, more)


if __name__ == "__main__":
    main()
