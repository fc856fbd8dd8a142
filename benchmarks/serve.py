"""Tokens per second and latencies of `weft serve` at several numbers of streams.

    python benchmarks/serve.py [MODEL.gguf] [--streams 1 4 16 64] [--tokens 32] [--prompt 16]
    python benchmarks/serve.py MODEL.gguf --peer llama-server=PATH --peer-batched PATH

Every stream has a prompt of its own (random tokens) and draws greedily; a round runs all numbers of
streams in turn, and the best of the rounds counts. `python` is what a step takes beside the native
run: packing, masks, sampling, detokenizing, handing out. With --http or --peer servers are measured
instead, over HTTP (`serve_peers.py`).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
from serve_load import LONG
from serve_peers import compare, compare_crowds

from weft.execute import Session
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Done, Engine, Request

DEMO = Path(__file__).parents[1] / "examples/weft-demo.gguf"
Measure = Callable[[int], tuple[float, float]]
"""Streams to tokens per second, and Python's share of the time."""


def prompts(n_vocab: int, n: int, length: int) -> list[list[int]]:
    random = np.random.default_rng(n)
    return random.integers(n_vocab // 2, n_vocab, (n, length)).tolist()


def of_engine(args: argparse.Namespace, model: Model, tokenizer: Tokenizer) -> Measure:
    n = max(args.streams)
    context = Context(
        model, n * (args.prompt + args.tokens), n_seq_max=n, n_ubatch=max(n, 256), n_outputs=n,
        n_threads=args.threads,
    )  # fmt: skip
    engine = Engine(context, tokenizer)
    inside = [0.0]
    planned = context.counters.graphs_built

    def clocked(session: Session) -> None:
        run = session.execute

        def timed(values: Mapping[str, int]) -> None:
            start = perf_counter()
            run(values)
            inside[0] += perf_counter() - start

        session.execute = timed  # type: ignore[method-assign]

    for regime in context._graphs.all:
        clocked(regime.session)
    draw = SamplingParams(temperature=0)

    def measure(streams: int) -> tuple[float, float]:
        left = threading.Semaphore(0)
        inside[0], before = 0.0, engine.stats.step_seconds
        start = perf_counter()
        for prompt in prompts(model.config.n_vocab, streams, args.prompt):
            request = Request(tuple(prompt), max_tokens=args.tokens, sampling=draw, ignore_eos=True)
            engine.submit(request, lambda e: left.release() if isinstance(e, Done) else None)
        for _ in range(streams):
            left.acquire()
        seconds = perf_counter() - start
        steps = engine.stats.step_seconds - before
        built = context.counters.graphs_built
        assert built == planned, f"{built - planned} graphs were built"
        return streams * args.tokens / seconds, 1 - inside[0] / steps

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(DEMO))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--http", action="store_true", help="the server's process, by HTTP")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH",
                        help="a llama-server beside it; implies --http")  # fmt: skip
    parser.add_argument("--peer-batched", action="append", default=[], metavar="PATH",
                        help="a llama-batched-bench; implies --http")  # fmt: skip
    parser.add_argument("--every", type=float, default=0.5,
                        help="seconds between long prompts of the mixed load")  # fmt: skip
    parser.add_argument("--clients", type=int,
                        help="so many clients at once, over HTTP; slots: --streams")  # fmt: skip
    parser.add_argument("--system", type=int, default=64,
                        help="prompt tokens that all --clients share")  # fmt: skip
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[],
                        help="with --clients: options of weft serve, last of all")  # fmt: skip
    args = parser.parse_args()
    if any("=" not in peer for peer in args.peer):
        parser.error(f"--peer is {' '.join(args.peer)}; it is NAME=PATH, of a llama-server")
    file = open_gguf(args.model)
    model, tokenizer = Model(file), Tokenizer.from_gguf(file)
    command = " ".join(["python", *map(os.path.basename, sys.argv[:2]), *sys.argv[2:]])
    print(f"{command}\n{platform.machine()}, {os.cpu_count()} processors, {Path(args.model).name}")
    if args.clients:
        return compare_crowds(args, model.config.n_vocab)
    if args.http or args.peer or args.peer_batched:
        args.long = min(LONG, model.config.n_ctx_train - args.tokens)
        return compare(args, model.config.n_vocab)
    measure = of_engine(args, model, tokenizer)
    measure(args.streams[0])  # warm-up
    best = {n: (0.0, 0.0) for n in args.streams}
    for _ in range(args.rounds):
        for n in args.streams:
            best[n] = max(best[n], measure(n))
    print("streams  tokens/s   of one  python")
    for n, (speed, python) in best.items():
        print(f"{n:7} {speed:9.1f} {speed / best[args.streams[0]][0]:7.2f}x {python:7.1%}")


if __name__ == "__main__":
    main()
