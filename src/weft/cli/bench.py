"""`weft bench`: prompt processing and token generation speed, in llama-bench's columns."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.bench_kernel import (
    DEFAULT_COLUMNS,
    DEFAULT_FORMATS,
    DEFAULT_SHAPE,
    bench_kernels,
)
from weft.cli.console import errors, size_text
from weft.cli.loading import loads_model_with
from weft.cli.model_file import ModelFile
from weft.cli.profile_view import print_profile
from weft.errors import ContextError
from weft.execute import Profile, Trace
from weft.llm import Context, Model

__all__ = ["bench"]

COLUMNS = ("model", "size", "params", "backend", "threads", "test", "t/s")


class Output(StrEnum):
    """Formats of the table."""

    md = "md"
    json = "json"
    csv = "csv"


@loads_model_with(without=("ctx_size", "fallback", "old_speeds"))
def bench(
    load: dict[str, Any],
    model: ModelFile | None = None,
    n_prompt: Annotated[int, typer.Option("--n-prompt", "-p", help="Prompt tokens; 0: skip.")] = (
        512
    ),
    n_gen: Annotated[int, typer.Option("--n-gen", "-n", help="Generated tokens; 0: skip.")] = 32,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", help="Timed runs.")] = 5,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format.")] = Output.md,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Say where the time goes, against this machine's peaks."),
    ] = False,
    slowest: Annotated[
        int, typer.Option(help="With --profile: so many of the slowest tensors, too.")
    ] = 8,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a timeline of all threads for ui.perfetto.dev, as JSON."),
    ] = None,
    kernel: Annotated[
        bool,
        typer.Option(
            "--kernel", help="Compare the ways to multiply with weights, without a model."
        ),
    ] = False,
    shape: Annotated[
        str, typer.Option(help="With --kernel: weights, ROWSxDEPTH, several with commas.")
    ] = DEFAULT_SHAPE,
    columns: Annotated[
        str, typer.Option(help="With --kernel: columns of activations (tokens at once).")
    ] = DEFAULT_COLUMNS,
    formats: Annotated[
        str, typer.Option(help="With --kernel: formats of the weights.")
    ] = DEFAULT_FORMATS,
) -> None:
    """Measure tokens per second. Mean and standard deviation over the repetitions. With --kernel:
    matrix products in every layout of the weights."""
    if n_prompt < 0 or n_gen < 0 or n_prompt + n_gen == 0 or repetitions < 1:
        raise ContextError("bench needs -p or -n above 0 and at least one repetition")
    if kernel:
        if model is not None:
            raise ContextError("bench --kernel takes no model")
        bench_kernels(shape, columns, formats, repetitions, load["threads"], output.value)
        return
    if model is None:
        raise ContextError("bench needs a model, or --kernel")
    loaded = Model.open(model)
    load["n_ctx"] = None if load["plan"] else max(n_prompt, n_gen) + 1
    context = Context(loaded, n_outputs=1, **load)
    if max(n_prompt, n_gen) > loaded.config.n_ctx_train:
        errors.print(
            f"note: {loaded.config.arch} was trained for {loaded.config.n_ctx_train} tokens; the "
            "speed is measured all the same",
            markup=False,
            soft_wrap=True,
        )
    about = _about(model, loaded, context)
    rows = []
    profiles: list[Profile] = []
    timeline = Trace()
    tests = [("pp", n_prompt, True), ("tg", n_gen, False)]
    for name, n, at_once in tests:
        if n == 0:
            continue
        _measure(context, n, at_once)  # warm-up
        speeds = [n / _measure(context, n, at_once) for _ in range(repetitions)]
        counts = {"threads": _threads(context, at_once), "barriers": context.barriers}
        rows.append(about | counts | {"test": f"{name}{n}", "speeds": speeds})
        if profile or trace is not None:
            into = Profile(name=f"{name}{n}", trace=timeline)
            profiles.append(_profile(context, n, at_once, into))
    if trace is not None:
        profiles[-1].save_trace(trace)
    shown = profiles if profile else []
    if output is Output.json:
        rows = [
            row | ({"profile": p.as_json()} if p else {}) for row, p in zip_longest(rows, shown)
        ]
    _print(rows, output)
    if output is Output.md:
        _print_notes(rows, context)
    if output is not Output.json:
        for found in shown:
            print_profile(found, slowest, to_error=output is Output.csv)


def _threads(context: Context, batch: bool) -> int:
    """Threads of the cpu device for single tokens, or for more."""
    counts = [b for b in context.program.devices if hasattr(b, "n_threads")]
    name = "n_threads_batch" if batch else "n_threads"
    return next((getattr(b, name, b.n_threads) for b in counts), 0)


def _print_notes(rows: list[dict[str, Any]], context: Context) -> None:
    """What a run costs beside time: barriers against the nodes of the graph, memory."""
    nodes = rows[0]["nodes"]
    barriers = ", ".join(f"{row['barriers']} ({row['test']})" for row in rows)
    memory = context.memory
    print(f"\nbarriers of the last run: {barriers}; the graph has {nodes} nodes")
    print(
        f"memory: weights {size_text(memory.weights)}, cache {size_text(memory.cache)}, compute "
        f"{size_text(memory.compute)}, scratch of the threads {size_text(memory.scratch)}"
    )


def _measure(context: Context, n: int, at_once: bool) -> float:
    """Seconds for `n` tokens into an empty cache."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, context.model.config.n_vocab, n)
    context.cache.clear()
    start = perf_counter()
    if at_once:
        context.decode(tokens)
    else:
        for token in tokens:
            context.decode([token])
    return perf_counter() - start


def _profile(context: Context, n: int, at_once: bool, profile: Profile) -> Profile:
    """What a measurement spends its time on, in all of the context's graphs."""
    with context.profile(profile):
        _measure(context, n, at_once)
    return profile


def _about(path: Path, model: Model, context: Context) -> dict[str, Any]:
    tensors = model.file.tensors.values()
    backends = context.program.devices
    return {
        "model": f"{model.config.arch} {_main_type(model)}",
        "file": path.name,
        "size": sum(t.nbytes for t in tensors),
        "params": sum(t.n_elements for t in tensors),
        "backend": ",".join(b.name for b in backends),
        "nodes": len(context.plan.plan.schedule.graph.nodes),
    }


def _main_type(model: Model) -> str:
    """The type that most weights have."""
    counts: dict[str, int] = {}
    for t in model.file.tensors.values():
        counts[t.dtype.name] = counts.get(t.dtype.name, 0) + t.n_elements
    return max(counts, key=lambda name: counts[name])


def _print(rows: list[dict[str, Any]], output: Output) -> None:
    for row in rows:
        speeds = row.pop("speeds")
        row["avg_ts"] = statistics.fmean(speeds)
        row["stddev_ts"] = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
        row["samples_ts"] = speeds
    if output is Output.json:
        print(json.dumps(rows, indent=1))
        return
    if output is Output.csv:
        writer = csv.writer(sys.stdout)
        fields = [k for k in rows[0] if k != "samples_ts"]
        writer.writerow(fields)
        for row in rows:
            writer.writerow([row[k] for k in fields])
        return
    cells = [list(COLUMNS)] + [
        [
            row["model"],
            f"{row['size'] / 2**20:.2f} MiB",
            f"{row['params'] / 1e6:.2f} M",
            row["backend"],
            str(row["threads"]),
            row["test"],
            f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    right = {1, 2, 4, 5, 6}
    for number, line in enumerate(cells):
        padded = [c.rjust(w) if i in right else c.ljust(w)
                  for i, (c, w) in enumerate(zip(line, widths, strict=True))]  # fmt: skip
        print("| " + " | ".join(padded) + " |")
        if number == 0:
            rule = ["-" * (w - 1) + ":" if i in right else "-" * w for i, w in enumerate(widths)]
            print("| " + " | ".join(rule) + " |")
