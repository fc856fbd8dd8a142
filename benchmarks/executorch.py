"""weft's ExecuTorch delegate against the XNNPACK delegate and eager PyTorch.

    python benchmarks/executorch.py [--threads 2] [--only decode] [--rounds 25] [--processor-time]

Every model is exported once for each engine, loaded by the official runtime in this process, and
run in turns: an untimed call, then as many calls as fit in 40 ms. Shown are medians of the rounds;
a ratio above 1 means that weft is faster. Quantized rows are a decode step with weights in q8_0 and
q4_0 against XNNPACK's 8da4w (torchao, groups of 32) and eager f32.
With --processor-time, and one thread, other programs on the machine distort times less.
Needs weft-executorch and torchao.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# this file has the name of the package that it measures, so its folder is searched last
_HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [p for p in sys.path if str(Path(p).resolve()) != _HERE]
warnings.simplefilter("ignore")

import torch  # noqa: E402

import weft_executorch  # noqa: E402

weft_executorch.load()
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # noqa: E402
    XnnpackPartitioner,
)
from executorch.exir import (  # noqa: E402
    EdgeCompileConfig,
    to_edge_transform_and_lower,
)
from executorch.extension.pybindings import portable_lib  # noqa: E402
from executorch.runtime import Runtime  # noqa: E402

from weft_executorch import Options, WeftPartitioner  # noqa: E402

sys.path.append(_HERE)
from executorch_models import models  # noqa: E402

Call = Callable[[], Any]
Clock = Callable[[], float]


@dataclass
class Row:
    """A call of each engine, and how far weft's result differs from eager's."""

    name: str
    weft: Call
    xnnpack: Call
    eager: Call
    left: tuple[int, int]
    apart: float


def lower(module: Any, inputs: tuple[Any, ...], partitioners: Sequence[Any]) -> tuple[Call, int]:
    """A call of the lowered module, and how many ops stayed outside of its delegates."""
    with torch.no_grad():
        program = torch.export.export(module, inputs, strict=False)
        edge = to_edge_transform_and_lower(
            program,
            partitioner=list(partitioners),
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        nodes = edge.exported_program().graph.nodes
        ours = ("executorch_call_delegate", "getitem", "alloc")
        left = [n for n in nodes if n.op == "call_function" and not n.name.startswith(ours)]
        pte = edge.to_executorch().buffer
    loaded = Runtime.get().load_program(pte)
    method = loaded.load_method("forward")

    def call() -> Any:
        return method.execute(inputs)

    call.kept = (pte, loaded)  # type: ignore[attr-defined]
    return call, len(left)


def eager_call(module: Any, inputs: tuple[Any, ...]) -> Call:
    """PyTorch as it is."""

    def call() -> Any:
        with torch.inference_mode():
            return module(*inputs)

    return call


def rows(only: str, threads: int) -> Iterator[Row]:
    """All rows whose names begin with `only`, each lowered when its turn comes."""
    for name, (module, inputs) in models().items():
        for kind in ("f32", "q8_0", "q4_0") if name.startswith("decode") else ("f32",):
            if f"{name}, {kind}".lower().startswith(only.lower()):
                yield make_row(f"{name}, {kind}", module, inputs, kind, threads)


def make_row(name: str, module: Any, inputs: tuple[Any, ...], kind: str, threads: int) -> Row:
    """Lowers a model for both delegates."""
    options = Options(weights=kind, threads=threads)
    ours, left = lower(module, inputs, [WeftPartitioner(options)])
    if kind == "f32":
        theirs, outside = lower(module, inputs, [XnnpackPartitioner()])
    else:
        theirs, outside = lower(quantized(module), inputs, [XnnpackPartitioner()])
    eager = eager_call(module, inputs)
    want, got = eager(), ours()[0]
    apart = float(((got - want) ** 2).mean() / (want**2).mean())
    return Row(name, ours, theirs, eager, (left, outside), apart)


def quantized(module: Any) -> Any:
    """A copy with int8 dynamic activations and int4 weights, as XNNPACK lowers them."""
    import copy

    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    module = copy.deepcopy(module)
    config = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
    quantize_(module, config)
    return module


def seconds(call: Call, clock: Clock, burst: float = 0.04) -> list[float]:
    """Times of calls, after one that does not count."""
    start = time.perf_counter()
    call()
    times = []
    while not times or (time.perf_counter() - start < burst and len(times) < 200):
        before = clock()
        call()
        times.append(clock() - before)
    return times


def measure(row: Row, rounds: int, clock: Clock) -> list[tuple[float, float]]:
    """Median and minimum of each engine's calls, in turns."""
    engines = [row.weft, row.xnnpack, row.eager]
    times: list[list[float]] = [[], [], []]
    for call in engines:
        seconds(call, clock)
    for turn in range(rounds):
        for i in range(3):
            e = (i + turn) % 3
            times[e] += seconds(engines[e], clock)
            time.sleep(0.002)  # threads that wait in a loop go to sleep
    return [(statistics.median(t), min(t)) for t in times]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--processor-time", action="store_true", help="measure that instead")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    torch.set_num_threads(options.threads)
    portable_lib._unsafe_reset_threadpool(options.threads)
    torch.manual_seed(0)
    print(f"{os.cpu_count()} cores; threads: weft {options.threads}, "
          f"XNNPACK {portable_lib._threadpool_get_thread_count()}, "
          f"PyTorch {torch.get_num_threads()} ({torch.__version__})")  # fmt: skip
    print("ms: medians; minima in brackets; left: ops outside of weft / of XNNPACK\n")
    print("| model | weft | XNNPACK | eager | XNNPACK / weft | eager / weft | left | NMSE |")
    print(f"|{'---|' * 8}")
    for row in rows(options.only, options.threads):
        got = measure(row, options.rounds, clock)
        cells = [f"{m * 1e3:.3f} ({low * 1e3:.3f})" for m, low in got]
        (ours, low), (theirs, their_low), (eager, _) = got
        cells += [f"{theirs / ours:.2f}x ({their_low / low:.2f}x)", f"{eager / ours:.2f}x"]
        cells += [f"{row.left[0]} / {row.left[1]}", f"{row.apart:.1e}"]
        print(f"| {row.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
