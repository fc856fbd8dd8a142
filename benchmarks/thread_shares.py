"""How a step is shared by threads when one of them gets less of its processor (docs/cpu-graphs.md).

    python benchmarks/thread_shares.py [--others N] [--runs N]

Two threads, each on a processor of its own, multiply 8192 x 4096 floats with a column; then again
while N other processes are busy on the second processor. Processor seconds of the threads are
compared, which other work on the machine does not change. For Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import weft
from weft import graph as g

ROWS, COLUMNS = 8192, 4096


def processor_seconds() -> dict[str, float]:
    """Seconds by thread of this process."""
    seconds = {}
    for thread in Path("/proc/self/task").iterdir():
        fields = (thread / "stat").read_text().rsplit(")", 1)[1].split()
        seconds[thread.name] = (int(fields[11]) + int(fields[12])) / 100
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--others", type=int, default=3)
    parser.add_argument("--runs", type=int, default=400)
    given = parser.parse_args()
    w = weft.constant(np.ones((ROWS, COLUMNS), np.float32), "w")
    y = g.mul_mat(w, weft.input("x", (1, COLUMNS))).as_output("y")
    # threads sleep at once where there is nothing to do, so that waiting costs no seconds
    threads = weft.ThreadOptions(cpus=(0, 1), strict=True, poll=0)
    session = weft.Session(weft.compile(weft.Graph(y), n_threads=2, threads=threads))
    x = np.ones((1, COLUMNS), np.float32)
    for others in (0, given.others):
        command = ["taskset", "-c", "1", sys.executable, "-c", "while True: pass"]
        busy = [subprocess.Popen(command) for _ in range(others)]
        try:
            time.sleep(0.5)
            before = processor_seconds()
            for _ in range(given.runs):
                session.run(x)
            used = [s - before[thread] for thread, s in processor_seconds().items()]
        finally:
            for process in busy:
                process.kill()
        first, second = sorted(used)[:-3:-1]
        share = first / (first + second)
        print(f"{others} others on the second processor: {share:.0%} and {1 - share:.0%}")


if __name__ == "__main__":
    main()
