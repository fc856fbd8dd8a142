"""What a person sees: tables in narrow terminals, lists of measurements, lines while one waits."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.in_process import Done, weft
from tests.cli.terminal import Terminal
from tests.llm.encoder_models import make_encoder
from tests.llm.tiny import write_model
from weft.cli import console
from weft.cli.console import CountProgress, LoadProgress, StatusLine, TimeLeft
from weft.cli.profile_view import _fitting
from weft.schedule.explain import table_lines
from weft.schedule.machines import without_slow_helpers
from weft.schedule.profile import load_profile


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


def done(*args: str | Path, typed: str = "") -> Done:
    process = weft(*args, typed=typed)
    assert process.returncode == 0, process.stderr
    return process


# **** bench ****


def test_bench_speaks_plainly(path: Path) -> None:
    line = ("bench", path, "-p", "4", "-n", "2", "-r", "1", "-t", "2")
    text, detailed = done(*line).stdout, done(*line, "-v").stdout
    assert "barrier" not in detailed and "threads waited for each other in a run: pp4" in detailed
    assert "threads waited" not in text and "memory: weights" in text
    rows = json.loads(done("bench", path, "-p", "4", "-n", "0", "-r", "1", "-o", "json").stdout)
    assert "barriers" in rows[0]


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
def test_bench_says_what_it_measures(path: Path) -> None:
    with Terminal("bench", path, "-p", "8", "-n", "0", "-r", "2", "-t", "1") as terminal:
        assert terminal.exit_code() == 0
    for part in ("measuring pp8: warming up", "measuring pp8: 2 of 2", "| llama 13K F32"):
        assert part in terminal.text
    # on a terminal the speed in words is first, the table after it
    words = terminal.text.index("tokens/s for prompts (pp8)")
    assert words < terminal.text.index("| model")


def test_bench_says_speeds_in_words(path: Path) -> None:
    line = ("bench", path, "-p", "4", "-n", "2", "-pg", "4,2", "-r", "1", "-t", "1")
    text = done(*line).stdout
    assert text.startswith("| model")  # as it was for programs that read it
    [words] = [row for row in text.splitlines() if "tokens/s for" in row]
    assert re.fullmatch(
        r"llama 13K F32: [\d.,]+ tokens/s for prompts \(pp4\), [\d.,]+ tokens/s for answers "
        r"\(tg2\), [\d.,]+ tokens/s for pp4\+tg2", words
    )  # fmt: skip
    assert "tokens/s for" not in done(*line, "-o", "csv").stdout


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
@pytest.mark.parametrize("command", ["bench", "run", "calibrate"])
def test_ctrl_c_is_quiet(path: Path, command: str) -> None:
    words = {
        "bench": [path, "-p", "8", "-n", "8", "-r", "1000000", "-t", "1"],
        "calibrate": ["--devices", "cpu", "--seconds", "5", "-t", "1"],
        "run": [path, "abc", "-n", "-1", "--context-shift", "--ignore-eos", "-c", "64", "-t", "1"],
    }
    with Terminal(command, *words[command]) as terminal:
        terminal.wait_for({"bench": "measuring pp8: 1", "run": "abc"}.get(command, "measuring cpu"))
        terminal.send("\x03")
        terminal.wait_for("interrupted")
        assert terminal.exit_code() == 130 and "Traceback" not in terminal.text


def test_a_line_of_status_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    screen = Console(file=text, force_terminal=True, width=20)
    monkeypatch.setattr(console, "errors", screen)
    with StatusLine() as status:
        status("measuring something long")
        status("short")
    shown = text.getvalue()
    assert shown.split("\r")[1:3] == ["measuring something", "short".ljust(19)]
    assert shown.endswith(f"\r{' ' * 5}\r")


def test_without_a_terminal_long_work_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(console, "perf_counter", lambda: now)
    monkeypatch.setattr(console, "_on_terminal", lambda: False)
    status, things = StatusLine(), CountProgress("scoring chunks")
    weights, left = LoadProgress(), TimeLeft()
    said = []
    for second in range(31):
        now = float(second)
        status(f"second {second}")
        things(second, 31)
        weights(second << 20, 31 << 20)
        said.append(left(second, 121))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "second 10", "scoring chunks: 10 of 31", "loading weights: 10.00 MiB of 31.00 MiB"
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("second")] == [
        "second 10", "second 20", "second 30"
    ]  # fmt: skip
    assert said[0] == "" and said[1] == ", about 2 min left" and said[30] == ", about 91 s left"
    assert TimeLeft(40.0)(0, 211) == ", about 2 h 21 min left"


# **** tables ****


def test_narrow_terminals_lose_columns_not_digits() -> None:
    rows = [
        ["tensor", "op", "type", "steps", "ms/run", "share", "GB/s", "GOP/s", "op/byte", "bound by",
         "of roof"],
        ["blk.*.attn_output.weight", "FLASH_ATTN_EXT", "f16", "32", "12.345", "12.3%", "45.6",
         "789.0", "12.3", "memory", "44%"],
    ]  # fmt: skip
    assert _fitting(rows, 200) == rows
    narrow = _fitting(rows, 80)
    assert narrow[0] == ["tensor", "op", "type", "ms/run", "share", "GB/s", "of roof"]
    assert narrow[1][:2] == rows[1][:2]
    least = _fitting(rows, 50)
    assert least[0] == ["tensor", "op", "ms/run", "share", "GB/s", "of roof"]
    assert least[1][0].endswith("~") and least[1][2:] == ["12.345", "12.3%", "45.6", "44%"]


def test_the_plan_has_a_line_a_node_in_80_columns(path: Path) -> None:
    data = json.loads(done("explain", path, "-c", "64", "--json").stdout)
    nodes = sum(len(split["nodes"]) for split in data["splits"])
    lines = table_lines(data, 80, in_short=True)
    assert sum(line[:7].strip().isdigit() for line in lines) == nodes
    assert max(map(len, lines)) <= 80
    assert any("weight blk.0.attn_q.weight" in line for line in lines)
    assert len(lines) < nodes + 10


def test_brief_is_a_line_a_split(path: Path) -> None:
    args = ("explain", path, "-c", "64", "--devices", "reference,cpu", "-ngl", "1", "--brief")
    listing = done(*args).stdout.split("\n\ntotal")[0].split("\n\n")[-1]
    devices, *splits, last = listing.splitlines()
    assert devices.startswith("devices: ") and last.startswith("split 2: cpu, nodes ")
    assert [line.split(":")[0] for line in splits] == ["split 0", "split 1"]
    assert last.endswith(", 1 copy of 64 to 1,984 B") and " copies of " in splits[1]


@pytest.mark.parametrize("command", ["inspect", "explain", "devices", "bench"])
def test_no_line_ends_with_spaces(path: Path, command: str) -> None:
    more = {"bench": ["-p", "4", "-n", "0", "-r", "1", "-t", "1", "--profile"]}.get(command, [])
    model = [] if command == "devices" else [path]
    text = done(command, *model, *more).stdout
    assert text.strip() and not [line for line in text.splitlines() if line != line.rstrip()]


# **** calibrate, machines ****


def test_seconds_that_measure_nothing() -> None:
    for wrong in ("0", "-1", "1000", "nan"):
        refused = weft("calibrate", "--seconds", wrong)
        assert refused.returncode == 1 and "it must be above 0, at most 60" in refused.stderr


def test_a_helper_that_is_slower_is_left_out(tmp_path: Path, path: Path) -> None:
    machine = load_profile("mac-m2-ultra")
    cpu = machine.devices[-1]
    slow = replace(cpu, name="blas", kind="ACCEL", flops={"f32": 1e9, "default": 1e9})
    fast = replace(slow, flops={"f32": 1e15, "default": 1e15})
    kept = without_slow_helpers(replace(machine, devices=(slow, cpu)))
    assert [device.name for device in kept.devices] == [cpu.name]
    kept = without_slow_helpers(replace(machine, devices=(fast, cpu)))
    assert [device.name for device in kept.devices] == ["blas", cpu.name]
    file = tmp_path / "m.toml"
    file.write_text(replace(machine, devices=(slow, cpu)).to_toml())
    without = done("explain", path, "--machine", file, "--brief")
    assert "blas is left out, as its products are slower" in without.stderr
    assert "blas" not in without.stdout
    named = done("explain", path, "--machine", file, "--brief", "--devices", "blas,cpu")
    assert "\ndevices: blas" in named.stdout and "left out" not in named.stderr


# **** words ****


def test_a_model_without_text_names_the_command(tmp_path: Path) -> None:
    refused = weft("run", make_encoder(tmp_path)[0], "the")
    assert refused.returncode == 1 and "use `weft embed`" in refused.stderr


def test_no_time_is_promised_for_what_is_quick(path: Path) -> None:
    text = done("perplexity", path, "-c", "8", typed="the abc teh b the the abc\n" * 30).stderr
    assert "for all" not in text
