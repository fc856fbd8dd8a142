"""`weft bench --tune`: the threads and the chunk size that are fastest for a model on this machine.

Only values that leave every bit of the results alone are remembered. Cache types and attention that
the command line lists are compared and said, never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from weft.backends.cpu import ThreadOptions
from weft.cli.bench_race import LEAST_ROUNDS, Race, race
from weft.cli.bench_rows import Row
from weft.cli.bench_tests import BenchTest, Runner
from weft.cli.console import StatusLine, say
from weft.cli.loading import Loading, context_arguments, open_with
from weft.control_group import usable_processors
from weft.errors import ContextError, FormatError
from weft.frontends.models import open_model
from weft.llm import Context, Model
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.model_name import model_name
from weft.llm.tuned import Tuned, find, measured, remember
from weft.records import dataclass

ROUNDS = 9
"""Maximum number of rounds of each comparison."""
_UBATCH = 512
"""The usual number of prompt tokens computed at once."""
_UBATCHES = (64, 128, 256, 512, 1024, 2048)
_SHARES = {"threads_batch": 0.3, "ubatch": 0.4, "threads": 0.5, "check": 0.6}
"""The part of the time left that each comparison may take, in this order."""
_LONGEST = 1 / 60
"""The part of the time that one run may take; longer tests are shortened."""
_LEAST_TOKENS = {"pp": 64, "tg": 8}
_LONG = {"pp": 32, "tg": 8}
"""Minimum number of tokens of a test whose speed is kept."""
_UNCHANGED = 0.98
"""Values are not kept that make a test slower than this fraction of the defaults' speed."""
_WORTH = 1.01
"""Values are not kept that make no test faster by this factor."""
_FIXED = (
    *("devices", "n_gpu_layers", "place", "fit", "memory", "plan", "profile", "no_rewrite"),
    *("cpu_mask", "cpu_range", "numa", "lora", "lora_scaled"),
    *("control_vector", "control_vector_scaled"),
)
"""Options with which nothing is tuned, because remembered values would not be for them."""


class Bench(Protocol):
    """Runs a test with values."""

    def seconds(self, test: BenchTest, values: Tuned, other: int = 0) -> float:
        """The seconds of one run with warm memory. `other` is the number of the combination of
        options that change results; 0: the first."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a search."""

    tuned: Tuned
    gains: dict[str, float]
    """Test -> how many times as fast as with the defaults."""
    is_whole: bool = True
    """False if Ctrl-C or the end of the time left something undecided."""


class Search:
    """Finds the values for a prompt and a text, one kind of value after another."""

    def __init__(
        self,
        bench: Bench,
        tests: Sequence[BenchTest],
        candidates: Mapping[str, Sequence[int]],
        defaults: Mapping[str, int],
        *,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`candidates` are the values of `threads_batch`, `ubatch` and `threads` to try beside
        `defaults`. `seconds` bounds the time, `say` is called with a line for each result."""
        self._bench, self._candidates, self._defaults = bench, candidates, defaults
        self._clock, self._say = clock, say
        self._end = clock() + seconds
        self._longest = seconds * _LONGEST
        self._tests = list(tests)
        self._whole = True
        self._speeds: dict[str, float] = {}

    def run(self) -> Report:
        """Compares; Ctrl-C ends it with what is known by then."""
        try:
            self._tests = [self._shortened(test) for test in self._tests]
        except KeyboardInterrupt:
            return Report(Tuned(), {}, is_whole=False)
        tuned = Tuned()
        for test, name in self._plan():
            if self._whole:
                tuned = self._better(test, name, tuned)
        report = self._checked(tuned) if tuned.values else Report(tuned, {}, self._whole)
        return replace(report, tuned=replace(report.tuned, speeds=self._speeds))

    def _plan(self) -> list[tuple[BenchTest, str]]:
        prompts = [test for test in self._tests if test.n_prompt]
        texts = [test for test in self._tests if not test.n_prompt]
        plan = [(prompts[0], name) for name in ("threads_batch", "ubatch")] if prompts else []
        return plan + ([(texts[0], "threads")] if texts else [])

    def _shortened(self, test: BenchTest) -> BenchTest:
        """The test with so few tokens that its rounds fit into the time."""
        kind = "pp" if test.n_prompt else "tg"
        n = test.n_prompt or test.n_gen
        while True:
            sized = replace(test, n_prompt=n) if kind == "pp" else replace(test, n_gen=n)
            taken = self._bench.seconds(sized, Tuned())
            if taken <= self._longest or n <= _LEAST_TOKENS[kind]:
                return sized
            n = max(_LEAST_TOKENS[kind], min(n // 2, int(n * self._longest / taken)))

    def _race(self, ways: Sequence[Tuned], test: BenchTest, share: float) -> Race[Tuned]:
        now = self._clock()
        until = now + share * (self._end - now)
        return race(
            ways, lambda way: self._bench.seconds(test, way), rounds=ROUNDS, until=until,
            clock=self._clock,
        )  # fmt: skip

    def _better(self, test: BenchTest, name: str, tuned: Tuned) -> Tuned:
        ways = self._ways(test, name, tuned)
        if not ways:
            return tuned
        result = self._race([tuned, *ways], test, _SHARES[name])
        self._whole = self._whole and result.is_whole
        if len(result.times[tuned]) < LEAST_ROUNDS:
            self._say(f"{test.name}, {_WORDS[name]}: too little time to compare")
            self._whole = False
            return tuned
        best = result.best
        self._speeds[test.name] = test.n_tokens / median(result.times[best])
        told = ", ".join(f"{n}: {result.gain(way):.2f} times" for way, n in ways.items())
        chosen = f"{_FLAGS[name]} {ways[best]}" if best in ways else "the default"
        self._say(f"{test.name}, {_WORDS[name]}: {chosen} ({told} as fast as the default)")
        return best

    def _ways(self, test: BenchTest, name: str, tuned: Tuned) -> dict[Tuned, int]:
        """`tuned` with each candidate of a kind of value, and the candidate."""
        values = [n for n in self._candidates.get(name, ()) if n != self._defaults[name]]
        if name == "threads_batch":
            return {replace(tuned, threads_batch=n): n for n in values}
        if name == "ubatch":
            return {replace(tuned, ubatch=n): n for n in values if n <= test.n_prompt}
        # without a number of their own, prompts would have the number of single tokens
        prompts = tuned.threads_batch or self._defaults["threads_batch"]
        return {replace(tuned, threads=n, threads_batch=prompts): n for n in values}

    def _checked(self, tuned: Tuned) -> Report:
        """Compares all values together with the defaults, once more."""
        gains: dict[str, float] = {}
        for test in self._tests:
            result = self._race([Tuned(), tuned], test, _SHARES["check"])
            self._whole = self._whole and result.is_whole
            if result.ratios(tuned):
                gains[test.name] = result.gain(tuned)
                self._speeds[test.name] = test.n_tokens / median(result.times[tuned])
        slower = [test for test, gain in gains.items() if gain < _UNCHANGED]
        if slower or (gains and max(gains.values()) < _WORTH):
            self._say("together they are no faster than the defaults, which stay")
            return Report(Tuned(), gains, self._whole)
        return Report(tuned, gains, self._whole)


_WORDS = {"threads_batch": "threads", "ubatch": "tokens at once", "threads": "threads"}
_FLAGS = {"threads_batch": "-tb", "ubatch": "-ub", "threads": "-t"}


class _Contexts:
    """The bench over a model: a context for each combination of values, over the same weights."""

    def __init__(
        self, model: Model, load: Sequence[Loading], n_cells: int, status: Callable[[str], None]
    ) -> None:
        self._model, self._load, self._n_cells, self._status = model, load, n_cells, status
        self._runners: dict[tuple[Tuned, int], Runner] = {}
        self._warm: set[tuple[Tuned, int, BenchTest]] = set()

    def seconds(self, test: BenchTest, values: Tuned, other: int = 0) -> float:
        """See `Bench`."""
        runner = self._runners.get((values, other))
        if runner is None:
            runner = self._runners[values, other] = self._runner(values, other)
        if (values, other, test) not in self._warm:
            runner.run(test, f"{test.name} {values}: warming up")
            self._warm.add((values, other, test))
        return runner.run(test, f"{test.name} {values}") / 1e9

    def _runner(self, values: Tuned, other: int) -> Runner:
        options = context_arguments(self._load[other].arguments)
        threads = replace(
            options["threads"], n_threads=values.threads, n_threads_batch=values.threads_batch
        )
        options |= {"n_ctx": self._n_cells, "threads": threads, "n_ubatch": values.ubatch}
        return Runner(Context(self._model, n_outputs=1, **options), 2048, self._status)


def tune(
    models: Sequence[Path], load: Sequence[Loading], tests: Sequence[BenchTest], seconds: float
) -> None:
    """Tunes each model and says what it found. Raises ContextError for what cannot be tuned."""
    typed = load[0].typed
    given = [name for name in _FIXED if typed.get(name)]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ContextError(f"--tune is for the cpu as it is; leave out {flags}")
    prompts = [test for test in tests if not test.n_gen][:1]
    wanted = prompts + [test for test in tests if not test.n_prompt][:1]
    if not wanted:
        raise ContextError("--tune needs a prompt (-p) or generated tokens (-n)")
    for path in models:
        _tune_one(path, load, wanted, seconds)


def keep_speeds(models: Sequence[Path], typed: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Remembers the speeds of prompts and of answers for `weft explain`, beside earlier ones of the
    other kind; returns a sentence for each speed that is not kept, and why."""
    given = [name for name in (*_FIXED, "n_threads", "n_threads_batch") if typed.get(name)]
    if given:
        flags = ", ".join(f"--{name.removeprefix('n_').replace('_', '-')}" for name in given)
        return [f"these speeds are not kept for `weft explain`: they are those with {flags}"]
    left_out: list[str] = []
    for path in models:
        speeds = _kept_speeds([row for row in rows if row["model_filename"] == str(path)], left_out)
        if not speeds:
            continue
        file = open_model(path, typed.get("type"), planned=True)
        with file, suppress(FormatError):  # a folder that cannot be written
            if find(file) is not None:
                left_out.append(
                    f"the speeds of {path.name} are not kept for `weft explain`: there are those "
                    "of --tune, with the values that it found"
                )
                continue
            before = measured(file)
            kinds = {test[:2] for test in speeds}
            old = {} if before is None else before.speeds
            others = {test: speed for test, speed in old.items() if test[:2] not in kinds}
            remember(file, path.name, Tuned(speeds=others | speeds), {})
    return left_out


def _kept_speeds(rows: Sequence[Row], left_out: list[str]) -> dict[str, float]:
    """Test -> tokens per second, of tests of prompts or of answers alone; adds a sentence to
    `left_out` for each that is too short."""
    found: dict[str, float] = {}
    for row in rows:
        if row["n_depth"] or (row["n_prompt"] and row["n_gen"]):
            continue
        kind = "pp" if row["n_prompt"] else "tg"
        if (row["n_prompt"] or row["n_gen"]) >= _LONG[kind]:
            found[row["test"]] = row["avg_ts"]
        else:
            left_out.append(
                f"{row['test']} is not kept for `weft explain`: it has fewer than {_LONG[kind]} "
                "tokens"
            )
    return found


def _tune_one(
    path: Path, load: Sequence[Loading], tests: Sequence[BenchTest], seconds: float
) -> None:
    model = open_with(path, dict(load[0].arguments))
    if not model.config.causal or not model.writes:
        raise ContextError(
            f"{path.name} writes no text token by token; --tune is for models that do"
        )
    print(f"{path.name}: comparing for at most about {seconds:g} s")
    with StatusLine() as status:

        def tell(line: str) -> None:
            status("")
            print(line, flush=True)

        cells = 1 + max(test.n_cells for test in tests)
        bench = _Contexts(model, load, cells, status)
        cores, _ = _usual_threads(load[0]).resolved()
        usual = {"threads": cores, "threads_batch": cores, "ubatch": _UBATCH}
        candidates = _candidates(load, cores)
        found = Search(bench, tests, candidates, usual, seconds=seconds, say=tell).run()
        if found.is_whole:
            _compare_others(bench, load, tests, found.tuned, seconds, tell)
    if not found.is_whole:
        say("not everything was compared; more --tune-seconds may find more")
    where = remember(model.file, model_name(model), found.tuned, found.gains)
    if not found.tuned.values:
        print("the defaults are the best that was found; nothing is remembered but the speeds")
        return
    gains = ", ".join(f"{test} {gain:.2f} times" for test, gain in found.gains.items())
    print(
        f"remembered in {where}: {found.tuned} ({gains or 'not compared again'} as fast as the "
        "defaults); weft run, chat and serve use it for this model unless -t, -tb or -ub say "
        "otherwise, or --no-tuned"
    )


def _usual_threads(one: Loading) -> ThreadOptions:
    """The options of threads with their usual numbers."""
    threads: ThreadOptions = one.arguments["threads"]
    return replace(threads, n_threads=None, n_threads_batch=None)


def _candidates(load: Sequence[Loading], cores: int) -> dict[str, list[int]]:
    """The values to try: those that the command line lists, or else the usual ones."""
    most = max(cores, usable_processors())
    counts = sorted({1, 2, cores // 4, cores // 2, 3 * cores // 4, cores - 1, most})
    counts = [n for n in counts if 1 <= n <= most]
    usual = {"threads_batch": counts, "threads": counts, "ubatch": list(_UBATCHES)}
    return {name: _listed(load, name) or values for name, values in usual.items()}


def _listed(load: Sequence[Loading], name: str) -> list[int]:
    values = dict.fromkeys(one.typed.get(name) for one in load)
    return [n for n in values if isinstance(n, int) and n > 0]


def _compare_others(
    bench: _Contexts,
    load: Sequence[Loading],
    tests: Sequence[BenchTest],
    tuned: Tuned,
    seconds: float,
    tell: Callable[[str], None],
) -> None:
    """Says what other cache types and attention of the command line would gain."""

    def changes(one: Loading) -> tuple[Any, ...]:
        return tuple(one.typed.get(name) for name in (*CacheTypes._fields, "flash"))

    numbers = {changes(one): i for i, one in reversed(list(enumerate(load)))}
    ways = sorted(numbers.values())
    if len(ways) < 2:
        return
    share = seconds / len(tests) / 2
    for test in tests:
        result = race(
            ways, partial(_seconds, bench, test, tuned), rounds=ROUNDS,
            until=perf_counter() + share, clock=perf_counter,
        )  # fmt: skip
        for way in ways[1:]:
            k, v, flash = changes(load[way])
            tell(
                f"{test.name}, not chosen as results change: -ctk {k or 'f16'} -ctv {v or 'f16'} "
                f"-fa {flash}: {result.gain(way):.2f} times as fast"
            )
        if not result.is_whole:
            return


def _seconds(bench: Bench, test: BenchTest, tuned: Tuned, other: int) -> float:
    return bench.seconds(test, tuned, other)
