"""Weights in planes on an OpenCL device against the blocks of the file: loading, tokens, prompts.

    python benchmarks/opencl_layout.py MODEL.gguf [--device opencl] [--prompt N] [--runs N] [--copy]

Two contexts on one device, one of them with `repack=False`. Prints seconds to load (weights sent,
kernels built), and of a token and a prompt median and minimum milliseconds, in alternation, and the
ratio of medians (above 1: planes are faster). With `--copy` blocks are sent, too, where the device
could use them in host memory.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

from weft.backends import make_backend
from weft.llm import Context, Model

LAYOUTS = {"planes": True, "blocks": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt; 0: none")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--copy", action="store_true", help="send blocks, too")
    args = parser.parse_args()

    device: Any = make_backend(args.device, planes=True, copy_weights=args.copy)
    print(device.device.description)
    model = Model.open(args.model)
    contexts = {}
    for _ in range(2):  # the second time, kernels come from the cache and the file from memory
        contexts.clear()
        for layout, repack in LAYOUTS.items():
            start = perf_counter()
            contexts[layout] = Context(model, 256, devices=[device, "cpu"], repack=repack)
            device.driver.wait()
            seconds = perf_counter() - start
            held = sum(sum(need.repacked.values()) for need in contexts[layout].plan.needs())
            print(f"load {layout:8} {seconds:8.2f} s, {held / 1e6:.0f} MB repacked")
    for what, n in (("token", 1), ("prompt", args.prompt)):
        if not n:
            continue
        times: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
        for _ in range(args.runs + 1):
            for layout, context in contexts.items():
                context.cache.clear()
                start = perf_counter()
                context.decode([5] * n)
                times[layout].append((perf_counter() - start) * 1e3)
        for layout, all_of_them in times.items():
            rest = all_of_them[1:]
            print(f"{what:6} {layout:8} median {median(rest):9.2f} ms, least {min(rest):9.2f} ms")
        ratio = median(times["blocks"][1:]) / median(times["planes"][1:])
        print(f"{what:6} blocks / planes {ratio:.3f}")


if __name__ == "__main__":
    main()
