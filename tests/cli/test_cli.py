"""The commands as a user types them: exit codes, what goes to stdout, messages for mistakes. Those
that are not about a process of their own run in this one."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import Done, weft
from weft.backends.cases import all_cases
from weft.backends.cpu.record import best_target
from weft.native import _native

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


def process_of(
    *args: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same as a process, as the kernels are chosen once in each."""
    command = [sys.executable, "-m", "weft", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def ok(*args: str | Path) -> str:
    process = weft(*args)
    assert process.returncode == 0, process.stderr
    return process.stdout


def refused(*args: str | Path, code: int = 1) -> str:
    process = weft(*args)
    assert process.returncode == code, (process.stdout, process.stderr)
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith("error: ") or "\nerror: " in process.stderr
    return process.stderr


def test_run_prints_text_to_stdout_and_the_plan_to_stderr() -> None:
    process = process_of(
        "run", MODEL, "-p", "hello", "-n", "8", "--temp", "0", "-t", "2", "-c", "64"
    )
    assert process.returncode == 0, process.stderr
    for part in ("placement: cpu", "memory: weights", "tokens/s"):
        assert part in process.stderr
    assert "all " in process.stderr and "because" not in process.stderr  # there is one device
    assert "CPU_R" not in process.stderr, "repacked weights are weights"
    quiet = weft("run", MODEL, "-p", "hello", "-n", "8", "--temp", "0", "-c", "64", "-q")
    assert quiet.stderr == ""
    assert quiet.stdout == process.stdout
    shown = weft("run", MODEL, "hello", "-n", "8", "--temp", "0", "-c", "64", "--display-prompt")
    assert shown.stdout == "hello" + process.stdout


def test_run_repeats_with_a_seed() -> None:
    args = ("run", MODEL, "-p", "x", "-n", "12", "--temp", "1.5", "--seed", "7", "-c", "64", "-q")
    assert ok(*args) == ok(*args)


def test_a_full_context() -> None:
    args = ("run", MODEL, "-p", "hello", "-n", "40", "--temp", "0", "-c", "16", "--ignore-eos")
    ended, shifted = weft(*args), weft(*args, "--context-shift", "--keep", "2")
    assert "(context)" in ended.stderr and "generation: 40 tokens" in shifted.stderr
    assert shifted.stdout.startswith(ended.stdout.rstrip("\n")[:-2])
    assert "--keep is 15" in refused(*args, "--context-shift", "--keep", "15")


def test_inspect() -> None:
    text = ok("inspect", MODEL)
    for part in ("general.architecture", "token_embd.weight", "320 x 64", "bits per weight"):
        assert part in text
    data = json.loads(ok("inspect", MODEL, "--json"))
    assert data["architecture"] == "llama" and len(data["tensors"]) == data["totals"][0]["tensors"]


def test_devices() -> None:
    text = ok("devices")
    assert "kernel targets: baseline" in text and "reference" in text
    data = json.loads(ok("devices", "--json"))
    assert data["cpu"]["targets"][data["cpu"]["target"]] > 0
    missing = [d for d in data["devices"] if not d["available"]]
    assert all(d["why_not"] for d in missing)


def test_explain() -> None:
    text = ok("explain", MODEL, "-c", "32")
    assert "weight token_embd.weight lives in" in text and "lower bound" in text
    data = json.loads(ok("explain", MODEL, "-c", "32", "--json"))
    assert data["splits"] and {row["buffer"] for row in data["memory"]} >= {"weights", "compute"}


def test_bench_formats() -> None:
    args = ("bench", MODEL, "-p", "16", "-n", "4", "-r", "2")
    table = ok(*args)
    assert table.splitlines()[0].split("|")[1:-1][-1].strip() == "t/s"
    assert "pp16" in table and "tg4" in table
    rows = json.loads(ok(*args, "-o", "json"))
    assert [r["test"] for r in rows] == ["pp16", "tg4"] and all(r["avg_ts"] > 0 for r in rows)
    lines = list(csv.DictReader(io.StringIO(ok(*args, "-o", "csv"))))
    assert len(lines) == 2 and float(lines[0]["avg_ts"]) > 0


def test_bench_of_kernels() -> None:
    args = ("bench", "--kernel", "-r", "1", "--shape", "64x256", "--columns", "1,5")
    rows = json.loads(ok(*args, "--formats", "tq2_0,q4_0,f32", "-o", "json"))
    measured = {(r["format"], r["columns"], r["method"]) for r in rows}
    assert all(r["us"] > 0 and r["shape"] == "64x256" for r in rows)
    assert {("tq2_0", 1, "multiply, rows"), ("f32", 1, "multiply, rows")} <= measured
    has_tables = bool(_native.lookup_types(_native.best_target()))
    assert (("tq2_0", 5, "table") in measured) == has_tables
    assert ("q4_0", 1, "table") not in measured
    assert "GOP/s" in ok(*args, "--formats", "i2_s")
    assert "no format 'q9'" in refused(*args, "--formats", "q9")
    assert "multiple of 256" in refused("bench", "--kernel", "--shape", "64x32")
    assert "ROWSxDEPTH" in refused("bench", "--kernel", "--shape", "64")
    assert "at least 1" in refused("bench", "--kernel", "--columns", "0")
    assert "takes no model" in refused("bench", MODEL, "--kernel")
    assert "needs a model" in refused("bench")


@pytest.mark.parametrize("dtype", ["f16", "Q8_0", "q4_0", "q6_K", "i2_s"])
def test_quantized_models_run(tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out.gguf"
    ok("quantize", MODEL, out, dtype)
    assert out.stat().st_size < MODEL.stat().st_size
    ok("run", out, "-p", "hello", "-n", "4", "--temp", "0", "-c", "32", "-q")


def test_quantize_refuses_its_own_input(tmp_path: Path) -> None:
    assert "the file being read" in refused("quantize", MODEL, MODEL, "q8_0")
    assert "q9" in refused("quantize", MODEL, tmp_path / "x.gguf", "q9")
    assert not list(tmp_path.iterdir())


def test_mistakes_get_a_sentence(tmp_path: Path) -> None:
    assert "no such file" in refused("run", tmp_path / "none.gguf", "-p", "x")
    (tmp_path / "link.gguf").symlink_to("blob")
    assert "is a link to blob" in refused("run", tmp_path / "link.gguf", "-p", "x")
    text = tmp_path / "text.gguf"
    text.write_text("<html>not a model</html>")
    assert "not a GGUF file" in refused("run", text, "-p", "x")
    assert "known backends" in refused("run", MODEL, "-p", "x", "--devices", "gpu7")
    long_prompt = refused("run", MODEL, "-p", "word " * 200, "-c", "32")
    assert "the context holds 32" in long_prompt
    memory = refused("run", MODEL, "-p", "x", "-c", "2000000000")
    assert "are needed" in memory and "are available" in memory
    assert "there is no text to continue" in refused("run", MODEL)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    from weft.frontends.gguf.writer import write_gguf

    path = tmp_path / "model.gguf"
    write_gguf(path, {"general.architecture": "quux"}, [])
    message = refused("run", path, "-p", "x")
    assert "'quux'" in message and "llama" in message


def test_devices_ops() -> None:
    text = ok("devices", "--ops", "--devices", "cpu,reference")
    assert "MUL_MAT" in text and "what cpu refuses" in text
    data = json.loads(ok("devices", "--ops", "--devices", "reference", "--json"))
    assert data["devices"] == ["reference"] and not data["uncovered"]
    assert "belong to --ops" in refused("devices", "--markdown")


def test_devices_peaks() -> None:
    assert "peaks with 1 thread (" in ok("devices", "--peaks", "-t", "1")
    data = json.loads(ok("devices", "--peaks", "-t", "1", "--json"))
    assert data["cpu"]["peaks"]["read"] > 0


def test_devices_say_which_target_and_why(tmp_path: Path) -> None:
    env = {"WEFT_CACHE": str(tmp_path)}
    assert "not checked, see weft doctor" in process_of("devices", env=env).stdout
    assert (
        "WEFT_TARGET says so" in process_of("devices", env=env | {"WEFT_TARGET": "baseline"}).stdout
    )
    said = process_of("devices", env=env | {"WEFT_TARGET": "avx9000"}).stdout
    assert "in use: none (no kernel target 'avx9000'; this build has" in said


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.part("targets"))])
def test_doctor_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool) -> None:
    """The target is checked with every case or, in this process, with some of them."""
    env = {"WEFT_CACHE": str(tmp_path)}
    command = ("doctor", "--target", "baseline", "-t", "1")
    if every:
        process: Done | subprocess.CompletedProcess[str] = process_of(*command, env=env)
    else:
        some = all_cases()[::40]
        with monkeypatch.context() as patch:
            patch.setattr("weft.execute.doctor.all_cases", lambda: some)
            patch.setattr("weft.backends.cpu.record.record_file", lambda: tmp_path / "targets.json")
            process = weft(*command)
        best_target.cache_clear()  # it is of the record in `tmp_path`
    assert process.returncode == 0 and process.stdout.startswith("baseline: ok, "), process.stderr
    file = tmp_path / "targets.json"
    record = json.loads(file.read_text())
    (machine,) = record.values()
    assert machine["baseline"]["failed"] == []
    for target in json.loads(process_of("devices", "--json", env=env).stdout)["cpu"]["targets"]:
        machine[target] = {"failed": ["ADD f32 f32"], "checked": 1, "date": "2020-01-01"}
    file.write_text(json.dumps(record))
    failed = process_of("run", MODEL, "-p", "x", env=env)
    assert failed.returncode == 1 and "every kernel target failed its check" in failed.stderr
    machine["baseline"]["failed"] = []
    file.write_text(json.dumps(record))
    warned = process_of("devices", env=env)
    assert warned.returncode == 0 and "in use: baseline (" in warned.stdout
    wrong = process_of("doctor", "--target", "none", env=env)
    assert wrong.returncode == 1 and "cannot run kernel target 'none'" in wrong.stderr


def test_bench_profile_says_what_to_change() -> None:
    few = ("bench", MODEL, "-p", "16", "-n", "1", "-ub", "8", "-r", "1", "-t", "1", "--profile")
    alone = ok(*few)
    assert alone.count("what devices waited for") == 0
    assert alone.count("one device did all the work: it waited for no other") == 2
    assert "more copies (--n-copies) would hide nothing" in " ".join(alone.split())
    several = " ".join(ok(*few, "--devices", "reference,cpu", "-ngl", "1").split())
    assert several.count("what devices waited for") == 2
    assert "from split 1 on reference" in several and "reference has the most work" in several
    assert several.endswith("more copies would hide nothing, as single tokens depend on each other")


def test_bench_profile(tmp_path: Path) -> None:
    args = ("bench", MODEL, "-p", "8", "-n", "2", "-r", "1", "-t", "1", "--profile")
    text = ok(*args, "--slowest", "3", "--trace", tmp_path / "trace.json")
    for part in ("pp8: 1 run", "tg2: 2 runs", "peaks with", "MUL_MAT", "of roof", "the slowest"):
        assert part in text
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"pp8 run 1", "tg2 run 1", "tg2 run 2"} <= {e["name"] for e in events}
    rows = json.loads(ok(*args, "-o", "json"))
    assert [r["profile"]["runs"] for r in rows] == [1, 2]
    assert "trace" in refused(*args, "--trace", tmp_path / "none" / "trace.json")


@pytest.mark.parametrize("asked", [None, "3"])
def test_numpy_starts_no_threads_unless_asked_to(asked: str | None) -> None:
    """They would spin while weft starts."""
    code = """if True:
        import atexit, os, sys
        from weft.cli import main
        tasks = "/proc/self/task"
        count = lambda: len(os.listdir(tasks)) if os.path.exists(tasks) else 1
        atexit.register(lambda: print(os.environ["OPENBLAS_NUM_THREADS"], count()))
        main()"""
    command = [sys.executable, "-c", code, "inspect", str(MODEL)]
    around = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    around |= {"OPENBLAS_NUM_THREADS": asked} if asked else {}
    run = subprocess.run(command, capture_output=True, text=True, env=around)
    threads = run.stdout.splitlines()[-1].split()
    assert threads == ["1", "1"] if asked is None else threads[0] == asked
