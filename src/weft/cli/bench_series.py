"""Runs the measurements of `weft bench`: all models, options, tests and repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep
from typing import NamedTuple

from weft.cli.bench_rows import Result, Row, Setting, result_row
from weft.cli.bench_table import Printer
from weft.cli.bench_tests import BenchTest, Runner
from weft.cli.console import StatusLine, say
from weft.cli.loading import Loading, context_arguments, open_with
from weft.cli.plan_lines import plan_lines
from weft.execute import Profile, Tasks, Trace
from weft.llm import Context
from weft.llm.compute.counters import MemoryUse
from weft.llm.planning.plan import ContextPlan

RowOf = Callable[[Result], Row]


class Runs(NamedTuple):
    """How each test is measured."""

    repetitions: int
    warm_up: bool
    delay: float
    """Seconds before each test."""
    progress: bool
    """True prints a line for each run instead of one that changes."""
    verbose: bool
    profile: bool
    tasks: bool


class Series:
    """Measures every combination and prints each result as it comes."""

    rows: list[Row]
    """The results so far."""
    profiles: list[Profile]
    """The profile of each test, if profiles were asked for."""
    tasks: list[tuple[str, Tasks]]
    """The name of each test and the tasks of its last ubatch, if tasks were asked for."""
    trace: Trace
    """The timeline that all profiles share."""
    plan: ContextPlan
    """The plan of the last context."""
    memory: MemoryUse
    """The memory of the last context."""
    n_contexts: int
    """Number of contexts created."""

    def __init__(
        self,
        tests: Sequence[BenchTest],
        printers: Sequence[Printer],
        batches: Sequence[int],
        embeddings: Sequence[bool],
        runs: Runs,
    ) -> None:
        """`batches` are the numbers of prompt tokens given to a context at once, which take
        turns."""
        self._tests, self._printers, self._runs = tests, printers, runs
        self._batches, self._embeddings = batches, embeddings
        self.trace = Trace()
        self._number = self._total = 0
        self._status = StatusLine()
        self.rows, self.profiles, self.tasks = [], [], []
        self.n_contexts = 0

    def measure(self, models: Sequence[Path], loadings: Sequence[Loading]) -> None:
        """Measures and prints; the printed table is complete even after an error or Ctrl-C."""
        each = len(self._tests) * len(self._batches) * len(self._embeddings)
        self._total = len(models) * len(loadings) * each
        try:
            with self._status:
                for path in models:
                    self._measure_model(path, loadings)
        finally:
            for printer in self._printers:
                printer.end()

    def _measure_model(self, path: Path, loadings: Sequence[Loading]) -> None:
        model = open_with(path, dict(loadings[0].arguments))
        cells = 1 + max(test.n_cells for test in self._tests)
        for typed, arguments in loadings:
            n_ctx = None if arguments["plan"] else cells
            for embeddings in self._embeddings:
                options = context_arguments(arguments)
                options |= {"n_ctx": n_ctx, "embeddings": embeddings}
                rows = None if options.get("plan") else 1  # a plan has its own
                context = Context(model, n_outputs=rows, **options)
                self.memory, self.n_contexts = context.memory, self.n_contexts + 1
                self.plan = context.plan
                if self._runs.verbose:
                    for line in plan_lines(path, context):
                        say(line)
                for n_batch in self._batches:
                    setting = Setting(typed, n_batch, embeddings)
                    runner = Runner(context, n_batch, self._say)
                    for test in self._tests:
                        row = partial(result_row, path, model, context, setting)
                        self._measure_test(runner, test, row)
                        if self._runs.tasks:
                            self.tasks.append((test.name, context.tasks()))

    def _measure_test(self, runner: Runner, test: BenchTest, row: RowOf) -> None:
        self._number += 1
        if self._runs.delay:
            self._say(f"waiting {self._runs.delay:g} s")
            sleep(self._runs.delay)
        if self._runs.warm_up:
            runner.run(test, f"measuring {test.name}: warming up")
        began = datetime.now(UTC)
        samples = [
            runner.run(test, f"measuring {test.name}: {i} of {self._runs.repetitions}")
            for i in range(1, self._runs.repetitions + 1)
        ]
        measured = row(Result(test, samples, began))
        if self._runs.profile:
            measured["profile"] = self._profiled(runner, test)
        self.rows.append(measured)
        self._status("")
        for printer in self._printers:
            printer.row(measured)

    def _profiled(self, runner: Runner, test: BenchTest) -> Row:
        """Profiles a test in all graphs of the context; returns the profile as data."""
        profile = Profile(name=test.name, trace=self.trace)
        runner.run(test, f"profiling {test.name}", profile)
        self.profiles.append(profile)
        return profile.as_json()

    def _say(self, text: str) -> None:
        if self._runs.progress:
            say(f"weft bench: {self._number}/{self._total}: {text}")
        else:
            self._status(text)
