"""How much of a generation step is Python: time in `Context.decode` outside the session's run.

    python benchmarks/step_overhead.py [MODEL.gguf] [--device cpu] [--steps 200] [--threads 2]

Prints microseconds per token, medians over steps after a warm-up: the whole step, the run (kernels
included) and what is left, which is Python. Sampling is not part of it.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

from weft.llm import Context, Model

DEMO = Path(__file__).parents[1] / "examples/weft-demo.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=DEMO)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    model = Model.open(args.model)
    n_ctx = args.steps + 32
    context = Context(model, n_ctx, n_outputs=1, n_threads=args.threads, devices=[args.device])
    session, inside = context._session, [0.0]
    run = session.execute

    def timed(values: Mapping[str, int]) -> None:
        start = perf_counter()
        run(values)
        inside[0] += perf_counter() - start

    session.execute = timed  # type: ignore[method-assign]
    whole, ran = [], []
    context.decode([1] * 16)
    for position in range(16, n_ctx):
        inside[0] = 0.0
        start = perf_counter()
        context.decode((5,), (position,))
        whole.append(perf_counter() - start)
        ran.append(inside[0])
    whole, ran = whole[16:], ran[16:]
    python = [w - r for w, r in zip(whole, ran, strict=True)]
    print(f"{platform.machine()}, {Path(args.model).name}, {args.device}, {len(whole)} steps")
    for name, times in (("step", whole), ("run", ran), ("python", python)):
        median, worst = statistics.median(times), sorted(times)[int(0.99 * len(times))]
        print(f"{name:8} {median * 1e6:9.1f} us   (99%: {worst * 1e6:.1f} us)")


if __name__ == "__main__":
    main()
