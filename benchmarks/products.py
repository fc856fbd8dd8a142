"""Big products on cpu and on blas: the crossing point, and what decoding weights costs.

    python benchmarks/products.py [--threads 2] [--size 2048]

Prints GFLOP/s of y = x W^T for square weights, per type of W and number of rows of x, best of a few
runs. `cpu, bf16` is `activations="bf16"`; `blas` has decoded W before; `blas, no cache` decodes it
in every run. `--cpu` leaves blas out.
"""

from __future__ import annotations

import argparse
import platform
from time import perf_counter

import numpy as np

import weft
from weft import quants
from weft.backends import make_backend
from weft.dtype import find_dtype
from weft.graph import mul_mat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--cpu", action="store_true", help="leave blas out")
    args = parser.parse_args()
    print(f"{platform.machine()}, {args.threads} threads, W [{args.size}, {args.size}]")
    devices = {
        "cpu": [make_backend("cpu", n_threads=args.threads)],
        "cpu, bf16": [make_backend("cpu", n_threads=args.threads, activations="bf16")],
    }
    if not args.cpu:
        devices["blas"] = _with_blas(args.threads)
        devices["blas, no cache"] = _with_blas(args.threads, decoded_bytes=0)
    print(f"{'W':6} {'rows':>5}" + "".join(f"{name:>16}" for name in devices))
    for name in ("f32", "f16", "bf16", "q8_0", "q4_K"):
        weights = _weights(name, args.size)
        for rows in (1, 4, 8, 32, 128, 512):
            speeds = [_speed(weights, name, rows, chosen) for chosen in devices.values()]
            print(f"{name:6} {rows:5}" + "".join(f"{speed:16.1f}" for speed in speeds))


def _with_blas(threads: int, **options: int) -> list[weft.backends.Backend]:
    blas = make_backend("blas", n_threads=threads, min_batch=1, **options)
    return [blas, make_backend("cpu", n_threads=threads)]


def _weights(name: str, n: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    dtype = find_dtype(name)
    return quants.encode(values, dtype) if dtype.is_quantized else quants.to_storage(values, dtype)


def _speed(weights: np.ndarray, name: str, rows: int, devices: list) -> float:
    n = len(weights)
    x = weft.input("x", (rows, n))
    y = mul_mat(weft.constant(weights, "w", name), x).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y), devices))
    assert session.program.splits[0].device == devices[0].name
    session.run({"x": np.ones((rows, n), np.float32)})
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        session.execute({})
        best = min(best, perf_counter() - start)
    return 2 * n * n * rows / best / 1e9


if __name__ == "__main__":
    main()
