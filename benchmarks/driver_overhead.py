"""What a split and a copy cost besides their work: drivers over devices that compute nothing.

    python benchmarks/driver_overhead.py [--splits 32] [--runs 300]

Prints microseconds per split, the median of all runs, for the three ways to run a program: a
session, a scheduler that waits, and one with four batches in flight (planning included). `shared`:
two devices over one memory; `copies`: each split first gets a 4 KiB tensor from the other memory.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Callable
from time import perf_counter

import numpy as np

import weft
from weft import graph as g
from weft.backends.base import Support
from weft.backends.null import NullBackend, NullBufferType
from weft.execute import Scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=32)
    parser.add_argument("--runs", type=int, default=300)
    args = parser.parse_args()
    print(f"{platform.machine()}, {args.splits} splits, {args.runs} runs")
    for memory in ("shared", "copies"):
        devices = _devices(memory == "shared")
        for name, times in _measure(devices, args.splits, args.runs).items():
            median = statistics.median(times) / args.splits
            print(f"{memory:8} {name:24} {median * 1e6:7.1f} us a split")


class _Half(NullBackend):
    """Takes every other node of the chain."""

    def supports_op(self, node: weft.Tensor) -> Support:
        support = super().supports_op(node)
        if node.op.name == "SQR":
            return Support(False, "left to the other device")
        return support


def _devices(shared: bool) -> list[NullBackend]:
    host = NullBufferType("host", "cpu")
    own = host if shared else NullBufferType("own", "far", is_host=False)
    return [_Half("far", "GPU", own), NullBackend("near", "CPU", host)]


def _chain(n: int, far: NullBackend) -> weft.Graph:
    h = weft.input("x", (1024,))
    for i in range(n):
        h = g.silu(h) if i % 2 else g.sqr(h)
    return weft.Graph(h.as_output("y"))


def _measure(devices: list[NullBackend], n: int, runs: int) -> dict[str, list[float]]:
    graph = _chain(n, devices[0])
    pins = {t: 0 for t in graph.nodes if t.op.name == "UNARY"}
    x = np.zeros(1024, np.float32)
    session = weft.Session(weft.compile(graph, devices, assign=pins))
    assert len(session.program.splits) == n
    seconds = {"Session.execute": _time(lambda: session.execute({}), runs)}
    for copies in (1, 4):
        with Scheduler(devices, copies) as scheduler:

            def planned(scheduler: Scheduler = scheduler) -> None:
                scheduler.reset()
                for tensor, device in pins.items():
                    scheduler.set_tensor_backend(tensor, device)

            if copies == 1:
                planned()
                times = _time(lambda s=scheduler: s.compute(graph, {"x": x}), runs)
                seconds["Scheduler.compute"] = times
                continue

            def four(scheduler: Scheduler = scheduler) -> None:
                started = []
                for _ in range(4):
                    planned(scheduler)
                    started.append(scheduler.compute_async(graph, {"x": x}))
                for run in started:
                    run.wait()

            times = _time(four, runs // 4)
            seconds["Scheduler, 4 in flight"] = [t / 4 for t in times]
    return seconds


def _time(work: Callable[[], object], runs: int) -> list[float]:
    for _ in range(5):
        work()
    times = []
    for _ in range(runs):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
