"""`weft bench`: prompt processing and token generation speed, in llama-bench's columns."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.console import errors
from weft.cli.options import (
    ActivationsName,
    ActivationsOption,
    Devices,
    Fit,
    GpuLayers,
    Memory,
    Place,
    PlanFile,
    PolicyName,
    PolicyOption,
    ProfileFile,
    placement_arguments,
)
from weft.errors import ContextError
from weft.llm import Context, Model

__all__ = ["bench"]

COLUMNS = ("model", "size", "params", "backend", "threads", "test", "t/s")


class Output(StrEnum):
    """Formats of the table."""

    md = "md"
    json = "json"
    csv = "csv"


def bench(
    model: Annotated[Path, typer.Argument(help="A GGUF model.")],
    n_prompt: Annotated[int, typer.Option("--n-prompt", "-p", help="Prompt tokens; 0: skip.")] = (
        512
    ),
    n_gen: Annotated[int, typer.Option("--n-gen", "-n", help="Generated tokens; 0: skip.")] = 32,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", help="Timed runs.")] = 5,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", help="CPU threads; default: cores.")
    ] = None,
    devices: Devices = None,
    gpu_layers: GpuLayers = None,
    place: Place = None,
    fit: Fit = False,
    memory: Memory = None,
    plan: PlanFile = None,
    policy: PolicyOption = PolicyName.ggml,
    profile: ProfileFile = None,
    ubatch: Annotated[
        int | None, typer.Option("--ubatch-size", help="Tokens computed at once; default: 512.")
    ] = None,
    activations: ActivationsOption = ActivationsName.native,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format.")] = Output.md,
) -> None:
    """Measure tokens per second: mean and standard deviation over the repetitions."""
    if n_prompt < 0 or n_gen < 0 or n_prompt + n_gen == 0 or repetitions < 1:
        raise ContextError("bench needs -p or -n above 0 and at least one repetition")
    loaded = Model.open(model)
    context = Context(
        loaded, None if plan else max(n_prompt, n_gen) + 1, n_ubatch=ubatch, n_outputs=1,
        n_threads=threads, activations=activations.value,
        **placement_arguments(devices, gpu_layers, place, plan, fit, memory, policy, profile),
    )  # fmt: skip
    if max(n_prompt, n_gen) > loaded.config.n_ctx_train:
        errors.print(
            f"note: {loaded.config.arch} was trained for {loaded.config.n_ctx_train} tokens; the "
            "speed is measured all the same",
            markup=False,
            soft_wrap=True,
        )
    about = _about(model, loaded, context)
    rows = []
    tests = [("pp", n_prompt, True), ("tg", n_gen, False)]
    for name, n, at_once in tests:
        if n == 0:
            continue
        _measure(context, n, at_once)  # warm-up
        speeds = [n / _measure(context, n, at_once) for _ in range(repetitions)]
        rows.append(about | {"test": f"{name}{n}", "speeds": speeds})
    _print(rows, output)


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


def _about(path: Path, model: Model, context: Context) -> dict[str, Any]:
    tensors = model.file.tensors.values()
    backends = context.program.devices
    return {
        "model": f"{model.config.arch} {_main_type(model)}",
        "file": path.name,
        "size": sum(t.nbytes for t in tensors),
        "params": sum(t.n_elements for t in tensors),
        "backend": ",".join(b.name for b in backends),
        "threads": next((b.n_threads for b in backends if hasattr(b, "n_threads")), 0),
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
