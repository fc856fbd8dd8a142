"""`benchmarks/gpu.py`: parts with a time limit, the exam in turns, counts, registers."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_counts, gpu_parts, gpu_registers
from benchmarks.make_model import Shape
from release.cubins import compiler
from weft.backends.cases import all_cases
from weft.llm import Model
from weft.llm.planning.stage_report import token_bytes
from weft.schedule.profile import load_profile


def part(program: str, seconds: float) -> gpu.Done:
    """A part that runs a Python program."""
    return gpu.run_part(gpu.Part("a part", "", seconds), [sys.executable, "-c", program])


def test_what_does_not_finish_is_named_and_what_it_found_is_kept() -> None:
    late = part("print('{\"a\": 1}', flush=True); print('{\"b', end='', flush=True)\n"
                "import time; time.sleep(600)", 3)  # fmt: skip
    assert late.records == [{"a": 1}] and late.ended == "its 3 s were over"
    assert gpu.run_part(gpu.Part("later", "", 0.0)).ended == "not begun: no time was left"


def test_a_part_that_fails_says_why() -> None:
    failed = part(
        'print(\'{"test": "tg4", "speed": 2}\'); raise SystemExit(\'the driver is gone\')', 60
    )
    assert len(failed.records) == 1 and failed.ended == "ended with 1: the driver is gone"
    assert "the driver is gone" in gpu.lines(failed)[0]
    assert part("print('{}')", 60).ended == ""


def test_the_exam_takes_every_op_before_a_second_case_of_one() -> None:
    cases = all_cases()
    order = gpu_parts.in_turns(cases)
    ops = {case.op for case in cases}
    assert {case.op for case in order[: len(ops)]} == ops
    assert sorted(map(id, order)) == sorted(map(id, cases))


def test_the_exam_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in all_cases() if case.op in ("ADD", "MUL")][:3]
    assert [r["result"] for r in gpu_parts.exam("cpu", cases)] == ["ok"] * 3
    right = gpu_parts.run_case
    monkeypatch.setattr(
        gpu_parts, "run_case",
        lambda case, backend: right(case, backend) * (1 if backend.name == "reference" else 2),
    )  # fmt: skip
    assert all("NMSE" in r["result"] for r in gpu_parts.exam("cpu", cases))


def test_speeds_have_every_test_and_the_share_of_the_bandwidth(tmp_path: Path) -> None:
    path = gpu_parts.model_file(tmp_path, "q4_0", gpu.TINY)
    rows = list(gpu_parts.speeds(path, "reference", 1e9, gpu.DRY))
    assert [row["test"] for row in rows] == ["tg4", "pp16", "tg4 @ d24", "pp24", "2 texts"]
    assert all(row["speed"] > 0 for row in rows)
    model = Model.open(path)
    cells = 2 * 2 * 2 * 1 * 2 * 64  # 2 cells of keys and values, 1 layer of 2 heads of 64, f16
    read = gpu_parts.weight_bytes(model) + cells
    assert rows[0]["share"] == pytest.approx(rows[0]["speed"] * read / 1e9)
    assert "share" not in rows[1]


def test_the_dry_run_on_a_device(tmp_path: Path) -> None:
    """The whole script, with a device whose kernels need no compiler."""
    out = tmp_path / "gpu.json"
    options = ["--dry", "--devices", "reference", "--seconds", "600", "--exam-seconds", "200"]
    command = [sys.executable, gpu.__file__, *options, "--speed-seconds", "200", "--cases", "4"]
    folder = ["--dir", str(tmp_path), "--json", str(out)]
    done = subprocess.run([*command, *folder], capture_output=True, text=True, check=True)
    report = json.loads(out.read_text())
    assert "all parts finished" in done.stdout and report["unfinished"] == []
    exam, speeds = report["parts"]
    assert [r["result"] for r in exam["records"]] == ["ok"] * 4
    assert len(speeds["records"]) == 5 and "tokens/s" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formats", "q4_9"], "--formats has q4_9; choose from f32"),
        (["--shapes", "9b"], "--shapes has 9b; choose from 1b"),
        (["--seconds", "0"], "--seconds is 0.0; give more than 0"),
        (["--cases", "0"], "--cases is 0; it must be 1 or more"),
        (["--n-long", "0"], "--n-long is 0; it must be 1 or more"),
    ],
)
def test_options_that_cannot_be(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gpu.arguments(words)
    assert message in capsys.readouterr().err


# ---- counts --------------------------------------------------------------------------------------


def test_counts_are_those_of_the_plan(tmp_path: Path) -> None:
    shape = Shape(256, 2, 4, 2, 768, n_vocab=1000, n_ctx=1024)
    path = gpu_counts.paper_file(tmp_path, shape, "q8_0")
    plan = gpu_counts.plan_on(path, load_profile("mac-m2"), 64)
    token = gpu_counts.kernels(plan, 1, 1)
    embedding = 256 * 34 / 32 + 4 + 256 * 4  # the row of a token stays on the cpu
    assert sum(k.nbytes for k in token) == pytest.approx(token_bytes(plan), abs=2 * embedding)
    attention, ffn = 2 * 256 * 256 + 2 * 256 * 128, 3 * 256 * 768
    products = [k for k in gpu_counts.kernels(plan, 64, 64) if k.name == "MUL_MAT q8_0"]
    assert [k.n for k in products] == [2 * 7 + 1]
    last = ffn + 256 * 1000  # behind the last attention, of the token with logits
    assert products[0].flops == 2 * (64 * (2 * attention + ffn) + last)


def test_the_tables_are_for_every_machine_and_say_what_limits() -> None:
    counts = gpu_counts.on_paper("1B, q4_0", 128)
    weights = sum(k.nbytes for k in counts.token if k.op == "MUL_MAT")
    assert weights > 0.9 * sum(k.nbytes for k in counts.token)
    for machine in gpu_counts.MACHINES:
        device = load_profile(machine).device("gpu")
        assert device is not None
        assert all(k.memory_seconds(device) > k.flops_seconds(device) for k in counts.token)
        limited = {
            k.op for k in counts.prompt if k.flops_seconds(device) > k.memory_seconds(device)
        }
        assert "MUL_MAT" in limited and limited <= {"MUL_MAT", "FLASH_ATTN_EXT"}
    rows = gpu_counts.speed_table([counts], gpu_counts.MACHINES).splitlines()
    assert [row.split("`")[1] for row in rows[2:]] == list(gpu_counts.MACHINES)
    m2 = load_profile("mac-m2").device("gpu")
    assert m2 is not None
    per_second = float(rows[2].split("|")[4])
    assert per_second == pytest.approx(1e11 / sum(k.nbytes for k in counts.token), rel=0.005)
    assert "| MUL_MAT q4_0 | 112 |" in gpu_counts.kernel_table(counts, ["mac-m2"])


# ---- registers -----------------------------------------------------------------------------------


@pytest.mark.skipif(compiler() is None, reason="no compiler for GPUs")
def test_registers_of_a_kernel() -> None:
    (use,) = islice(gpu_registers.uses((80,), ("norm",)), 2)
    assert use.kernel == "norm_bytes X=f32" and use.architecture == 80
    assert 0 < use.registers <= 64 and use.spilled == 0
    assert use.threads % 32 == 0 and 0 < use.threads <= 1024
    assert use.occupancy == use.blocks * use.threads / 32 / 64
    text = gpu_registers.table([use])
    assert f"| `norm_bytes X=f32` | {use.threads} | {use.shared} B | {use.registers}, " in text
