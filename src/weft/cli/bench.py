"""`weft bench` measures the speed of prompts and of generated tokens, as llama-bench does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.bench_kernel import (
    DEFAULT_COLUMNS,
    DEFAULT_FORMATS,
    DEFAULT_SHAPE,
    bench_kernels,
)
from weft.cli.bench_options import BenchDevices, BenchNoEffect
from weft.cli.bench_rows import Setting, is_shown, model_name
from weft.cli.bench_series import Series
from weft.cli.bench_table import Output, make_printer
from weft.cli.bench_tests import tests_of
from weft.cli.bench_tune import tune as tune_models
from weft.cli.console import note, say, size_text, wide
from weft.cli.explain_machines import print_predicted
from weft.cli.loading import Loading, loads_model_with, open_with
from weft.cli.model_file import ModelFiles
from weft.cli.options import parse_count
from weft.cli.profile_view import print_profile
from weft.cli.unused_options import UNUSED_BY_BENCH
from weft.cli.value_lists import numbers, switches
from weft.errors import ContextError
from weft.files import write_text

__all__ = ["bench"]

KERNEL = "Without a model"

_FEW = 4
"""Most rows for which the lines below the table have details of each."""

_Lists = list[str] | None
_FOR_KERNELS = (Output.md, Output.csv, Output.json)


@loads_model_with(
    without=("ctx_size", "fallback", "old_speeds", "batch_size", "tuned"),
    instead={"devices": BenchDevices, "no_effect": BenchNoEffect},
    lists=(
        *("gpu_layers", "devices", "ubatch", "type_k", "type_v", "no_kv_offload", "flash_attn"),
        *("threads", "threads_batch", "cpu_mask", "cpu_strict", "poll"),
    ),
    unused=UNUSED_BY_BENCH,
)
def bench(
    load: list[Loading],
    models: ModelFiles,
    n_prompt: Annotated[
        _Lists,
        typer.Option(
            "--n-prompt", "-p", metavar="N,...",
            help="Tokens of a prompt, computed together; 0: none. Default: 512.",
        ),
    ] = None,
    n_gen: Annotated[
        _Lists,
        typer.Option(
            "--n-gen", "-n", metavar="N,...",
            help="Tokens generated one by one; 0: none. Default: 128.",
        ),
    ] = None,
    pairs: Annotated[
        _Lists,
        typer.Option(
            "-pg", metavar="PP,TG", help="A prompt of PP tokens, then TG generated; repeatable."
        ),
    ] = None,
    n_depth: Annotated[
        _Lists,
        typer.Option(
            "--n-depth", "-d", metavar="N,...",
            help="Tokens in the cache before each test. Default: 0.",
        ),
    ] = None,
    batch_size: Annotated[
        _Lists,
        typer.Option(
            "--batch-size", "-b", metavar="N,...",
            help="Tokens of a prompt handed over at once, computed -ub at a time. Default: 2048.",
        ),
    ] = None,
    embeddings: Annotated[
        _Lists,
        typer.Option(
            "--embeddings", "-embd", metavar="0|1,...",
            help="1: give embeddings instead of logits. Default: 0.",
        ),
    ] = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", "-r", help="Timed runs of each test.")
    ] = 5,
    no_warmup: Annotated[
        bool, typer.Option("--no-warmup", help="Leave out the run before those that are timed.")
    ] = False,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Rest before each test.")] = 0.0,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format.")] = Output.md,
    output_err: Annotated[
        Output | None, typer.Option("--output-err", "-oe", help="Format of the same on stderr.")
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Print a line to stderr for each run.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print where each model is, to stderr.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show where the time goes, against this machine's peaks."),
    ] = False,
    slowest: Annotated[
        int, typer.Option(help="With --profile: number of slowest tensors to list.")
    ] = 8,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a timeline of all threads for ui.perfetto.dev, as JSON."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a report to look at, one HTML file: the timeline of the profile, and the "
            "plan. Takes one model with one setting.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Find the -t, -tb and -ub that are fastest, of those listed or of the usual ones, "
            "and remember them for `weft run`, `chat` and `serve`. Results stay the same.",
        ),
    ] = False,
    tune_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --tune: about how long it may take.")
    ] = 90.0,
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
    """Measure tokens per second. Mean and standard deviation over the repetitions, with
    llama-bench's options and fields. Options that show ... take several values, with commas or
    repeated, and ranges: 1-4, 512-2048+512, 64-1024*2; every combination is measured. With
    --kernel: matrix products in every layout of the weights."""
    tests = tests_of(n_prompt or ["512"], n_gen or ["128"], pairs or (), n_depth or ["0"])
    batches = numbers("-b", batch_size or ["2048"], parse_count)
    kinds = switches("-embd", embeddings or ["0"])
    if not tests or repetitions < 1:
        raise ContextError("bench needs -p or -n above 0 and at least one repetition (-r)")
    if min(batches) < 1:
        raise ContextError("-b is 0; it must be at least 1")
    if not 0 <= delay <= 3600:
        raise ContextError(f"--delay is {delay:g}; it must be 0 to 3600 seconds")
    if kernel:
        if models:
            raise ContextError("bench --kernel takes no model")
        if output not in _FOR_KERNELS:
            raise ContextError(f"-o {output}: bench --kernel writes {', '.join(_FOR_KERNELS)}")
        threads = load[0].arguments["threads"]
        bench_kernels(shape, columns, formats, repetitions, threads, output.value)
        return
    if not models:
        raise ContextError("bench needs a model, or --kernel")
    if tune:
        if not 1 <= tune_seconds <= 86400:
            raise ContextError(f"--tune-seconds is {tune_seconds:g}; it must be 1 to 86400")
        if output is not Output.md:
            raise ContextError(f"-o {output}: bench --tune writes text only")
        tune_models(models, load, tests, tune_seconds)
        return
    if html is not None and len(models) * len(load) * len(kinds) > 1:
        raise ContextError("--html shows one model with one setting; measure the others apart")
    settings = [Setting(one.typed, n, kind) for one in load for kind in kinds for n in batches]
    names = [_checked(path, load[0], max(test.n_cells for test in tests)) for path in models]
    widths = {"model": max(map(len, names)), "test": max(len(test.name) for test in tests)}
    columns_shown = _shown(settings)
    screen = wide().width if sys.stdout.isatty() else None
    printers = [make_printer(output, sys.stdout, columns_shown, widths, screen)]
    if output_err is not None:
        printers.append(make_printer(output_err, sys.stderr, columns_shown, widths))
    series = Series(
        tests, repetitions, printers, batches, kinds, warm_up=not no_warmup, delay=delay,
        progress=progress, verbose=verbose,
        profile=profile or trace is not None or html is not None,
    )  # fmt: skip
    series.measure(models, load)
    if trace is not None:
        series.profiles[-1].save_trace(trace)
    if html is not None:
        _write_report(html, series)
    if output is Output.md:
        _print_notes(series)
    if profile and output not in (Output.json, Output.jsonl):
        for measured in series.profiles:
            print_profile(measured, slowest, to_error=output is not Output.md)
            print_predicted(measured, series.plan, load[-1].arguments)


def _write_report(path: Path, series: Series) -> None:
    # most runs of weft bench write none
    from weft.report import plan_data, report_html, timeline_data

    plan = plan_data(series.plan)
    data = plan | {"profile": timeline_data(series.profiles, series.trace)}
    write_text(path, report_html(data))
    say(f"report written to {path}")


def _checked(path: Path, load: Loading, n_tokens: int) -> str:
    """The name of the model for the table. Prints a note if it was trained for fewer tokens."""
    model = open_with(path, dict(load.arguments))
    if model.config.n_encoder:
        raise ContextError(
            f"{path.name} has an encoder and a decoder; weft bench measures models that continue "
            "a text"
        )
    if n_tokens > model.config.n_ctx_train:
        note(
            f"{model.config.arch} was trained for {model.config.n_ctx_train} tokens; the speed "
            "is measured all the same"
        )
    return model_name(model)


def _shown(settings: Sequence[Setting]) -> list[str]:
    """The options that have a column in a table for people."""
    fields = [setting.fields() for setting in settings]
    shown = [name for name in fields[0] if is_shown(name, [row[name] for row in fields])]
    batch = [name for name in shown if name in ("n_batch", "n_ubatch")]
    return ["n_threads", *batch, *(name for name in shown if name not in batch)]


def _print_notes(series: Series) -> None:
    """Prints how often threads waited for each other, and the memory used, if all rows are of one
    context."""
    rows, memory = series.rows, series.memory
    if series.n_contexts != 1:
        return
    out = wide()
    out.print()
    if len(rows) <= _FEW:
        waits = ", ".join(f"{row['test']} {row['barriers']}" for row in rows)
        nodes = rows[0]["nodes"]
        out.print(f"how often threads waited for each other in a run of {nodes} ops: {waits}")
    experts = f"experts {size_text(memory.experts)}, " if memory.experts else ""
    out.print(
        f"memory: weights {size_text(memory.weights + memory.repacked)}, {experts}cache "
        f"{size_text(memory.cache)}, compute {size_text(memory.compute)}, scratch of the threads "
        f"{size_text(memory.scratch)}",
        markup=False,
    )
