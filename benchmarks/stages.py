"""Tokens and prompts of a model over two workers of this machine: predicted and measured.

    python benchmarks/stages.py MODEL.gguf ... [--tokens 64,512] [--passes 60]

Starts two workers, calibrates them and their links, and splits the layers evenly. Times are the
least of all passes, as the figures of the calibration are, and the medians. The cache is as large
as the longest prompt, and predictions are for a full one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from weft.backends import make_backend
from weft.backends.remote.group import MachineGroup, machine_group
from weft.cluster.calibrate import measure_group
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.planning.stage_report import one_pass
from weft.schedule.explain import seconds_text
from weft.schedule.profile import Profile
from weft.tables import text_table

_COLUMNS = ("model", "on", "tokens", "predicted", "least", "median", "predicted/least")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--tokens", default="1,64,512", help="tokens of a pass, e.g. 1,512")
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.2, help="for one figure of a profile")
    args = parser.parse_args()
    sizes = [int(word) for word in args.tokens.split(",")]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, workers(2, Path(folder), args.models) as names:
        group = machine_group(",".join(names))
        here = [make_backend("cpu")]
        profile = measure_group(group, here, args.seconds, lambda text: None)
        for model in args.models:
            rows += measured(model, group, profile, sizes, args.passes)
            rows += measured(model, None, profile, sizes, args.passes)
        group.close()
    print("\n".join(text_table(_COLUMNS, rows, _COLUMNS[2:])))


def measured(
    path: Path, group: MachineGroup | None, profile: Profile, sizes: list[int], passes: int
) -> Iterator[list[str]]:
    """Rows of the table for a model."""
    n_ubatch = max(sizes)
    context = Context(
        Model.open(path), n_ctx=n_ubatch, n_ubatch=n_ubatch, n_copies=1, machines=group,
    )  # fmt: skip
    for n in sizes:
        times = []
        for i in range(passes if n == 1 else max(passes // 4, 5)):
            if n > 1 or i % n_ubatch == 0:
                context.cache.clear()
            ids = [3 + (i + j) % 200 for j in range(n)]
            start = perf_counter()
            context.decode(ids)
            times.append(perf_counter() - start)
        guess = one_pass(context.plan, profile, n).seconds
        least = min(times[1:])
        texts = [seconds_text(t) for t in (guess, least, median(times[1:]))]
        where = "one machine" if group is None else "two workers"
        yield [path.name, where, str(n), *texts, f"{guess / least:.2f}"]


@contextmanager
def workers(n: int, folder: Path, models: list[Path]) -> Iterator[list[str]]:
    """The addresses of workers."""
    found, processes = [], []
    try:
        for i in range(n):
            command = [sys.executable, "-m", "weft", "worker", "--listen", "127.0.0.1:0"]
            command += ["--cache-dir", str(folder / str(i)), "--no-restart"]
            for model in models:
                command += ["--model-dir", str(model.resolve().parent)]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"127\.0\.0\.1:\d+", line)
            assert match is not None, line
            found.append(match[0])
        yield found
    finally:
        for process in processes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
