"""What starting kernels costs on an OpenCL device: Python's loop over a recorded list of launches.

    python benchmarks/opencl_launches.py [MODEL.gguf] [--device opencl]

Prints microseconds per launch: of a chain of sums enqueued again (the loop alone, and until the
device is done), of the same after a size has changed (arguments are made anew), and of a model's
step, where attention alone depends on the number of cells. Minima over repetitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import weft
from weft import graph as g
from weft.backends import make_backend
from weft.backends.opencl.executable import OpenCLExecutable
from weft.compile import compile
from weft.execute import Session
from weft.llm import Context, Model

DEMO = Path(__file__).parents[1] / "examples/weft-demo.gguf"
CHAIN = 200


def best(call: Callable[[], None], n: int = 30) -> float:
    """Microseconds of the fastest of `n` calls."""
    times = []
    for _ in range(n):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times) * 1e6


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
    chain = next(e for e in session.executables if isinstance(e, OpenCLExecutable))
    wait = device.driver.wait

    def done() -> None:
        chain.run({"n": 4})
        wait()

    sizes = [0]

    def changed() -> None:
        sizes[0] += 1
        chain.run({"n": 1 + sizes[0] % 8})

    done()
    print(f"{device.device.description}\nchain of {chain.n_launches} sums, us per launch:")
    for name, call in (("enqueued", lambda: chain.run({"n": 4})), ("and done", done),
                       ("after a change of size", changed)):  # fmt: skip
        print(f"  {name:24} {best(call) / chain.n_launches:7.2f}")
        wait()

    context = Context(Model.open(args.model), 128, n_outputs=1, devices=[device, "cpu"])
    context.decode([1] * 16)
    spent = [0.0]
    run = OpenCLExecutable.run

    def timed(self: OpenCLExecutable, values: dict[str, int]) -> None:
        start = perf_counter()
        run(self, values)
        spent[0] += perf_counter() - start

    OpenCLExecutable.run = timed  # type: ignore[assignment,method-assign]
    steps, loops = [], []
    for position in range(16, 112):
        spent[0] = 0.0
        start = perf_counter()
        context.decode((5,), (position,))
        steps.append(perf_counter() - start)
        loops.append(spent[0])
    found = [e for e in context._session.executables if isinstance(e, OpenCLExecutable)]
    n = sum(e.n_launches for e in found)
    step, loop = min(steps) * 1e6, min(loops) * 1e6
    print(f"{Path(args.model).name}: {n} launches a token, {step:.0f} us, of which Python's loop")
    print(f"  with new sizes of attention {loop:.0f} ({loop / n:.2f} a launch)")


if __name__ == "__main__":
    main()
