"""What each rewrite saves: a layer of a model with and without it.

    python benchmarks/rewrites.py [--threads 2] [--type q8_0] [--layers 4] [--bias]

Random weights in the shape of Llama-3.2-1B; with --bias, q, k and v have biases as in qwen2. Prints
steps, barriers and microseconds of a layer for one token and for 128, with all rewrites, without
each of them and without any: medians of runs that take turns.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from time import perf_counter

import numpy as np

import weft
from weft import graph as g
from weft import quants
from weft.dtype import find_dtype
from weft.graph.rewrite import REWRITES

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD = 2048, 8192, 32, 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", default="q8_0", help="of the weights")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--cells", type=int, default=256)
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--repeats", type=int, default=21)
    args = parser.parse_args()
    print(f"{platform.machine()}, {args.threads} threads, {args.type}, {args.cells} cells")
    print(f"{'rewrites':26} {'tokens':>6} {'steps':>6} {'barriers':>8} {'us a layer':>11}")
    choices = {"all": list(REWRITES)}
    for name in REWRITES:
        choices[f"without {name}"] = [n for n in REWRITES if n != name]
    choices["none"] = []
    weights = _weights(args)
    for tokens in (1, 128):
        sessions = {
            label: _session(args, weights, tokens, names) for label, names in choices.items()
        }
        times: dict[str, list[float]] = {label: [] for label in sessions}
        for _ in range(args.repeats):
            for label, session in sessions.items():
                start = perf_counter()
                session.execute({})
                times[label].append(perf_counter() - start)
        for label, session in sessions.items():
            steps = len(session.program.splits[0].steps) / args.layers
            barriers = session.barriers / args.layers
            took = statistics.median(times[label]) / args.layers * 1e6
            print(f"{label:26} {tokens:6} {steps:6.1f} {barriers:8.1f} {took:11.1f}", flush=True)


Weights = list[dict[str, weft.Tensor]]


def _weights(args: argparse.Namespace) -> Weights:
    rng = np.random.default_rng(0)
    dtype = find_dtype(args.type)

    def matrix(name: str, rows: int, columns: int) -> weft.Tensor:
        values = rng.standard_normal((rows, columns), np.float32) / columns**0.5
        quantized = dtype.is_quantized
        data = quants.encode(values, dtype) if quantized else quants.to_storage(values, dtype)
        return weft.constant(data, name, args.type)

    layers = []
    for il in range(args.layers):
        shapes = {
            "q": (WIDTH, WIDTH), "k": (KV_HEADS * HEAD, WIDTH), "v": (KV_HEADS * HEAD, WIDTH),
            "o": (WIDTH, WIDTH), "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH),
            "down": (WIDTH, HIDDEN),
        }  # fmt: skip
        layer = {name: matrix(f"{name}{il}", *shape) for name, shape in shapes.items()}
        for name in ("norm", "ffn_norm"):
            layer[name] = weft.constant(np.ones(WIDTH, np.float32), f"{name}{il}")
        for name, n in (("q", WIDTH), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            if args.bias:
                layer[f"{name}_bias"] = weft.constant(np.ones(n, np.float32), f"{name}_bias{il}")
        for name in ("cache_k", "cache_v"):
            zeros = np.zeros((args.cells, KV_HEADS * HEAD), np.float16)
            layer[name] = weft.constant(zeros, f"{name}{il}")
        layers.append(layer)
    return layers


def _session(
    args: argparse.Namespace, weights: Weights, tokens: int, names: list[str]
) -> weft.Session:
    x = weft.input("x", (tokens, WIDTH))
    positions = weft.input("positions", (tokens,), "i32")
    cells = weft.input("cells", (tokens,), "i64")
    mask = weft.input("mask", (tokens, args.cells), "f16")

    def heads(t: weft.Tensor, n: int) -> weft.Tensor:
        return g.rope(g.reshape(t, HEAD, n, tokens), positions, mode="neox", n_dims=HEAD)

    def cached(w: dict[str, weft.Tensor], name: str, rows: weft.Tensor) -> weft.Tensor:
        rows = g.reshape(rows, KV_HEADS * HEAD, tokens)
        written = g.set_rows(w[name], rows, cells)
        return g.view_3d(written, HEAD, args.cells, KV_HEADS, 2 * KV_HEADS * HEAD, 2 * HEAD)

    h = x
    for w in weights:
        n = g.mul(g.rms_norm(h, 1e-5), w["norm"])
        q, k, v = (g.mul_mat(w[name], n) for name in "qkv")
        if args.bias:
            q, k, v = (
                g.add(t, w[f"{name}_bias"]) for name, t in zip("qkv", (q, k, v), strict=True)
            )
        keys = cached(w, "cache_k", heads(k, KV_HEADS))
        values = cached(w, "cache_v", v)
        q = g.permute(heads(q, HEADS), 0, 2, 1, 3)
        a = g.flash_attn_ext(q, keys, values, mask, scale=HEAD**-0.5)
        h = g.add(g.mul_mat(w["o"], g.reshape(a, WIDTH, tokens)), h)
        n = g.mul(g.rms_norm(h, 1e-5), w["ffn_norm"])
        up = g.swiglu(g.mul_mat(w["gate"], n), g.mul_mat(w["up"], n))
        h = g.add(g.mul_mat(w["down"], up), h)
    graph = weft.Graph(h.as_output("y"))
    program = weft.compile(graph, ["cpu"], rewrites=names, n_threads=args.threads)
    session = weft.Session(program)
    session.run(
        {
            "x": np.random.default_rng(1).standard_normal((tokens, WIDTH), np.float32),
            "positions": np.arange(tokens, dtype=np.int32),
            "cells": np.arange(tokens),
            "mask": np.zeros((tokens, args.cells), np.float16),
        }
    )
    return session


if __name__ == "__main__":
    main()
