"""`weft bench --tune`: what it finds with a clock and a machine that are made up, and that its
values are taken where nobody says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Done, weft
from tests.llm.tiny import write_model
from weft.backends.cpu import ThreadOptions
from weft.cli import tuned_options
from weft.cli.bench_race import race
from weft.cli.bench_tests import BenchTest
from weft.cli.bench_tune import Report, Search, keep_speeds
from weft.cli.tuned_options import take_tuned
from weft.flags import FLAGS
from weft.frontends.gguf import open_gguf
from weft.frontends.models import open_model
from weft.llm import tuned as tuned_module
from weft.llm.tuned import Tuned, find, measured, remember

PP, TG = BenchTest(512, 0), BenchTest(0, 32)
DEFAULTS = {"threads": 4, "threads_batch": 4, "ubatch": 512}
CANDIDATES = {"threads": [1, 2, 4, 8], "threads_batch": [2, 4, 8], "ubatch": [64, 128, 512, 1024]}


class Machine:
    """A clock, and runs that take as long as `cost` says and, now and then, three times that."""

    def __init__(self, cost: Callable[[BenchTest, Tuned], float], noisy: bool = True) -> None:
        self.now, self.runs, self._cost, self._noisy = 0.0, 0, cost, noisy
        self.stop_at: int | None = None
        self.tried: set[Tuned] = set()

    def seconds(self, test: BenchTest, values: Tuned, other: int = 0) -> float:
        self.runs += 1
        self.tried.add(values)
        if self.runs == self.stop_at:
            raise KeyboardInterrupt
        taken = self._cost(test, values) * (3 if self._noisy and self.runs % 7 == 3 else 1)
        self.now += taken
        return taken

    def search(self, seconds: float = 1000, said: list[str] | None = None) -> Report:
        lines = [] if said is None else said
        return Search(
            self, [PP, TG], CANDIDATES, DEFAULTS, seconds=seconds, clock=lambda: self.now,
            say=lines.append,
        ).run()  # fmt: skip


def usual(test: BenchTest, values: Tuned) -> float:
    """Prompts like 8 threads and 128 tokens at once; single tokens like 2 threads."""
    if test.n_prompt:
        prompts = values.threads_batch or values.threads or 4
        return {1: 3.0, 2: 1.6, 4: 1.0, 8: 0.8}[prompts] * {128: 0.9}.get(values.ubatch or 512, 1)
    return {1: 1.1, 2: 0.7, 4: 1.0, 8: 1.4}[values.threads or 4]


def flat(test: BenchTest, values: Tuned) -> float:
    return 1.0


# **** comparing ****


@pytest.mark.parametrize("noisy", [False, True])
def test_the_fastest_of_each_is_found(noisy: bool) -> None:
    said: list[str] = []
    found = Machine(usual, noisy).search(said=said)
    assert found.tuned == Tuned(threads=2, threads_batch=8, ubatch=128)
    assert found.is_whole and set(found.gains) == {"pp512", "tg32"}
    assert found.gains["pp512"] == pytest.approx(1 / 0.72)
    assert found.gains["tg32"] == pytest.approx(1 / 0.7)
    if not noisy:
        than = "as fast as the default)"
        assert said == [
            f"pp512, threads: -tb 8 (2: 0.62 times, 8: 1.25 times {than}",
            f"pp512, tokens at once: -ub 128 (64: 1.00 times, 128: 1.11 times {than}",
            f"tg32, threads: -t 2 (1: 0.91 times, 2: 1.43 times, 8: 0.71 times {than}",
        ]


def test_the_defaults_stay_where_nothing_is_faster() -> None:
    machine = Machine(flat)
    assert machine.search() == Report(Tuned(), {})
    assert all(values.ubatch != 1024 for values in machine.tried)  # more than the prompt has


def test_a_little_is_no_gain() -> None:
    found = Machine(lambda test, values: 1.0 if values == Tuned() else 0.99).search()
    assert found.tuned == Tuned()


def test_threads_of_single_tokens_leave_those_of_prompts() -> None:
    def cost(test: BenchTest, values: Tuned) -> float:
        return usual(test, values) if test.n_gen else 1.0 + ((values.threads_batch or 4) != 4)

    assert Machine(cost).search().tuned == Tuned(threads=2, threads_batch=4)


def test_values_that_are_slower_together_are_not_kept() -> None:
    def cost(test: BenchTest, values: Tuned) -> float:
        if test.n_prompt and values.threads is not None:
            return 2.0  # found only when all values are compared with the defaults
        return usual(test, values)

    said: list[str] = []
    found = Machine(cost).search(said=said)
    assert found.tuned == Tuned() and found.gains["pp512"] < 1
    assert said[-1] == "together they are no faster than the defaults, which stay"


@pytest.mark.parametrize("seconds", [1, 10, 60, 300])
def test_time_is_bounded(seconds: float) -> None:
    machine = Machine(usual)
    found = machine.search(seconds=seconds)
    # what began before the end is finished, and each test is run once at least to know its length
    assert machine.now <= seconds + 20
    if seconds <= 10:
        assert found.tuned == Tuned() and not found.is_whole


def test_long_tests_are_shortened() -> None:
    def cost(test: BenchTest, values: Tuned) -> float:
        return test.n_tokens * 0.05 * usual(test, values)

    machine = Machine(cost, noisy=False)
    found = machine.search(seconds=300)
    assert set(found.gains) == {"pp100", "tg32"}
    assert found.tuned.threads_batch == 8


@pytest.mark.parametrize("stop_at", [1, 2, 10, 30, 45, 60, 75])
def test_ctrl_c_keeps_what_is_known(stop_at: int) -> None:
    machine = Machine(usual, noisy=False)
    machine.stop_at = stop_at
    found = machine.search()
    assert not found.is_whole and machine.runs <= stop_at + 9 * 2 * 2
    best = {"threads": 2, "threads_batch": 8, "ubatch": 128}
    assert all(best[name] == n or n == DEFAULTS[name] for name, n in found.tuned.values.items())
    if stop_at >= 30:
        assert found.tuned.threads_batch == 8


def test_a_race_needs_rounds_and_drops_the_hopeless() -> None:
    runs: list[str] = []
    cost = {"first": 1.0, "better": 0.9, "bad": 2.0}

    def seconds_of(way: str) -> float:
        runs.append(way)
        return cost[way]

    result = race(list(cost), seconds_of, rounds=6, until=1, clock=lambda: 0)
    assert result.best == "better" and result.gain("better") == pytest.approx(1 / 0.9)
    assert [runs.count(way) for way in cost] == [6, 6, 3]
    few = race(list(cost), seconds_of, rounds=2, until=1, clock=lambda: 0)
    assert few.best == "first"
    assert race(["first"], seconds_of, rounds=5, until=1, clock=lambda: 0).best == "first"


# **** the command ****


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mine = replace(FLAGS, cache=str(tmp_path / "cache"), threads=0, devices="")
    for module in (tuned_module, tuned_options):
        monkeypatch.setattr(module, "FLAGS", mine)
    return tmp_path / "cache" / "tuned.json"


def done(*args: str | Path) -> Done:
    process = weft(*args)
    assert process.returncode == 0, process.stderr
    return process


def test_the_command_remembers_or_says_that_it_does_not(path: Path, cache: Path) -> None:
    said = done("bench", path, "--tune", "--tune-seconds", "1", "-p", "16", "-n", "4").stdout
    with open_gguf(path) as file:
        found = find(file)
    if found is None:
        assert "the defaults are the best that was found; nothing is remembered" in said
    else:
        assert f"{found} (" in said and str(cache) in said
    assert "pp16, threads: " in said and "tg4, threads: " in said


def test_what_changes_results_is_said_and_not_remembered(path: Path, cache: Path) -> None:
    line = "--tune --tune-seconds 2 -p 8 -n 4 -t 1 -tb 1 -ub 8 -ctk f16,f32 -fa on,off".split()
    said = done("bench", path, *line).stdout
    assert "not chosen as results change: -ctk f32 -ctv f16 -fa on: " in said
    assert "-fa off: " in said
    for entry in json.loads(cache.read_text()) if cache.exists() else []:
        assert set(entry["values"]) <= {"threads", "threads_batch", "ubatch"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (["--devices", "reference,cpu"], "--tune is for the cpu as it is; leave out --devices"),
        (["-pg", "4,4", "-p", "0", "-n", "0"], "--tune needs a prompt"),
        (["--tune-seconds", "0"], "--tune-seconds is 0"),
        (["-o", "json"], "bench --tune writes text only"),
    ],
)
def test_what_cannot_be_tuned_is_an_error(
    path: Path, cache: Path, line: list[str], error: str
) -> None:
    process = weft("bench", path, "--tune", *line)
    assert process.returncode in (1, 2) and error in process.stderr
    assert not cache.exists()


# **** values that are taken ****


def load() -> dict[str, Any]:
    return {"threads": ThreadOptions(), "n_ubatch": None}


def test_speeds_alone_are_no_reason_to_open_the_model(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(speeds={"tg128": 9.0}), {})
    monkeypatch.setattr(tuned_options, "open_model", None)
    assert cache.exists() and take_tuned(load(), {}, path) is None


@pytest.mark.parametrize("text", [b"weft graph 1\n", b"GGUF\3\0\0\0"])
def test_files_that_are_no_models_have_no_values(
    path: Path, cache: Path, tmp_path: Path, text: bytes
) -> None:
    """`weft explain` also reads graphs as text, and says itself what is damaged."""
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(threads=1), {})
    other = tmp_path / "other"
    other.write_bytes(text)
    assert take_tuned(load(), {}, other) is None


def test_the_beginning_of_a_file_has_the_values_of_the_whole(
    path: Path, cache: Path, tmp_path: Path
) -> None:
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(threads=1), {})
    head = tmp_path / "head.gguf"
    head.write_bytes(path.read_bytes()[:-64])
    assert take_tuned(load(), {}, head) is not None


def test_remembered_values_are_taken(path: Path, cache: Path) -> None:
    arguments = load()
    assert take_tuned(arguments, {}, path) is None and arguments == load()
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(threads=1, threads_batch=2, ubatch=8, date="today"), {})
    assert take_tuned(arguments, {}, path) is not None
    assert arguments == {
        "threads": ThreadOptions(n_threads=1, n_threads_batch=2), "n_ubatch": 8
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ({"n_threads": 3}, {"ubatch": 8}),
        ({"n_threads_batch": 3}, {"ubatch": 8}),
        ({"cpu_range": "0-1"}, {"ubatch": 8}),
        ({"n_ubatch": 64}, {"threads": 1, "threads_batch": 2}),
        ({"n_ubatch": 64, "n_threads": 2}, None),
        ({"devices": "cpu"}, None),
        ({"plan": "plan.json"}, None),
    ],
)
def test_the_command_line_has_the_last_word(
    path: Path, cache: Path, typed: dict[str, Any], taken: dict[str, int] | None
) -> None:
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(threads=1, threads_batch=2, ubatch=8), {})
    found = take_tuned(load(), typed, path)
    assert (None if found is None else found.values) == taken


def test_run_takes_them_says_so_and_writes_the_same_text(path: Path, cache: Path) -> None:
    line = ("run", path, "-p", "abc", "-n", "6", "--seed", "3", "-v")
    before = done(*line)
    with open_gguf(path) as file:
        remember(file, "tiny", Tuned(threads=1, ubatch=2, date="2026-01-02"), {})
    after, without = done(*line), done(*line, "--no-tuned")
    said = "tuned: -t 1 -ub 2 (weft bench --tune, 2026-01-02; not with --no-tuned)"
    assert said in after.stderr
    assert "tuned" not in before.stderr + without.stderr
    assert before.stdout == after.stdout == without.stdout


# **** speeds that are kept ****


def test_speeds_with_the_usual_options_are_kept(path: Path, cache: Path) -> None:
    def row(n_prompt: int, n_gen: int, speed: float, depth: int = 0) -> dict[str, Any]:
        test = BenchTest(n_prompt, n_gen, depth)
        sizes = {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth, "avg_ts": speed}
        return sizes | {"test": test.name, "model_filename": str(path)}

    rows = [row(512, 0, 900.0), row(0, 128, 50.0), row(8, 0, 1.0), row(512, 128, 2.0),
            row(0, 64, 3.0, 4096)]  # fmt: skip
    for typed, flag in (({"n_threads": 1}, "--threads"), ({"devices": "cpu"}, "--devices")):
        (said,) = keep_speeds([path], typed, rows)
        assert flag in said and not cache.exists()
    (said,) = keep_speeds([path], {}, rows)
    assert said == "pp8 is not kept for `weft explain`: it has fewer than 32 tokens"
    with open_gguf(path) as file:
        found = measured(file)
        assert found is not None and found.speeds == {"pp512": 900.0, "tg128": 50.0}
        assert find(file) is None  # there are no values to take
        assert not keep_speeds([path], {}, [row(0, 16, 40.0)])
        found = measured(file)
        assert found is not None and found.speeds == {"pp512": 900.0, "tg16": 40.0}
        remember(file, "tiny", Tuned(ubatch=64), {})
        assert "those of --tune" in keep_speeds([path], {}, rows)[-1]  # measured without that value
        kept = measured(file)
        assert kept is not None and not kept.speeds


def test_speeds_of_weights_in_another_type_are_kept_apart(path: Path, cache: Path) -> None:
    row = {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 9.0, "test": "pp512"}
    assert not keep_speeds([path], {"type": "q8_0"}, [row | {"model_filename": str(path)}])
    with open_gguf(path) as file:
        assert measured(file) is None
    with open_model(path, "q8_0", planned=True) as file:
        found = measured(file)
        assert found is not None and found.speeds == {"pp512": 9.0}
        remember(file, "tiny", Tuned(threads=1), {})
    assert take_tuned(load(), {}, path) is None
    taken = take_tuned(load(), {"type": "q8_0"}, path)
    assert taken is not None and taken.values == {"threads": 1}
