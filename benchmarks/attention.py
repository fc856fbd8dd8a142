"""Flash attention alone: GFLOP/s of prompts and GB/s of the cache in decoding.

    python benchmarks/attention.py [--threads 2] [--heads 32] [--kv-heads 8] [--head-size 64]

One layer of the shape of Llama-3.2-1B by default; f16, q8_0 and q4_0 caches in the layout of a
context (the heads of a cell side by side) with a causal mask. FLOP are counted for the cells that a
query sees, bytes for the keys and values of all cells. Enough layers are rotated that a cache does
not stay in the processor's. Best of a few runs; with one thread its processor time, so that others
on the machine matter less.
"""

from __future__ import annotations

import argparse
import platform
from time import perf_counter, process_time

import numpy as np

import weft
from weft import quants
from weft.dtype import find_dtype
from weft.graph import flash_attn_ext, permute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--target", default=None, help="kernel target of the cpu backend")
    parser.add_argument("--shapes", default="512x512,1x128,1x2048,1x8192,4x2048")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(
        f"{platform.machine()}, {args.threads} threads, {args.heads}/{args.kv_heads} heads of "
        f"{args.head_size}"
    )
    print(f"{'cache':6} {'queries':>7} {'cells':>6} {'us a layer':>11} {'GFLOP/s':>9} {'GB/s':>7}")
    for dtype in args.types.split(","):
        for shape in args.shapes.split(","):
            queries, cells = (int(n) for n in shape.split("x"))
            _report(args, dtype, queries, cells)


def _report(args: argparse.Namespace, dtype: str, queries: int, cells: int) -> None:
    width = args.kv_heads * args.head_size
    layer_bytes = 2 * cells * find_dtype(dtype).row_bytes(width)
    layers = max(4, min(64, (64 << 20) // layer_bytes))
    seconds = _seconds(args, dtype, queries, cells, layers)
    seen = sum(min(cells, cells - queries + i + 1) for i in range(queries))
    flop = 4 * args.heads * args.head_size * seen
    print(
        f"{dtype:6} {queries:7} {cells:6} {seconds * 1e6:11.1f} {flop / seconds / 1e9:9.1f} "
        f"{layer_bytes / seconds / 1e9:7.1f}",
        flush=True,
    )


def _seconds(args: argparse.Namespace, dtype: str, queries: int, cells: int, layers: int) -> float:
    rng = np.random.default_rng(0)
    mask = np.zeros((queries, cells), np.float16)
    for i in range(queries):
        mask[i, cells - queries + i + 1 :] = -np.inf
    mask_t = weft.constant(mask, "mask")
    q = weft.input("q", (args.heads, queries, args.head_size))
    outputs = []
    for layer in range(layers):
        k, v = (_cache(rng, dtype, cells, args, f"{n}{layer}") for n in "kv")
        out = flash_attn_ext(q, k, v, mask_t, scale=args.head_size**-0.5)
        outputs.append(out.as_output(f"y{layer}"))
    options = {"n_threads": args.threads, "target": args.target}
    session = weft.Session(weft.compile(weft.Graph(*outputs), ["cpu"], **options))
    shape = (args.heads, queries, args.head_size)
    session.run({"q": rng.standard_normal(shape).astype(np.float32)})
    clock = process_time if args.threads == 1 else perf_counter
    best = float("inf")
    for _ in range(args.repeats):
        start = clock()
        session.execute({})
        best = min(best, clock() - start)
    return best / layers


def _cache(
    rng: np.random.Generator, dtype: str, cells: int, args: argparse.Namespace, name: str
) -> weft.Tensor:
    """[head size, cells, kv heads], the heads of a cell side by side in memory."""
    values = rng.standard_normal((cells, args.kv_heads, args.head_size)).astype(np.float32)
    t = find_dtype(dtype)
    data = quants.encode(values, t) if t.is_quantized else quants.to_storage(values, t)
    return permute(weft.constant(data, name, dtype), 0, 2, 1, 3)


if __name__ == "__main__":
    main()
