"""Tokens per second of `weft serve`'s engine at several numbers of streams, and Python's share.

    python benchmarks/serve.py [MODEL.gguf] [--streams 1 4 16 64] [--tokens 32] [--prompt 16]

Every stream has a prompt of its own (random tokens) and draws greedily; a round runs all numbers of
streams in turn, and the best of the rounds counts. `python` is what a step takes beside the native
run: packing, masks, sampling, detokenizing, handing out. With --http the same texts are streamed
by the openai client from a server process instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np

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


def of_server(args: argparse.Namespace, model: Model) -> Measure:
    from openai import OpenAI

    n = max(args.streams)
    command = [sys.executable, "-m", "weft", "serve", args.model, "--port", "0", "-np", n,
               "-c", n * (args.prompt + args.tokens)]  # fmt: skip
    if args.threads:
        command += ["-t", args.threads]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = next(line for line in process.stderr if " at http" in line).split(" at ")[1].split(";")[0]
    client = OpenAI(base_url=url, api_key="none", timeout=600)

    def one(prompt: list[int]) -> None:
        stream = client.completions.create(
            model="m", prompt=prompt, max_tokens=args.tokens, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        for _ in stream:
            pass

    def measure(streams: int) -> tuple[float, float]:
        if streams == 0:
            process.terminate()
            process.wait()
            return 0.0, 0.0
        threads = [threading.Thread(target=one, args=(p,))
                   for p in prompts(model.config.n_vocab, streams, args.prompt)]  # fmt: skip
        start = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return streams * args.tokens / (perf_counter() - start), float("nan")

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(DEMO))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--http", action="store_true")
    args = parser.parse_args()
    file = open_gguf(args.model)
    model, tokenizer = Model(file), Tokenizer.from_gguf(file)
    measure = of_server(args, model) if args.http else of_engine(args, model, tokenizer)
    measure(args.streams[0])  # warm-up
    best = {n: (0.0, 0.0) for n in args.streams}
    for _ in range(args.rounds):
        for n in args.streams:
            best[n] = max(best[n], measure(n))
    if args.http:
        measure(0)
    command = " ".join(["python", *map(os.path.basename, sys.argv[:2]), *sys.argv[2:]])
    print(f"{command}\n{platform.machine()}, {os.cpu_count()} processors, {Path(args.model).name}")
    print("streams  tokens/s   of one  python")
    for n, (speed, python) in best.items():
        print(f"{n:7} {speed:9.1f} {speed / best[args.streams[0]][0]:7.2f}x {python:7.1%}")


if __name__ == "__main__":
    main()
