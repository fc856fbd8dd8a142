"""`weft explain`, `diff`, `calibrate` and the placement options, as a user types them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import MODEL, ok, refused, weft
from tests.serve.server import DEMO as DEMO_FILE
from weft.allocate import allocate
from weft.flags import FLAGS
from weft.llm import Model
from weft.llm.planning.prepare import prepare
from weft.schedule.profile import load_profile

DEMO = str(DEMO_FILE)
SPLIT = ("explain", MODEL, "-c", "64", "--devices", "reference,cpu", "-ngl", "1")


def plan(*args: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(ok(*SPLIT, "--json", *args))
    return data


def test_layers_that_repeat_are_folded() -> None:
    whole, folded = (ok("explain", DEMO, *more) for more in (("--nodes",), ()))
    rows = [line for line in whole.splitlines() if re.match(r" +\d+  ", line)]
    left = [line for line in folded.splitlines() if re.match(r" +\d+  ", line)]
    fold = re.search(r"(\d+)\.\.(\d+): the (\d+) nodes before, (\d+) more times", folded)
    assert fold is not None
    first, last, period, times = map(int, fold.groups())
    assert last - first + 1 == period * times == len(rows) - len(left)
    assert left == rows[:first] + rows[last + 1 :] and f" {first - 1}  l_out-0 " in folded
    steps = re.search(r"^(\d+) ops run", folded, re.M)
    said = weft("run", DEMO, "-p", "a", "-n", "1").stderr
    assert steps is not None and f"all {steps[1]} ops" in said


def test_splits_that_repeat_are_folded() -> None:
    machine = ("explain", DEMO, "--machine", "desktop-rtx4090", "--devices", "gpu,cpu", "-ngl", "1")
    for more in ((), ("--brief",)):
        whole, folded = (ok(*machine, *more, *nodes) for nodes in (("--nodes",), ()))
        begun = [set(re.findall(r"^split (\d+):", text, re.M)) for text in (whole, folded)]
        fold = re.search(
            r"^splits (\d+)\.\.(\d+): the (\d+) splits before, (\d+) more", folded, re.M
        )
        assert fold is not None
        first, last, period, times = map(int, fold.groups())
        assert last - first + 1 == period * times and times > 1
        assert begun[0] - begun[1] == {str(n) for n in range(first, last + 1)}
        assert "splits " not in re.sub(
            r"total: \d+ splits|in \d+ splits|starting splits", "", whole
        )


def test_it_opens_with_sentences_and_a_picture() -> None:
    what, fits, where, speed, _, bar, parts = ok("explain", DEMO, "-c", "64").splitlines()[:7]
    data = json.loads(ok("explain", DEMO, "-c", "64", "--json"))
    assert what == data["overview"]["words"][0] and what.startswith("weft-demo.gguf: llama ")
    assert fits.startswith("Fits: needs ") and "with a context of 64 tokens." in fits
    assert where == f"Runs on cpu: {data['totals']['ops']} ops in 1 split."
    assert speed.startswith("Speed: ")
    assert bar.startswith("CPU  █") and "▓ cache" in parts
    said = weft("run", DEMO, "-p", "a", "-n", "1").stderr
    assert f"all {data['totals']['ops']} ops" in said


def test_what_does_not_fit_is_drawn_before_the_error() -> None:
    process = weft("explain", DEMO, "--memory", "cpu=1MiB")
    assert process.returncode == 1 and "not enough CPU memory" in process.stderr
    assert "\nDoes not fit: needs " in process.stdout and "█" in process.stdout
    assert "total: " not in process.stdout
    for form in ("--json", "--dot"):
        assert weft("explain", DEMO, "--memory", "cpu=1MiB", form).stdout == ""
    assert "Does not fit" not in weft("explain", DEMO, "--memory", "cpu=1MiB", "--fit").stdout


def test_the_whole_table() -> None:
    text = ok(*SPLIT, "--nodes")
    data = plan()
    for split in data["splits"]:
        assert f"split {split['split']}: {split['device']}, node" in text
        for entry in split["inputs"]:
            assert f"copies {entry['name']} from {entry['from']} (" in text
        for n in split["nodes"]:
            assert any(
                n["name"] in line and n["device"] in line and n["why"] in line
                for line in text.splitlines()
            ), n
    totals = data["totals"]
    assert f"total: {totals['splits']} splits, {totals['nodes']} nodes" in text
    for row in data["memory"]:
        assert f"{row['bytes']:,}" in text
    assert text.count("lower bound") == 2
    assert max(len(line) for line in text.splitlines()) > 100  # nothing is broken when piped


def test_brief() -> None:
    text = ok(*SPLIT, "--brief")
    assert "split 2: cpu" in text and "MUL_MAT" not in text


def test_json_has_what_a_plan_file_has(tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    process = weft(*SPLIT, "--save", saved, "--brief")
    assert process.returncode == 0 and f"plan saved to {saved}" in process.stderr
    data = json.loads(saved.read_text())
    assert data["options"]["n_ctx"] == 64 and data["n_gpu_layers"] == 1
    assert data["splits"] == plan()["splits"]
    assert {row["buffer"] for row in data["memory"]} == {"weights", "cache", "compute"}


def test_run_and_bench_follow_a_plan(tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    ok(*SPLIT, "--save", saved)
    process = weft(
        "run", MODEL, "--plan", saved, "-p", "hello", "-n", "4", "--temp", "0", "-t", "1"
    )
    assert process.returncode == 0, process.stderr
    assert "placement: reference: 1 split" in process.stderr
    assert "because the plan file says so" in process.stderr
    alone = ok("run", MODEL, "-p", "hello", "-n", "4", "--temp", "0", "-c", "64", "-q", "-t", "1")
    assert process.stdout == alone
    text = ok("bench", MODEL, "--plan", saved, "-p", "4", "-n", "2", "-r", "1", "-o", "csv")
    assert '"reference,cpu"' in text
    message = refused("run", MODEL, "--plan", saved, "-c", "32", "-p", "x")
    assert "was made with -c = 64, not 32" in message


def test_why_one_node() -> None:
    text = ok(*SPLIT, "--why", "l_out-0")
    assert text.startswith("l_out-0: ADD f32[") and "because (" in text
    assert "reference runs it, too; it would read copies of" in text
    assert "no tensor called 'l_out'; did you mean l_out-" in refused(*SPLIT, "--why", "l_out")


def test_why_says_where_the_bytes_are() -> None:
    """The place of a node is the plan's own, and beside it stands the one of ggml's allocator."""
    made = prepare(Model.open(MODEL), n_ctx=64, devices=["reference", "cpu"], n_gpu_layers=1)
    schedule, allocation = made.plan.schedule, made.plan.allocation
    theirs = allocate(schedule, "ggml").place
    placed = [t for t in map(schedule.final_of, schedule.graph.nodes) if t in allocation.place]
    assert len(placed) > 20
    for tensor in placed:
        at = allocation.place[tensor]
        memory = allocation.arenas[at.arena].buffer_type.name
        (line,) = [
            line for line in made.plan.why(tensor.name).splitlines()
            if f"compute memory at byte {at.offset:,}, from {tensor.name} to " in line
        ]  # fmt: skip
        assert line.startswith(f"{tensor.name} ({tensor.op.name}): ") and memory in line
        assert f"{at.size:,} B of " in line
        assert line.endswith(f"; ggml's allocator: byte {theirs[tensor].offset:,}")
    assert "compute memory" not in made.plan.why("token_embd.weight")
    assert "embd (GET_ROWS): " in ok(*SPLIT, "--why", "embd")


def test_bytes_of_the_reference() -> None:
    made = prepare(Model.open(MODEL), n_ctx=64, devices=["reference", "cpu"], n_gpu_layers=1)
    sizes = {
        arena.buffer_type.name: arena.size
        for arena in allocate(made.plan.schedule, "ggml").arenas
    }  # fmt: skip
    rows = {r["memory"]: r for r in made.memory_rows() if r["buffer"] == "compute"}
    assert {memory: row["ggml"] for memory, row in rows.items()} == sizes and len(sizes) == 2
    assert all(row["ggml"] > row["bytes"] for row in rows.values())
    assert ok(*SPLIT, "--brief").count("; ggml's allocator takes ") == 2
    # a plan without places, of which the report makes many, has no such figure
    assert made.again is not None
    assert not any("ggml" in row for row in made.again(32, {"n_ubatch": 32}).memory_rows())


def test_drawings() -> None:
    assert ok(*SPLIT, "--mermaid").startswith("flowchart TD\n  s0[")
    assert ok(*SPLIT, "--dot").startswith("digraph splits {")
    assert "only one of" in refused(*SPLIT, "--dot", "--json")


def test_globs_and_memory() -> None:
    data = plan("--place", "blk.*.ffn_*=cpu,blk.2.*=reference")
    devices = {w["name"]: w["device"] for w in data["weights"]}
    last = max(int(n.split(".")[1]) for n in devices if n.startswith("blk"))
    assert devices[f"blk.{last}.ffn_up.weight"] == "cpu"
    assert devices[f"blk.{last}.attn_q.weight"] == "reference"
    assert "no weight is called like 'nope'" in refused(*SPLIT, "--place", "nope=cpu")
    assert "write NAME=VALUE" in refused(*SPLIT, "--place", "nope")
    fitted = json.loads(ok(*SPLIT[:-2], "--fit", "--memory", "reference=0.5MB", "--json"))
    used = sum(r["bytes"] for r in fitted["memory"] if r["memory"] == "Reference")
    assert used <= 500_000
    assert "'many' is not a size" in refused(*SPLIT[:-2], "--memory", "reference=many")


def test_diff(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    ok(*SPLIT, "--save", a)
    ok(*SPLIT[:-1], "2", "--save", b)
    assert ok("diff", a, a) == ""
    differ = weft("diff", a, b)
    assert differ.returncode == 1 and not differ.stderr
    text = differ.stdout
    assert "ffn_up.weight: cpu -> reference memory" in text
    assert "moved: " in text and " nodes from cpu to reference" in text
    assert "weights in Reference memory: " in text
    a.write_text("{}")
    assert "the first is not a plan of format" in refused("diff", a, b, code=2)
    assert "No such file" in refused("diff", tmp_path / "c.json", b, code=2)
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    assert "nested too deeply" in refused("diff", deep, b, code=2)
    a.write_text("{")
    assert "not JSON" in refused("diff", a, b, code=2)


@pytest.mark.parametrize(
    "machine", ["desktop-rtx4090", "mac-m2-ultra", "server-2xa100", "laptop-780m"]
)
def test_a_machine_one_does_not_have(machine: str) -> None:
    text = ok("explain", MODEL, "-c", "64", "--machine", machine, "--brief")
    names = [d.name for d in load_profile(machine).devices]
    assert "\ndevices: " + names[0] in text
    assert "predicted: " in text and " on cpu" in text
    faster = json.loads(
        ok("explain", MODEL, "-c", "64", "--machine", machine, "--policy", "cost", "--json")
    )
    ruled = json.loads(ok("explain", MODEL, "-c", "64", "--machine", machine, "--json"))
    assert faster["predicted"]["seconds"] <= ruled["predicted"]["seconds"]


def test_machines_that_cannot_be() -> None:
    assert "or one of desktop-rtx4060" in refused("explain", MODEL, "--machine", "nope")
    args = ("explain", MODEL, "--machine", "mac-m2-ultra")
    assert "has no device tpu; it has gpu, cpu" in refused(*args, "--devices", "tpu,cpu")
    assert "leave out --speeds" in refused(*args, "--profile", "mac-m2-ultra")
    assert "needs a machine profile" in refused("explain", MODEL, "--policy", "cost")


def test_layers_are_counted_on_the_machine_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cli.loading.FLAGS", replace(FLAGS, devices="reference,cpu"))
    paper = ("explain", DEMO, "--machine", "desktop-rtx4090", "--json")
    for more in ((), ("--devices", "gpu,cpu"), ("-t", "999")):
        process = weft(*paper, "-ngl", "2", *more)
        assert json.loads(process.stdout)["n_gpu_layers"] == 2, process.stderr
        assert "changes nothing" not in process.stderr and "processors" not in process.stderr
    assert json.loads(ok(*paper, "-ngl", "0"))["n_gpu_layers"] == 0
    assert json.loads(ok(*paper, "-ngl", "-1"))["n_gpu_layers"] == 6  # all five, and the output
    shared = weft("explain", DEMO, "--machine", "mac-m2-ultra", "-ngl", "2", "--brief")
    assert "-ngl 2 changes nothing: no device of gpu, cpu has memory of its own" in shared.stderr
    several = ("--machines", "desktop-rtx4090,mac-m2-ultra", "-ngl", "2")
    process = weft("explain", DEMO, *several, "--brief")
    assert "changes nothing" not in process.stderr and "(2 of 6 layers" in process.stdout


def test_calibrate_and_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.execute.measure._BEYOND_CACHES", 1 << 20)  # no figure is looked at
    monkeypatch.setattr("weft.execute.measure._ROUNDS", 1)
    monkeypatch.setattr("weft.cli.console.LINE_SECONDS", float("inf"))
    file = tmp_path / "m.toml"
    process = weft(
        "calibrate", "--devices", "reference,cpu", "--seconds", "0.001", "-t", "1", "-o", file
    )
    assert process.returncode == 0, process.stderr
    assert f"speeds saved to {file}" in process.stderr and "measuring" not in process.stderr
    first, _, head, *rows = process.stderr.splitlines()[:5]
    assert first.startswith("devices to measure: reference, cpu; after 60 s (--limit) on one of")
    assert head.startswith("device") and [r.split()[0] for r in rows] == ["reference", "cpu"]
    profile = load_profile(file)
    for device in profile.devices:
        assert device.bandwidth > 1e6 and device.launch > 0
        assert {"f32", "f16", "q8_0", "q4_0", "q4_K", "vector", "default"} <= set(device.flops)
        assert not device.refuses
    assert [d.offload_from for d in profile.devices] == [0, None]
    assert profile.link("CPU", "Reference").bandwidth > 1e6
    text = ok(*SPLIT[:-2], "--policy", "cost", "--profile", file, "--brief")
    assert "predicted: " in text


def test_tokens_choose_the_plan_of_a_batch_size() -> None:
    assert "split 0" in ok(*SPLIT, "--tokens", "1", "--brief")
    assert "batches have 1 to 64 tokens, not 65" in refused(*SPLIT, "--tokens", "65")


@pytest.mark.parametrize(
    ("words", "rules", "sizes"),
    [
        ("", "on", []),
        ("--op-offload", "on", []),
        ("-nopo", "off", []),
        ("--no-op-offload", "off", []),
        ("--op-offload-min-batch 24", "24", [23]),
        ("--op-offload-min-batch MUL_MAT@reference=24", "MUL_MAT@reference=24", [23]),
        ("--op-offload --op-offload-min-batch 24", "24", [23]),
    ],
)
def test_ops_of_host_weights(words: str, rules: str, sizes: list[int]) -> None:
    """By llama.cpp's options and by the least batch."""
    data = json.loads(ok(*SPLIT[:-1], "0", "--json", *words.split()))
    assert data["options"]["op_offload"] == rules
    assert [smaller["max_tokens"] for smaller in data["smaller"]] == sizes
    assert (data["totals"]["splits"] > 1) == bool(sizes)


def test_op_offload_that_cannot_be() -> None:
    flag = "--op-offload-min-batch"
    for words, said in (
        ("0", f"{flag} is 0; write on, off, a least batch"),
        ("cuda=3", f"{flag} names the device cuda, which is not one of reference"),
    ):
        assert said in refused(*SPLIT, flag, words)
    assert f"leaves nothing for {flag} to say" in refused(*SPLIT, flag, "3", "-nopo", code=2)


def test_lines_fit_a_terminal() -> None:
    """No line of the table is longer than the 80 columns of a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "weft", *map(str, SPLIT)]
    process = subprocess.Popen(
        command, stdout=slave, stdin=slave, stderr=slave, env=os.environ | {"COLUMNS": "80"}
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(master)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode().replace("\r", ""))
    assert "total: 3 splits" in text
    assert max(map(len, text.splitlines())) <= 80


def test_several_machines_are_given_by_name() -> None:
    """The profiles that come with weft have names, which stand behind --machines like files."""
    text = ok("explain", DEMO, "--brief", "--machines", "desktop-rtx4090", "mac-m2-ultra")
    assert 'predicted for "desktop-rtx4090 + mac-m2-ultra"' in text


def test_a_saved_plan_is_the_printed_one(tmp_path: Path) -> None:
    """`--json` has rows of memory about which no plan decides."""
    saved, printed = tmp_path / "saved.json", tmp_path / "printed.json"
    printed.write_text(ok("explain", DEMO, "-c", "64", "--json"))
    ok("explain", DEMO, "-c", "64", "--save", str(saved))
    assert ok("diff", str(saved), str(printed)) == ""
    other = tmp_path / "other.json"
    other.write_text(ok("explain", DEMO, "-c", "64", "--json", "--cache-ram", "0"))
    done = weft("diff", str(printed), str(other))
    assert done.returncode == 1 and "prefixes in host memory: 1.00 GiB -> 0 B" in done.stdout
