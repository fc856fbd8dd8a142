"""Predicted against measured time for each number of layers on a device (`-ngl`).

    python benchmarks/layers.py MODEL.gguf [--device cuda] [--speeds FILE] [--layers 0,8,16,99]

Predictions are those of `weft explain --speeds`: without `--speeds` the devices are measured first,
as `weft calibrate` does. Prints milliseconds of a prompt of one ubatch and of a token, both with a
full cache, and the ratio of measured to predicted.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from weft.backends import make_backend
from weft.cli.bench_tests import BenchTest, Runner
from weft.execute.measure import measure_machine
from weft.llm import Context, Model
from weft.schedule import Profile, TimeModel, load_profile
from weft.schedule.timing import Point

N_TOKENS = 8
"""Tokens of a timed generation."""


def main() -> None:
    """Prints the table."""
    args = arguments()
    model = Model.open(args.model)
    devices = [make_backend(args.device), make_backend("cpu", n_threads=args.threads)]
    if args.speeds:
        profile = load_profile(args.speeds)
    else:
        profile = measure_machine(devices, args.seconds, lambda text: print(text, file=sys.stderr))
    n_layer = model.config.n_layer
    chosen = args.layers or [*range(0, n_layer + 1, max(1, n_layer // 8)), n_layer + 1]
    print(f"{platform.machine()}, {args.model.name}, {args.device}: ms measured (x predicted)")
    print(f"{'-ngl':>5}  {f'pp{args.n_prompt}':>18}  {'tg':>18}")
    for n in dict.fromkeys(min(n, n_layer + 1) for n in chosen):
        context = Context(
            model, args.n_ctx, devices=devices, n_gpu_layers=n, n_ubatch=args.n_prompt
        )
        cells = []
        for test in (
            BenchTest(args.n_prompt, 0, args.n_ctx - args.n_prompt),
            BenchTest(0, N_TOKENS, args.n_ctx - N_TOKENS),
        ):
            passes = test.n_gen or 1
            took = measured(context, test, args.repetitions) / passes
            guess = predicted(context, profile, 1 if test.n_gen else args.n_prompt)
            cells.append(f"{1e3 * took:10.2f} (x{took / guess:5.2f})")
        print(f"{n:>5}  {cells[0]:>18}  {cells[1]:>18}", flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--speeds", type=Path, help="a file of weft calibrate")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each figure of a device")
    parser.add_argument("--layers", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--n-prompt", "-p", type=int, default=512)
    parser.add_argument("--n-ctx", "-c", type=int, default=2048)
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--repetitions", "-r", type=int, default=3)
    args = parser.parse_args()
    if args.n_ctx < max(args.n_prompt, N_TOKENS):
        parser.error(f"-c is {args.n_ctx}; it must hold the prompt of {args.n_prompt} tokens")
    return args


def measured(context: Context, test: BenchTest, repetitions: int) -> float:
    """Seconds of a test, the median of some runs after a warm-up."""
    runner = Runner(context, context.n_batch, lambda text: None)
    context.clear()
    times = [runner.run(test) for _ in range(repetitions + 1)]
    return statistics.median(times[1:]) / 1e9


def predicted(context: Context, profile: Profile, n_tokens: int) -> float:
    """Seconds of one pass of so many tokens with a full cache."""
    plan: Any = context.plan
    regime = next(r for r in plan.regimes if n_tokens <= r.max_tokens)
    schedule = regime.plan.schedule
    values = {"n_tokens": n_tokens, "n_kv": context.n_ctx, "n_outputs": 1}
    named = {s.name for s in schedule.graph.symbols.values()}
    values = {s.name: s.max for s in schedule.graph.symbols.values()} | {
        name: value for name, value in values.items() if name in named
    }
    model = TimeModel(profile, schedule.graph, schedule.backends, [Point(values)])
    return model.predict(schedule).total


if __name__ == "__main__":
    main()
