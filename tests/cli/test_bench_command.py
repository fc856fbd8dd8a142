"""`weft bench`: its lists, depths and formats, as scripts for llama-bench read them."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import Done, weft
from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.cli.bench import device_sets
from weft.cli.bench_rows import OWN_FIELDS
from weft.cli.bench_table import Output, make_printer
from weft.cli.bench_tests import BenchTest, Runner
from weft.llm import Context, Model

ONCE = ("-r", "1", "-t", "1")

FIELDS = """
build_commit build_number cpu_info gpu_info backends model_filename model_type model_size
model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers
n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split tensor_buft_overrides
load_mode embeddings no_op_offload no_host fit_target fit_min_ctx n_prompt n_gen n_depth test_time
avg_ns stddev_ns avg_ts stddev_ts
""".split()
"""What llama-bench writes, in its order."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


def done(*args: str | Path) -> Done:
    process = weft(*args)
    assert process.returncode == 0, process.stderr
    return process


def rows_of(*args: str | Path) -> list[dict[str, Any]]:
    return json.loads(done("bench", *args, "-o", "json").stdout)


# **** lists ****


def test_every_combination_is_measured(path: Path) -> None:
    line = "-p 4,8 -n 0,2 -t 1,2 -ub 4,8 -fa on,off -r 1".split()
    found = [(r["n_ubatch"], r["flash_attn"], r["n_threads"], r["test"])
             for r in rows_of(path, *line)]  # fmt: skip
    assert found == [
        (ub, fa, t, test)
        for ub in (4, 8) for fa in (1, 0) for t in (1, 2) for test in ("pp4", "pp8", "tg2")
    ]  # fmt: skip


def test_ranges_and_repeated_options(path: Path) -> None:
    line = "-p 1-4 -p 8-32*2 -p 2-6+2 -n 0 -t 1-2".split()
    found = [(r["n_threads"], r["n_prompt"]) for r in rows_of(path, *line, "-r", "1")]
    assert found == [(t, n) for t in (1, 2) for n in (1, 2, 3, 4, 8, 16, 32, 2, 4, 6)]


def test_switches_take_values_or_stand_alone(path: Path) -> None:
    few = (path, "-p", "2", "-n", "0", *ONCE)
    both = rows_of(*few, "-nkvo", "0,1", "--cpu-strict", "0,1", "-fa", "-embd", "1,0")
    found = [(r["no_kv_offload"], r["cpu_strict"], r["embeddings"]) for r in both]
    assert found == [(k, s, e) for k in (False, True) for s in (False, True) for e in (True, False)]
    assert {r["flash_attn"] for r in both} == {1}
    assert [r["no_kv_offload"] for r in rows_of(*few, "-nkvo")] == [True]
    assert [r["no_op_offload"] for r in rows_of(*few, "-nopo", "0,1")] == [0, 1]


def test_types_polls_and_masks(path: Path) -> None:
    words = "-p 2 -n 0 -ctk f16,f32 -ctv f32 --poll 0,50 -C 0x0,0x1 -b 1,2".split()
    found = rows_of(path, *words, *ONCE)
    assert [(r["type_k"], r["type_v"], r["poll"], r["cpu_mask"], r["n_batch"]) for r in found] == [
        (k, "f32", poll, mask, b)
        for k in ("f16", "f32") for mask in ("0x0", "0x1") for poll in (0, 50) for b in (1, 2)
    ]  # fmt: skip


def test_several_models(path: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf")
    few = ("-p", "2", "-n", "0", *ONCE)
    names = [str(path), str(other)]
    for words in ((path, other), ("-m", path, "-m", other), ("-m", f"{path},{other}")):
        assert [r["model_filename"] for r in rows_of(*words, *few)] == names
    missing = weft("bench", "-m", path, "-m", tmp_path / "none.gguf", *few)
    assert missing.returncode == 1 and "none.gguf: no such file" in missing.stderr


def test_sets_of_devices(path: Path) -> None:
    assert device_sets(["opencl:0,cpu"]) == ["opencl:0,cpu"]
    assert device_sets(["opencl:0/cpu,none", "auto"]) == ["opencl:0,cpu", "none", None]
    found = rows_of(path, "-p", "2", "-n", "0", *ONCE, "-dev", "reference/cpu,none")
    assert [(r["backend"], r["devices"], r["backends"]) for r in found] == [
        ("reference,cpu", "reference/cpu", "reference"), ("cpu", "none", "CPU"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-p -5", "-p -5: '-5' is no number of tokens"),
        ("-p 0 -n 0", "-p or -n above 0"),
        ("-t 1,x", "-t 1,x: write numbers"),
        ("-p 1,x", "-p 1,x: 'x' is no number of tokens"),
        ("-p 8-4", "-p 8-4: that range never gets to its end"),
        ("-p 0-8*2", "never gets to its end"),
        ("-p 1-8*1", "never gets to its end"),
        ("-p 1-1000000000", "-p 1-1000000000: that is more than 1000 values"),
        ("-t 1-100 -ub 1-100", "more than 1000 combinations"),
        ("-pg 4", "-pg 4: write tokens of the prompt, and generated"),
        ("-ctk f16,,f32", "-ctk f16,,f32: write values with commas between them"),
        ("-nkvo 0,2", "-nkvo 2: write 1 or 0"),
        ("-fa on,maybe", "-fa maybe: write on, off or auto"),
        ("-r 0", "at least one repetition"),
        ("-b 0", "-b is 0; it must be at least 1"),
        ("--delay -1", "--delay is -1; it must be 0 to 3600 seconds"),
    ],
)
def test_lists_that_are_none(path: Path, words: str, said: str) -> None:
    refused = weft("bench", path, *words.split())
    assert refused.returncode in (1, 2) and said in refused.stderr


def test_options_that_change_nothing_are_noted(path: Path) -> None:
    few = ("bench", path, "-p", "2", "-n", "0", *ONCE)
    same = done(*few, *"-mmp 1 -dio 0 -lm mmap -sm layer -mg 0 -nopo 0 --no-host 0".split())
    assert "note" not in same.stderr
    other = done(*few, *"-mmp 0,1 -dio 1 -lm none -sm row -mg 1 -ts 1/1 -nopo 1".split())
    assert other.stderr.count("changes nothing: ") == 6
    assert "-mmp 0,1 changes nothing: weights are mapped" in other.stderr


# **** what is measured ****


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many tokens each decode had, and how many stood in the cache before."""
    calls: list[tuple[int, int]] = []
    decode = Context.decode

    def seen(self: Context, tokens: Any, *args: Any, **options: Any) -> Any:
        calls.append((int(self.cache.members[0].sum()), len(tokens)))
        return decode(self, tokens, *args, **options)

    monkeypatch.setattr(Context, "decode", seen)
    return calls


def test_a_depth_is_computed_once(path: Path, decoded: list[tuple[int, int]]) -> None:
    words = "-p 4 -n 2 -pg 3,1 -d 0,6,10 -r 2 -t 1".split()
    assert [r["test"] for r in rows_of(path, *words)] == [
        f"{size}{depth}" for depth in ("", " @ d6", " @ d10") for size in ("pp4", "tg2", "pp3+tg1")
    ]

    def measured(depth: int) -> list[tuple[int, int]]:
        each = [[(depth, 4)], [(depth, 1), (depth + 1, 1)], [(depth, 3), (depth + 3, 1)]]
        return [call for test in each for _ in range(3) for call in test]

    assert decoded == [*measured(0), (0, 6), *measured(6), (6, 4), *measured(10)]


def test_prompts_are_handed_over_in_batches(path: Path, decoded: list[tuple[int, int]]) -> None:
    done("bench", path, "-p", "10", "-n", "0", "-d", "5", "-b", "4", *ONCE, "--no-warmup")
    assert decoded == [(0, 4), (4, 1), (5, 4), (9, 4), (13, 2)]


@pytest.mark.parametrize(
    ("models", "name", "swa_full"),
    [
        (OTHERS, "mamba", True),
        (OTHERS, "lfm2", True),
        (RELATIVES, "gemma2", False),
        (RELATIVES, "gemma2", True),
    ],
)
def test_tests_leave_nothing_behind(
    tmp_path: Path, models: dict[str, Any], name: str, swa_full: bool
) -> None:
    """Also where tokens cannot be taken back: recurrent states, and windows that are let go of."""
    arch, changes = models[name]
    meta = keys_of(arch, changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
    context = Context(Model.open(path), 64, swa_full=swa_full, n_outputs=1)
    runner = Runner(context, 2048, lambda text: None)
    runner.go_to(20)
    want = context.decode([3])
    for test in (BenchTest(14, 0, 20), BenchTest(0, 3, 20)):
        runner.run(test)
    runner.go_to(20)
    assert np.array_equal(context.decode([3]), want)
    runner.go_to(3)
    assert context.cache.pos_max(0) == 2


def test_a_model_too_short_for_the_depth_is_noted(path: Path) -> None:
    process = done("bench", path, "-p", "4", "-n", "0", "-d", "500", *ONCE)
    assert "was trained for 64 tokens" in process.stderr and "pp4 @ d500" in process.stdout


# **** formats ****


def test_fields_have_llama_benchs_names(path: Path) -> None:
    few = ("bench", path, "-p", "4", "-n", "2", "-r", "3", "-t", "1")
    rows = json.loads(done(*few, "-o", "json").stdout)
    lines = [json.loads(line) for line in done(*few, "-o", "jsonl").stdout.splitlines()]
    table = list(csv.DictReader(io.StringIO(done(*few, "-o", "csv").stdout)))
    lists = ["samples_ns", "samples_ts"]
    for row in rows + lines:
        assert [n for n in row if n not in OWN_FIELDS] == FIELDS + lists
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
        assert abs(row["avg_ns"] - sum(row["samples_ns"]) / 3) < 1
        ts = [(row["n_prompt"] + row["n_gen"]) * 1e9 / ns for ns in row["samples_ns"]]
        assert row["samples_ts"] == pytest.approx(ts)
        assert row["engine"] == "weft" and row["barriers"] == 0 and row["nodes"] > 0
    assert [n for n in table[0] if n not in OWN_FIELDS] == FIELDS
    assert [r["test"] for r in table] == ["pp4", "tg2"] and table[0]["cpu_strict"] == "0"
    assert rows[0]["type_k"] == "f16" and rows[0]["flash_attn"] == -1
    assert rows[0]["backends"] == "CPU" and rows[0]["n_gpu_layers"] == -1


def test_sql_goes_into_a_database(path: Path) -> None:
    few = ("bench", path, "-p", "4", "-n", "2", *ONCE, "-o", "sql")
    database = sqlite3.connect(":memory:")
    for _ in range(2):
        database.executescript(done(*few).stdout)
    columns = [row[1] for row in database.execute("PRAGMA table_info(llama_bench)")]
    assert columns == FIELDS
    found = database.execute("SELECT n_prompt, n_gen, avg_ts > 0 FROM llama_bench").fetchall()
    assert found == [(4, 0, 1), (0, 2, 1)] * 2


def test_the_table_has_the_columns_that_vary(path: Path) -> None:
    few = ("bench", path, "-p", "4", "-n", "0", *ONCE)
    head = done(*few).stdout.splitlines()[0]
    assert head.replace(" ", "") == "|model|size|params|backend|threads|test|t/s|"
    varied = done(*few[:-2], "-ub", "2,4", "-ctk", "f32", "-d", "2")
    head = varied.stdout.splitlines()[0]
    assert head.replace(" ", "") == "|model|size|params|backend|threads|n_ubatch|type_k|test|t/s|"
    assert "the usual options (n_ubatch, type_k)" in varied.stderr  # threads were not given


def test_a_report_begins_with_the_speeds(path: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    row = rows_of(path, "-p", "4", "-n", "0", *ONCE, "--html", report)[0]
    packed = re.findall(r'">([A-Za-z0-9+/=]{1000,})<', report.read_text())
    text = json.loads(gzip.decompress(base64.b64decode(packed[0])))["text"]
    assert text[0] == f"pp4: {row['avg_ts']:.2f} ± 0.00 tokens/s" and text[1] == ""


def test_several_sequences_at_a_time(path: Path) -> None:
    """llama-batched-bench's line, columns and fields."""
    line = ("-t", "1", "-c", "2048", "-b", "8", "-ub", "4", "-npp", "6,12", "-ntg", "3,0")
    printed = done("bench", path, *line, "-npl", "1,2,3", "--output-format", "jsonl").stdout
    rows = [json.loads(row) for row in printed.splitlines()]
    sizes = [(p, n, b) for p in (6, 12) for n in (3, 0) for b in (1, 2, 3)]
    assert [(r["pp"], r["tg"], r["pl"]) for r in rows] == sizes
    for row in rows:
        read, written = row["pp"] * row["pl"], row["tg"] * row["pl"]
        assert row["n_kv"] == read + written
        assert row["speed_pp"] * row["t_pp"] == pytest.approx(read)
        assert row["speed_tg"] * row["t_tg"] == pytest.approx(written)
        assert row["speed"] * (row["t_pp"] + row["t_tg"]) == pytest.approx(read + written)
    shared = done("bench", path, "-t", "1", "-npp", "6", "-ntg", "3", "-npl", "4", "-pps").stdout
    cells = shared.splitlines()[-1].split("|")[1:-1]
    assert [int(cell) for cell in cells[:4]] == [6, 3, 4, 6 + 3 * 4]
    assert len(shared.splitlines()[0].split("|")) == len(cells) + 2
    for option in (("--tasks",), ("--profile",), ("-p", "8"), ("-n", "8"), ("-d", "8")):
        said = weft("bench", path, "-npl", "1", *option).stderr
        assert f"{option[0]} is of tests with -p and -n; leave out -npl" in said
    refused = weft("bench", path, "-npl", "0")
    assert refused.returncode == 1 and "-npl and -npp must be at least 1" in refused.stderr


def test_tasks_are_listed_behind_the_table(path: Path) -> None:
    done = weft("bench", path, "-p", "8", "-n", "2", "-r", "1", "-t", "2", "--tasks")
    _, prompt, token = re.split(r"^\w+: threads waited ", done.stdout, flags=re.M)
    for listing in (prompt, token):
        assert listing.splitlines()[1].split()[:3] == ["stage", "step", "units"]
        assert "  MUL_MAT " in listing and "  FLASH_ATTN_EXT " in listing
    other = weft("bench", path, "-p", "8", "-n", "0", "-r", "1", "--tasks", "-o", "csv")
    assert "pp8: threads waited" in other.stderr and "waited" not in other.stdout


def test_narrow_terminals_lose_columns(path: Path) -> None:
    row = rows_of(path, "-p", "4", "-n", "0", "-d", "2", *ONCE)[0]
    for screen, columns in ((None, 7), (120, 7), (80, 6), (70, 5), (20, 4)):
        out = io.StringIO()
        printer = make_printer(Output.md, out, ["n_threads"], {"test": 8}, screen)
        printer.row(row)
        lines = out.getvalue().splitlines()
        assert len({len(line) for line in lines}) == 1 and lines[0].count("|") == columns + 1
        assert len(lines[0]) <= (screen or 200) or screen == 20
        assert lines[0].split("|")[-3:-1] == ["     test ", "              t/s "]


def test_a_second_format_goes_to_stderr(path: Path) -> None:
    process = done("bench", path, "-p", "4", "-n", "0", *ONCE, "-oe", "jsonl")
    assert json.loads(process.stderr)["test"] == "pp4" and process.stdout.startswith("| model")


def test_what_was_measured_is_printed_before_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    run = Runner.run

    def fails(self: Runner, test: BenchTest, *args: Any) -> int:
        measured.append(test.name)
        if test.name == "tg2":
            raise OSError("gone")
        return run(self, test, *args)

    monkeypatch.setattr(Runner, "run", fails)
    process = weft("bench", path, "-p", "4", "-n", "2", *ONCE, "-o", "json")
    assert process.returncode == 1 and [r["test"] for r in json.loads(process.stdout)] == ["pp4"]
    process = weft("bench", path, "-p", "0", "-n", "2", *ONCE, "-o", "json")
    assert process.returncode == 1 and json.loads(process.stdout) == []


def test_progress_is_a_line_for_each_run(path: Path) -> None:
    process = done(
        "bench", path, "-p", "4", "-n", "2", "-r", "2", "-t", "1", "-d", "3", "--progress"
    )
    lines = process.stderr.splitlines()
    assert lines[0] == "weft bench: 1/2: computing 3 tokens of depth"
    assert lines[1] == "weft bench: 1/2: measuring pp4 @ d3: warming up"
    assert lines[-1] == "weft bench: 2/2: measuring tg2 @ d3: 2 of 2"


def test_devices_are_listed(path: Path) -> None:
    listed = done("devices").stdout
    assert done("bench", "--list-devices").stdout == listed
    assert done("run", "--list-devices").stdout == listed
    assert done("serve", "--list-devices").stdout == listed
