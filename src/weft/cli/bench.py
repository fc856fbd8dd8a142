"""`weft bench`: prompt processing and token generation speed, in llama-bench's columns."""

from __future__ import annotations

from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from weft.backends.base import UsesThreads
from weft.cli.bench_kernel import (
    DEFAULT_COLUMNS,
    DEFAULT_FORMATS,
    DEFAULT_SHAPE,
    bench_kernels,
)
from weft.cli.bench_table import print_rows
from weft.cli.console import StatusLine, note, size_text, wide
from weft.cli.loading import loads_model_with
from weft.cli.model_file import ModelFile
from weft.cli.options import parse_count
from weft.cli.profile_view import print_profile
from weft.errors import ContextError
from weft.execute import Profile, Trace
from weft.llm import Context, Model

__all__ = ["bench"]

KERNEL = "Without a model"

_FEW = 4
"""Rows up to which something is said of each below the table."""


class Output(StrEnum):
    """Formats of the table."""

    md = "md"
    json = "json"
    csv = "csv"


@loads_model_with(
    without=("ctx_size", "fallback", "old_speeds"),
    lists=("threads", "threads_batch", "ubatch", "flash_attn", "gpu_layers"),
)
def bench(
    load: list[dict[str, Any]],
    model: ModelFile | None = None,
    n_prompt: Annotated[
        str,
        typer.Option("--n-prompt", "-p", metavar="N,...", help="Prompt tokens; 0: skip."),
    ] = "512",
    n_gen: Annotated[
        str,
        typer.Option("--n-gen", "-n", metavar="N,...", help="Generated tokens; 0: skip."),
    ] = "32",
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
        typer.Option(
            metavar="FILE", help="Write a timeline of all threads for ui.perfetto.dev, as JSON."
        ),
    ] = None,
    kernel: Annotated[
        bool,
        typer.Option(
            "--kernel", help="Compare the ways to multiply with weights, without a model."
        ),
    ] = False,
    shape: Annotated[
        str,
        typer.Option(
            metavar="ROWSxDEPTH,...", help="With --kernel: weights.", rich_help_panel=KERNEL
        ),
    ] = DEFAULT_SHAPE,
    columns: Annotated[
        str,
        typer.Option(
            metavar="N,...", help="With --kernel: columns of activations (tokens at once).",
            rich_help_panel=KERNEL,
        ),
    ] = DEFAULT_COLUMNS,
    formats: Annotated[
        str,
        typer.Option(
            metavar="TYPE,...", help="With --kernel: formats of the weights.",
            rich_help_panel=KERNEL,
        ),
    ] = DEFAULT_FORMATS,
) -> None:  # fmt: skip
    """Measure tokens per second. Mean and standard deviation over the repetitions. -p, -n, -t, -tb,
    -ub, -fa and -ngl take several values with commas; every combination is measured. With
    --kernel: matrix products in every layout of the weights."""
    tests = [("pp", n) for n in _counts("-p", n_prompt)] + [("tg", n) for n in _counts("-n", n_gen)]
    tests = [(name, n) for name, n in tests if n]
    if not tests or repetitions < 1:
        raise ContextError("bench needs -p or -n above 0 and at least one repetition (-r)")
    if kernel:
        if model is not None:
            raise ContextError("bench --kernel takes no model")
        bench_kernels(shape, columns, formats, repetitions, load[0]["threads"], output.value)
        return
    if model is None:
        raise ContextError("bench needs a model, or --kernel")
    loaded = Model.open(model)
    most = max(n for _, n in tests)
    if most > loaded.config.n_ctx_train:
        note(
            f"{loaded.config.arch} was trained for {loaded.config.n_ctx_train} tokens; the speed "
            "is measured all the same"
        )
    rows: list[dict[str, Any]] = []
    profiles: list[Profile] = []
    timeline = Trace()
    with StatusLine() as status:
        for options in load:
            options["n_ctx"] = None if options["plan"] else most + 1
            context = Context(loaded, n_outputs=1, **options)
            about = _about(model, loaded, context) | _settings(context, options)
            for name, n in tests:
                speeds = _speeds(context, name, n, repetitions, status)
                measured = {"test": f"{name}{n}", "speeds": speeds}
                rows.append(about | _costs(context, name) | measured)
                if profile or trace is not None:
                    status(f"profiling {name}{n}")
                    into = Profile(name=f"{name}{n}", trace=timeline)
                    profiles.append(_profile(context, n, name == "pp", into))
    if trace is not None:
        profiles[-1].save_trace(trace)
    shown = profiles if profile else []
    if output is Output.json:
        rows = [
            row | ({"profile": p.as_json()} if p else {}) for row, p in zip_longest(rows, shown)
        ]
    print_rows(rows, output.value)
    if output is Output.md:
        _print_notes(rows, context)
    if output is not Output.json:
        for found in shown:
            print_profile(found, slowest, to_error=output is Output.csv)


def _counts(flag: str, text: str) -> list[int]:
    """Numbers of tokens, with commas between them."""
    if text.lstrip().startswith("-"):
        raise ContextError(f"{flag} is {text}; it takes numbers of tokens from 0, e.g. 64,512")
    return [parse_count(part) for part in text.split(",")]


def _speeds(
    context: Context, name: str, n: int, repetitions: int, status: StatusLine
) -> list[float]:
    """Tokens per second of each repetition, after one that warms up."""
    found = []
    for i in range(repetitions + 1):
        status(f"measuring {name}{n}: " + (f"{i} of {repetitions}" if i else "warming up"))
        found.append(n / _measure(context, n, name == "pp"))
    return found[1:]


def _settings(context: Context, options: dict[str, Any]) -> dict[str, Any]:
    """What may differ between rows."""
    layers = options["n_gpu_layers"]
    return {
        "n_ubatch": context.n_ubatch,
        "fa": "off" if options["flash"] is False else "on",
        "ngl": "all" if layers is None else layers,
    }


def _costs(context: Context, name: str) -> dict[str, Any]:
    return {"threads": _threads(context, name == "pp"), "barriers": context.barriers}


def _threads(context: Context, batch: bool) -> int:
    """Threads of the cpu device for single tokens, or for more."""
    devices = [b for b in context.program.devices if isinstance(b, UsesThreads)]
    return next((b.n_threads_batch if batch else b.n_threads for b in devices), 0)


def _print_notes(rows: list[dict[str, Any]], context: Context) -> None:
    """What a run costs beside time: how often threads wait for each other, and memory."""
    memory = context.memory
    out = wide()
    out.print()
    if len(rows) <= _FEW:
        waits = ", ".join(f"{row['test']} {row['barriers']}" for row in rows)
        nodes = rows[0]["nodes"]
        out.print(f"how often threads waited for each other in a run of {nodes} ops: {waits}")
    out.print(
        f"memory: weights {size_text(memory.weights)}, cache {size_text(memory.cache)}, compute "
        f"{size_text(memory.compute)}, scratch of the threads {size_text(memory.scratch)}",
        markup=False,
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
