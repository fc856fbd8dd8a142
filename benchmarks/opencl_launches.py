"""What starting kernels costs on an OpenCL device: Python's loop over a recorded list of launches.

    python benchmarks/opencl_launches.py [MODEL.gguf] [--device opencl]

Prints microseconds per launch: of a chain of sums enqueued again (by weft, by the driver's calls
alone, and until the device is done), of the same after a size has changed (arguments are made
anew), and of a model's step, where attention alone depends on the number of cells (minima).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import weft
from weft import graph as g
from weft.backends import make_backend
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.opencl.library import library
from weft.compiler import compile
from weft.execute import Session
from weft.llm import Context, Model

DEMO = Path(__file__).parents[1] / "examples/weft-demo.gguf"
CHAIN = 200


def in_turns(
    calls: dict[str, Callable[[], None]], between: Callable[[], None], n: int = 30
) -> dict[str, list[float]]:
    """Seconds of `n` calls of each, alternating; `between` is called after each, uncounted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n):
        for name, call in calls.items():
            start = perf_counter()
            call()
            seconds[name].append(perf_counter() - start)
            between()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=DEMO)
    parser.add_argument("--device", default="opencl")
    args = parser.parse_args()

    device = make_backend(args.device)
    x = y = weft.input("x", (weft.Sym("n", 1, 8), 64))
    for _ in range(CHAIN):
        y = g.add(y, x)
    graph = weft.Graph(y.as_output("y"))
    pins = {node: 0 for node in graph.nodes}
    session = Session(compile(graph, [device, "cpu"], assign=pins))
    chain = next(e for e in session.executables if isinstance(e, KernelExecutable))
    wait = device.driver.wait

    def done() -> None:
        chain.run({"n": 4})
        wait()

    queue, enqueue = device.driver.queue, library().enqueue_nd_range_kernel

    def alone() -> None:
        for kernel, grid, group, start in chain._launches:
            enqueue(queue, kernel, grid, group, start)
        queue.flush()

    sizes = [0]

    def changed() -> None:
        sizes[0] += 1
        chain.run({"n": 1 + sizes[0] % 8})

    done()
    print(device.device.description)
    print(f"chain of {chain.n_launches} sums, us per launch, least and median:")
    calls: dict[str, Callable[[], None]] = {
        "enqueued": lambda: chain.run({"n": 4}),
        "the driver's calls alone": alone,
        "enqueued and done": done,
    }
    seconds = in_turns(calls, wait) | in_turns({"after a change of size": changed}, wait)
    for name, times in seconds.items():
        low, middle = (n * 1e6 / chain.n_launches for n in (min(times), median(times)))
        print(f"  {name:24} {low:7.2f} {middle:7.2f}")

    context = Context(Model.open(args.model), 128, n_outputs=1, devices=[device, "cpu"])
    context.decode([1] * 16)
    spent = [0.0]
    run = KernelExecutable.run

    def timed(self: KernelExecutable, values: dict[str, int]) -> None:
        start = perf_counter()
        run(self, values)
        spent[0] += perf_counter() - start

    KernelExecutable.run = timed  # type: ignore[assignment,method-assign]
    steps, loops = [], []
    for position in range(16, 112):
        spent[0] = 0.0
        start = perf_counter()
        context.decode((5,), (position,))
        steps.append(perf_counter() - start)
        loops.append(spent[0])
    parts = [e for e in context._session.executables if isinstance(e, KernelExecutable)]
    n = sum(e.n_launches for e in parts)
    step, loop = min(steps) * 1e6, min(loops) * 1e6
    print(f"{Path(args.model).name}: {n} launches a token, {step:.0f} us, of which Python's loop")
    print(f"  with new sizes of attention {loop:.0f} ({loop / n:.2f} a launch)")


if __name__ == "__main__":
    main()
