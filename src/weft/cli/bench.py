"""`weft bench` measures the speed of prompts and of generated tokens, as llama-bench does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from weft.cli.bench_batched import BatchedTests, bench_batched
from weft.cli.bench_kernel import DEFAULT_COLUMNS, DEFAULT_FORMATS, DEFAULT_SHAPE, bench_kernels
from weft.cli.bench_rows import Setting, is_shown
from weft.cli.bench_series import Runs, Series
from weft.cli.bench_table import Output, Printer, SpeedsFirst, make_printer, speeds_text
from weft.cli.bench_tests import BenchTest, tests_of
from weft.cli.bench_tune import keep_speeds
from weft.cli.bench_tune import tune as tune_models
from weft.cli.console import note, say, size_text, wide
from weft.cli.explain_machines import print_predicted
from weft.cli.groups import ABSENT, Group, changed
from weft.cli.loading import Loading, LoadList, loads_model, open_with
from weft.cli.model_file import ModelFiles
from weft.cli.profile_view import print_profile
from weft.cli.unused_options import UNUSED_BY_BENCH
from weft.cli.value_lists import numbers, switches
from weft.errors import ContextError
from weft.files import write_text
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.model_name import model_name
from weft.llm.planning.options import LLM_OPTIONS
from weft.options import option, parse_tokens


def device_sets(texts: Sequence[str]) -> list[str | None]:
    """The devices of each measurement, as names with commas; None: the default devices.

    `-dev opencl:0,cpu` is one set, as for every command. If a set is written with `/`, or is
    `none` or `auto`, commas separate sets: `-dev opencl:0/cpu,none`."""
    sets: list[str | None] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        several = "/" in text or not {"none", "auto"}.isdisjoint(parts)
        for names in parts if several else [text]:
            sets.append(None if names == "auto" else names.replace("/", ","))
    return sets


KERNEL = "Without a model"

_FEW = 4
"""Maximum number of rows for which the lines below the table have details of each."""

_Lists = list[str] | None
_FOR_KERNELS = (Output.md, Output.csv, Output.json)


class BenchLoad(LoadList):
    """The options of `weft bench` for its models."""

    unused = UNUSED_BY_BENCH
    lists = (
        *("n_gpu_layers", "devices", "n_ubatch", *CacheTypes._fields, "no_kv_offload", "flash"),
        "no_op_offload",
        *("n_threads", "n_threads_batch", "cpu_mask", "cpu_strict", "poll"),
    )
    n_ctx = fallback = old_speeds = batch_size = tuned = ABSENT
    devices: str | None = changed(
        LLM_OPTIONS["devices"],
        read=device_sets,
        help="Devices, highest priority first, e.g. opencl:0,cpu; several sets as "
        "opencl:0/cpu,none.",
    )
    no_effect: bool = option(
        False, "", "--op-offload --warmup --perf --no-perf --color -co --log-disable", hidden=True
    )


class BenchFlags(Group):
    """The options of `weft bench` that are in no group."""

    n_prompt: _Lists = option(
        None, "Tokens of a prompt, computed together; 0: none. Default: 512.", "--n-prompt -p",
        metavar="N,...",
    )  # fmt: skip
    n_gen: _Lists = option(
        None, "Tokens generated one by one; 0: none. Default: 128.", "--n-gen -n", metavar="N,..."
    )
    pairs: _Lists = option(
        None, "A prompt of PP tokens, then TG generated; repeatable.", "-pg", metavar="PP,TG"
    )
    n_depth: _Lists = option(
        None, "Tokens in the cache before each test. Default: 0.", "--n-depth -d", metavar="N,..."
    )
    n_seqs: _Lists = option(
        None, "Sequences at a time, as in llama-batched-bench: a prompt of -npp tokens for each, "
        "then -ntg tokens.", "-npl", metavar="N,...",
    )  # fmt: skip
    n_prompt_each: _Lists = option(
        None, "With -npl: tokens of each prompt. Default: 128.", "-npp", metavar="N,..."
    )
    n_gen_each: _Lists = option(
        None, "With -npl: tokens generated for each. Default: 128.", "-ntg", metavar="N,..."
    )
    shared: bool = option(False, "With -npl: one prompt for all sequences.", "-pps")
    batch_size: _Lists = option(
        None, "Tokens of a prompt handed over at once, computed -ub at a time. Default: 2048.",
        "--batch-size -b", metavar="N,...",
    )  # fmt: skip
    embeddings: _Lists = option(
        None, "1: give embeddings instead of logits. Default: 0.", "--embeddings -embd",
        metavar="0|1,...",
    )  # fmt: skip
    repetitions: int = option(5, "Timed runs of each test.", "--repetitions -r")
    no_warmup: bool = option(False, "Leave out the run before those that are timed.")
    delay: float = option(0.0, "Rest before each test.", metavar="SECONDS")
    output: Output = option(Output.md, "Format.", "--output -o --output-format")
    output_err: Output | None = option(None, "Format of the same on stderr.", "--output-err -oe")
    progress: bool = option(False, "Print a line to stderr for each run.")
    verbose: bool = option(
        False,
        "Print where each model is (to stderr) and how often threads waited for each other.",
        "--verbose -v",
    )
    show_profile: bool = option(
        False, "Show where the time goes, against this machine's peaks.", "--profile"
    )
    show_tasks: bool = option(
        False, "Show how threads share the steps of a test's last ubatch, and their work memory.",
        "--tasks",
    )  # fmt: skip
    slowest: int = option(8, "With --profile: number of slowest tensors to list.")
    trace: Path | None = option(
        None, "Write a timeline of all threads for ui.perfetto.dev, as JSON.", metavar="FILE"
    )
    html: Path | None = option(
        None,
        "Write a report to look at, one HTML file: the timeline of the profile, and the plan. "
        "Takes one model with one setting.", metavar="FILE",
    )  # fmt: skip
    tune: bool = option(
        False,
        "Find the -t, -tb and -ub that are fastest, of those listed or of the usual ones, and "
        "remember them for `weft run`, `chat` and `serve`. Results stay the same.",
    )
    tune_seconds: float = option(
        90.0, "With --tune: about how long it may take.", metavar="SECONDS"
    )
    kernel: bool = option(False, "Compare the ways to multiply with weights, without a model.")
    shape: str = option(
        DEFAULT_SHAPE, "With --kernel: weights.", panel=KERNEL, metavar="ROWSxDEPTH,..."
    )
    columns: str = option(
        DEFAULT_COLUMNS, "With --kernel: columns of activations (tokens at once).", panel=KERNEL,
        metavar="N,...",
    )  # fmt: skip
    formats: str = option(
        DEFAULT_FORMATS, "With --kernel: formats of the weights.", panel=KERNEL, metavar="TYPE,..."
    )


@loads_model
def bench(models: ModelFiles, own: BenchFlags, load: Annotated[list[Loading], BenchLoad]) -> None:
    """Measure tokens per second. Mean and standard deviation over the repetitions, with
    llama-bench's options and fields. Options that show ... take several values, with commas or
    repeated, and ranges: 1-4, 512-2048+512, 64-1024*2; every combination is measured. With
    --kernel: matrix products in every layout of the weights."""
    batches = numbers("-b", own.batch_size or ["2048"], parse_tokens)
    if min(batches) < 1:
        raise ContextError("-b is 0; it must be at least 1")
    if own.n_seqs or own.n_prompt_each or own.n_gen_each:
        bench_batched(models, load, _batched_tests(own), batches[0], own.output)
        return
    tests = tests_of(
        own.n_prompt or ["512"], own.n_gen or ["128"], own.pairs or (), own.n_depth or ["0"]
    )
    kinds = switches("-embd", own.embeddings or ["0"])
    if not tests or own.repetitions < 1:
        raise ContextError("bench needs -p or -n above 0 and at least one repetition (-r)")
    if not 0 <= own.delay <= 3600:
        raise ContextError(f"--delay is {own.delay:g}; it must be 0 to 3600 seconds")
    if own.kernel:
        _bench_kernel(models, own, load[0])
        return
    if not models:
        raise ContextError("bench needs a model, or --kernel")
    if own.tune:
        if not 1 <= own.tune_seconds <= 86400:
            raise ContextError(f"--tune-seconds is {own.tune_seconds:g}; it must be 1 to 86400")
        if own.output is not Output.md:
            raise ContextError(f"-o {own.output}: bench --tune writes text only")
        tune_models(models, load, tests, own.tune_seconds)
        return
    if own.html is not None and len(models) * len(load) * len(kinds) > 1:
        raise ContextError("--html shows one model with one setting; measure the others apart")
    settings = [Setting(one.typed, n, kind) for one in load for kind in kinds for n in batches]
    columns = _shown(settings)
    opened = [_checked(path, load[0], max(test.n_cells for test in tests)) for path in models]
    printers = _printers(own, opened, tests, columns, is_one=len(settings) == 1)
    runs = Runs(
        own.repetitions, not own.no_warmup, own.delay, own.progress, own.verbose,
        profile=own.show_profile or own.trace is not None or own.html is not None,
        tasks=own.show_tasks,
    )  # fmt: skip
    series = Series(tests, printers, batches, kinds, runs)
    series.measure(models, load)
    left_out = _keep(models, load, series, columns)
    if own.output is Output.md and own.output_err is None and not own.progress:
        for text in left_out:
            say(text, "dim")
    in_words = not isinstance(printers[0], SpeedsFirst)
    _show_more(own, series, load[-1], in_words=in_words)


def _batched_tests(own: BenchFlags) -> BatchedTests:
    """The tests of several sequences; raises ContextError for options that are of the others."""
    ignored = {
        "--profile": own.show_profile, "--tasks": own.show_tasks, "--trace": own.trace,
        "--html": own.html, "--tune": own.tune, "--kernel": own.kernel, "-p": own.n_prompt,
        "-n": own.n_gen, "-pg": own.pairs, "-d": own.n_depth,
    }  # fmt: skip
    for name in (name for name, given in ignored.items() if given):
        raise ContextError(f"{name} is of tests with -p and -n; leave out -npl, -npp and -ntg")
    return BatchedTests(
        numbers("-npp", own.n_prompt_each or ["128"], parse_tokens),
        numbers("-ntg", own.n_gen_each or ["128"], parse_tokens),
        numbers("-npl", own.n_seqs or ["1"]),
        own.shared,
    )


def _bench_kernel(models: Sequence[Path], own: BenchFlags, load: Loading) -> None:
    """Compares the ways to multiply, without a model."""
    if models:
        raise ContextError("bench --kernel takes no model")
    if own.output not in _FOR_KERNELS:
        raise ContextError(f"-o {own.output}: bench --kernel writes {', '.join(_FOR_KERNELS)}")
    threads = load.arguments["threads"]
    bench_kernels(own.shape, own.columns, own.formats, own.repetitions, threads, own.output.value)


def _printers(
    own: BenchFlags, opened: Sequence[tuple[str, bool]], tests: Sequence[BenchTest],
    columns: Sequence[str], *, is_one: bool,
) -> list[Printer]:  # fmt: skip
    """The printers of the rows. `opened` are the names of the models, and whether each writes token
    by token; `is_one` says that there is one setting."""
    names = [name for name, _ in opened]
    widths = {"model": max(map(len, names)), "test": max(len(test.name) for test in tests)}
    screen = wide().width if sys.stdout.isatty() else None
    printers: list[Printer] = [make_printer(own.output, sys.stdout, columns, widths, screen)]
    words_first = screen is not None and own.output is Output.md and len(names) == 1
    if words_first and is_one and len(tests) <= _FEW:
        printers = [SpeedsFirst(printers[0], sys.stdout, opened[0][1])]
    if own.output_err is not None:
        printers.append(make_printer(own.output_err, sys.stderr, columns, widths))
    return printers


def _show_more(own: BenchFlags, series: Series, last: Loading, *, in_words: bool) -> None:
    """Writes the files that were asked for, and prints what belongs below the table; the speeds,
    too, if `in_words`. `last` is the last combination of options."""
    if own.trace is not None:
        series.profiles[-1].save_trace(own.trace)
    if own.html is not None:
        _write_report(own.html, series)
    if own.output is Output.md:
        _print_notes(series, in_words=in_words, detailed=own.show_profile or own.verbose)
    for name, tasks in series.tasks:
        print(f"\n{name}: {tasks}", file=sys.stdout if own.output is Output.md else sys.stderr)
    if own.show_profile and own.output not in (Output.json, Output.jsonl):
        for measured in series.profiles:
            print_profile(measured, own.slowest, to_error=own.output is not Output.md)
            print_predicted(measured, series.plan, last.arguments)


def _keep(
    models: Sequence[Path], load: Sequence[Loading], series: Series, columns: Sequence[str]
) -> list[str]:
    """Keeps the speeds for `weft explain`; returns sentences about what is not kept, and why."""
    if columns == ["n_threads"]:
        return keep_speeds(models, load[0].typed, series.rows)
    given = [c for c in columns if c != "n_threads" or any(one.typed.get(c) for one in load)]
    return [
        "these speeds are not kept for `weft explain`: they are not those of the usual options "
        f"({', '.join(given)})"
    ]


def _write_report(path: Path, series: Series) -> None:
    # most runs of weft bench write none
    from weft.report import plan_data, report_html, timeline_data

    plan = plan_data(series.plan)
    speeds = [
        f"{row['test']}: {row['avg_ts']:.2f} ± {row['stddev_ts']:.2f} tokens/s"
        for row in series.rows
    ]
    data = plan | {"profile": timeline_data(series.profiles, series.trace)}
    data["text"] = [*speeds, "", *plan["text"]]
    about = plan["overview"]
    data["overview"] = about | {
        "words": [
            *about["words"][:3],
            f"Measured: {speeds_text(series.rows, series.plan.model.continues)}.",
        ]
    }
    write_text(path, report_html(data))
    say(f"report written to {path}")


def _checked(path: Path, load: Loading, n_tokens: int) -> tuple[str, bool]:
    """The name of the model for the table, and whether it writes token by token. Prints a note if
    it was trained for fewer tokens."""
    model = open_with(path, dict(load.arguments), planned=True)
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
    return model_name(model), model.continues


def _shown(settings: Sequence[Setting]) -> list[str]:
    """The options that have a column in a table for people."""
    fields = [setting.fields() for setting in settings]
    shown = [name for name in fields[0] if is_shown(name, [row[name] for row in fields])]
    batch = [name for name in shown if name in ("n_batch", "n_ubatch")]
    return ["n_threads", *batch, *(name for name in shown if name not in batch)]


def _print_notes(series: Series, *, in_words: bool, detailed: bool) -> None:
    """Prints the speeds if `in_words`, the memory used, and how often threads waited for each other
    if `detailed`, if all rows are of one context."""
    rows, memory = series.rows, series.memory
    if series.n_contexts != 1:
        return
    out = wide()
    out.print()
    if in_words and len(rows) <= _FEW:
        out.print(
            f"{rows[0]['model_type']}: {speeds_text(rows, series.plan.model.continues)}",
            markup=False,
        )
    if detailed and len(rows) <= _FEW:
        waits = ", ".join(f"{row['test']} {row['barriers']}" for row in rows)
        out.print(f"how often threads waited for each other in a run: {waits}")
    experts = f"experts {size_text(memory.experts)}, " if memory.experts else ""
    out.print(
        f"memory: weights {size_text(memory.weights + memory.repacked)}, {experts}cache "
        f"{size_text(memory.cache)}, compute {size_text(memory.compute)}, scratch of the threads "
        f"{size_text(memory.scratch)}",
        markup=False,
    )
