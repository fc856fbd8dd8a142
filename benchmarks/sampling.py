"""What sampling a token costs, by chain and vocabulary.

    python benchmarks/sampling.py [--vocab 128256] [--repeats 200] [--schema]

Prints microseconds for `sample` and `accept` together, least and median, for two kinds of logits:
`sharp` ones, as a trained model's (most of the probability on some dozens of tokens), and `flat`
ones, the worst case of cuts by probability. A decode step of a 1B model takes 10 ms and more, so 5%
of it is 500 us. `--model FILE` adds constraints, over the vocabulary of that file.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from time import perf_counter
from typing import Any

import numpy as np

from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer, token_logprobs

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default (top-k 40, top-p, min-p)": {},
    "default with all penalties": {
        "repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    },
    "default with DRY over 4096 tokens": {
        "dry_multiplier": 0.8, "dry_last_n": 4096, "dry_sequence_breakers": (),
    },
    "default with XTC": {"xtc_probability": 0.5},
    "top-k 40, typical": OFF | {"top_k": 40, "typical_p": 0.9},
    "top-n-sigma": OFF | {"top_n_sigma": 1.0},
    "temperature alone": OFF | {"temperature": 0.8},
    "min-p alone": OFF | {"min_p": 0.05},
    "top-p alone": OFF | {"top_p": 0.95},
    "top-p, min-p": OFF | {"top_p": 0.95, "min_p": 0.05},
    "typical alone": OFF | {"typical_p": 0.9},
    "XTC alone": OFF | {"xtc_probability": 1.0},
    "mirostat 2": {"mirostat": 2},
}  # fmt: skip
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "JSON object": {"json_schema": {"type": "object"}},
    "any text but ten digits": {"regex": r"[^0-9]*"},
}


def logits_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of logits [8, n]."""
    rows = rng.standard_normal((8, n), np.float32) * np.float32(2.5)
    if kind == "sharp":
        for row in rows:
            row[rng.choice(n, 60, replace=False)] += np.linspace(16, 6, 60, dtype=np.float32)
    return rows


def timed(sampler: Sampler, rows: np.ndarray, repeats: int) -> list[float]:
    """Seconds of each token after a warm-up."""
    times = []
    for i in range(repeats + 10):
        start = perf_counter()
        sampler.accept(sampler.sample(rows[i % len(rows)]))
        times.append(perf_counter() - start)
    return times[10:]


def show(name: str, kind: str, times: list[float]) -> None:
    """One line of the table."""
    least, median = min(times) * 1e6, statistics.median(times) * 1e6
    print(f"{name:36} {kind:6} {least:9.1f} {median:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--model", help="a GGUF file whose vocabulary constraints work on")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    print(f"{platform.machine()}, NumPy {np.__version__}, {args.vocab} tokens")
    print(f"{'chain':36} {'logits':6} {'least us':>9} {'median us':>9}")
    for kind in ("sharp", "flat"):
        rows = logits_of(kind, args.vocab, rng)
        for name, options in CHAINS.items():
            sampler = Sampler(SamplingParams(seed=1, **options))
            sampler.start(rng.integers(0, 50, 4096).tolist())
            show(name, kind, timed(sampler, rows, args.repeats))
        times = []
        for i in range(args.repeats):
            start = perf_counter()
            token_logprobs(rows[i % 8], 5, 20)
            times.append(perf_counter() - start)
        show("log-probabilities, top 20", kind, times)
    if args.model:
        constraints(args.model, rng, args.repeats)


def constraints(path: str, rng: np.random.Generator, repeats: int) -> None:
    """Constraints with the default chain; a text that is complete begins anew."""
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    rows = logits_of("flat", tokenizer.n_vocab, rng)
    for name, options in CONSTRAINTS.items():
        params = SamplingParams(seed=1, **options)
        start = perf_counter()
        sampler = Sampler(params, tokenizer)
        print(f"{name}: made in {(perf_counter() - start) * 1e3:.1f} ms")
        times: list[float] = []
        for i in range(repeats):
            if sampler.done:
                sampler = Sampler(params, tokenizer)
            start = perf_counter()
            id_ = sampler.sample(rows[i % len(rows)])
            if id_ not in tokenizer.vocab.eog:
                sampler.accept(id_)
            times.append(perf_counter() - start)
        show(name, "flat", times)


if __name__ == "__main__":
    main()
