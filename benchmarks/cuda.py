"""The speed of weft on a CUDA device, in one go: prompts, tokens, long texts, many texts at once.

    python benchmarks/cuda.py [--device cuda] [--formats q4_0,q4_K,q8_0,f16] [--shape 1b]
                              [--llama-bench PATH] [--json FILE]
    python benchmarks/cuda.py --dry        the shim and a model of a few kilobytes: does it run?

Files of random weights are made on demand (`make_model.py`). Prints tokens per second, medians, and
for tokens the share of the memory's bandwidth that reading weights and cache takes, where the
driver says how fast the memory is. llama-bench of llama.cpp runs the same prompts and tokens on the
same files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from make_model import FORMATS, Shape, add_shape_options, make_model, shape_of

import weft
from weft.backends.cuda.devices import pick
from weft.cli.bench_tests import BenchTest, Runner
from weft.llm import Batch, Context, Model

HERE = Path(__file__).parent
TINY = Shape(n_embd=256, n_layer=2, n_head=4, n_head_kv=2, n_ff=256, n_vocab=512)
N_STEPS = 32
"""Tokens of each text in a test of several texts."""


def main() -> None:
    """Prints a table for each format."""
    args = arguments()
    found = pick(args.device.partition(":")[2] or None)
    report: dict[str, Any] = {
        "device": found.description,
        "bandwidth": found.bandwidth,
        "weft": weft.__version__,
        "command": " ".join(["python", *sys.argv]),
        "formats": {},
    }
    print(f"{found.description}; weft {weft.__version__}")
    if found.bandwidth:
        print(f"memory: {found.bandwidth / 1e9:.0f} GB/s by its clock and the width of its bus")
    for format in args.formats:
        path = args.dir / f"cuda-{args.shape_of.label}-{format}.gguf"
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            make_model(path, format, args.shape_of)
        rows = measure(path, args, found.bandwidth)
        report["formats"][format] = rows
        print(f"\n{format}")
        for row in rows:
            share = f"{row['share']:7.0%} of bandwidth" if row.get("share") else ""
            peer = f"   llama.cpp {row['peer']:10.1f}" if row.get("peer") else ""
            print(f"  {row['test']:<18}{row['speed']:10.1f} tokens/s{peer}{share}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """The command line; `--dry` has sizes of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--formats", default="q4_0,q4_K,q8_0,f16")
    parser.add_argument("--n-prompt", "-p", type=int, default=512)
    parser.add_argument("--n-gen", "-n", type=int, default=64)
    parser.add_argument("--n-long", type=int, default=16384, help="a long prompt, and a depth")
    parser.add_argument("--texts", default="1,2,4,8,16,32,64", help="texts written at once")
    parser.add_argument("--repetitions", "-r", type=int, default=5)
    parser.add_argument("--llama-bench", type=Path, help="the executable of llama.cpp")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build/models")
    parser.add_argument("--json", type=Path, help="writes everything measured to a file")
    parser.add_argument("--dry", action="store_true", help="cuda:shim, a tiny model, few tokens")
    add_shape_options(parser)
    args = parser.parse_args()
    args.formats = args.formats.split(",")
    args.texts = [int(n) for n in args.texts.split(",")]
    if wrong := [name for name in args.formats if name not in FORMATS]:
        parser.error(f"--formats has {', '.join(wrong)}; choose from {', '.join(FORMATS)}")
    try:
        args.shape_of = TINY if args.dry else replace(shape_of(args), n_ctx=2 * args.n_long)
    except ValueError as e:
        parser.error(str(e))
    if args.dry:
        sys.path.insert(0, str(HERE.parent))
        import tests.cuda_shim  # noqa: F401  (makes the device cuda:shim)

        args.device, args.texts, args.repetitions = "cuda:shim", [1, 2], 1
        args.n_prompt, args.n_gen, args.n_long = 16, 4, 48
    return args


def measure(path: Path, args: argparse.Namespace, bandwidth: int) -> list[dict[str, Any]]:
    """The rows of a format."""
    model = Model.open(path)
    long, short = args.n_long, args.n_gen
    tests = [
        BenchTest(args.n_prompt, 0),
        BenchTest(0, short),
        BenchTest(long, 0),
        BenchTest(0, short, long),
    ]
    context = Context(model, long + max(short, N_STEPS), devices=[args.device, "cpu"])
    runner = Runner(context, context.n_batch, lambda text: None)
    peers = peer(args, path, tests) if args.llama_bench else {}
    rows = []
    for test in tests:
        times = [runner.run(test) for _ in range(args.repetitions + 1)][1:]
        speed = test.n_tokens * 1e9 / statistics.median(times)
        row = {"test": test.name, "speed": speed, "peer": peers.get(test.name)}
        if test.n_gen and bandwidth:
            depth = test.n_depth + test.n_gen // 2
            row["share"] = speed * (weight_bytes(model) + cache_bytes(model, depth)) / bandwidth
        rows.append(row)
    del runner, context
    for n in args.texts:
        rows.append({"test": f"{n} texts", "speed": together(model, args, n)})
    return rows


def weight_bytes(model: Model) -> float:
    """The bytes of weights that a token reads."""
    used = model.file.get_int("llama.expert_used_count", 1)
    total = 0.0
    for tensor in model.file.tensors.values():
        if tensor.name != "token_embd.weight":
            total += tensor.nbytes * (used / tensor.ne[2] if tensor.n_dims == 3 else 1)
    return total


def cache_bytes(model: Model, depth: int) -> float:
    """The bytes of keys and values in 16 bits that a token reads."""
    c = model.config
    return 2.0 * 2 * depth * c.n_layer * c.n_head_kv * (c.n_embd // c.n_head)


def together(model: Model, args: argparse.Namespace, n_texts: int) -> float:
    """Tokens per second of several texts of which each step writes one token."""
    context = Context(
        model, n_texts * 2 * N_STEPS, devices=[args.device, "cpu"], n_seq_max=n_texts,
        n_outputs=n_texts,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    times = []
    for repetition in range(args.repetitions + 1):
        context.clear()
        start = perf_counter()
        for step in range(N_STEPS):
            context.decode(
                Batch(
                    rng.integers(0, model.config.n_vocab, n_texts),
                    positions=[step] * n_texts,
                    seqs=[[i] for i in range(n_texts)],
                    outputs=[True] * n_texts,
                )
            )
        if repetition:
            times.append(perf_counter() - start)
    return n_texts * N_STEPS / statistics.median(times)


def peer(args: argparse.Namespace, path: Path, tests: list[BenchTest]) -> dict[str, float]:
    """llama-bench's tokens per second, by test."""
    speeds = {}
    for test in tests:
        sizes = ["-p", str(test.n_prompt), "-n", str(test.n_gen), "-d", str(test.n_depth)]
        command = [str(args.llama_bench), "-m", str(path), *sizes, "-ngl", "99", "-fa", "1"]
        done = subprocess.run(
            [*command, "-r", str(args.repetitions), "-o", "json"], capture_output=True, text=True
        )
        try:
            speeds[test.name] = float(json.loads(done.stdout)[-1]["avg_ts"])
        except (ValueError, LookupError):
            sys.exit(f"{' '.join(command)} said no speed: {done.stderr.strip()[-300:]}")
    return speeds


if __name__ == "__main__":
    main()
