"""`weft explain` of graphs as text, and `--passes`, as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import MODEL, ok, refused, weft
from tests.report.test_programs import page_data

ROW = """weft graph 1
%0 = input f32[64, 4] "x"
%1 = constant f32[64, 64] "w2"
%2 = constant f32[64, 64] "w4"
%3 = constant f32[64, 64] "w6"
%4 = SQR(%0) f32[64, 4] "n0"
%5 = SQR(%4) f32[64, 4] "n1"
%6 = MUL_MAT(%1, %5) f32[64, 4] "n2"
%7 = SQR(%6) f32[64, 4] "n3"
%8 = MUL_MAT(%2, %7) f32[64, 4] "n4"
%9 = SQR(%8) f32[64, 4] "n5"
%10 = MUL_MAT(%3, %9) f32[64, 4] "n6"
%11 = SQR(%10) f32[64, 4] "n7" flags=output
"""
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-placement-works.md"
DESKTOP = ("--machine", "desktop-rtx4090")


@pytest.fixture
def row(tmp_path: Path) -> str:
    path = tmp_path / "row.txt"
    path.write_text(ROW)
    return str(path)


def test_a_graph_is_placed(row: str) -> None:
    text = ok("explain", row, *DESKTOP, "--place", "w2=gpu,w6=gpu")
    assert "n4  MUL_MAT  cpu  1.wgt0  weight w4 lives in host memory" in text
    assert "total: 3 splits, 8 nodes, 3 copies" in text and "VRAM: " in text
    assert "n2 (MUL_MAT)" not in ok("explain", row, "--brief")
    assert "split 0: cpu, nodes 0..7" in ok("explain", row)
    assert "flowchart TD" in ok("explain", row, "--mermaid")
    assert "because (1.wgt0) weight w4" in ok("explain", row, "--why", "n4")
    data = json.loads(ok("explain", row, *DESKTOP, "--json"))
    assert data["format"] == "weft-plan-1" and data["allocation"]


def test_a_graph_from_standard_input() -> None:
    done = weft("explain", "-", *DESKTOP, "--brief", typed=ROW)
    assert done.returncode == 0 and "split 0: cpu, nodes 0..7" in done.stdout
    wrong = weft("explain", "-", typed="GGUF")
    assert "graph text must start with the line 'weft graph 1'" in wrong.stderr
    assert "/dev/stdin is not a plain file" in refused("inspect", "-")


def test_each_pass_of_a_graph(row: str) -> None:
    text = ok("explain", row, *DESKTOP, "--place", "w2=gpu,w6=gpu", "--passes")
    assert re.findall(r"^  ([?GC]{8})$", text, re.M) == [
        "????????", "??G?C?G?", "??GGC?GG", "GGGGCGGG",
    ]  # fmt: skip
    pinned = ok("explain", row, *DESKTOP, "--place", "n0=cpu,x=gpu", "--passes")
    assert "cpu usr (assigned by the user): n0" in pinned
    first = ok("explain", row, *DESKTOP, "--place", "w4=cpu,w*=gpu", "--passes")
    assert "gpu 1.dst (its memory is there): w2, w6\n" in first
    story = ok("explain", row, *DESKTOP, "--node", "n4")
    assert "gpu wants MUL_MAT for this batch, with a weight in host memory? no" in story
    assert "n3:" not in story
    data = json.loads(ok("explain", row, *DESKTOP, "--passes", "--json"))
    assert data["format"] == "weft-passes-1" and data["plans"] == []
    assert [s["pass"] for s in data["steps"]] == ["1", "1", "2", "2", "2", "2", "3", "4", "5"]


def test_the_placements_that_the_search_considered(row: str) -> None:
    text = ok("explain", row, *DESKTOP, "--policy", "cost", "--place", "w2=gpu,w6=gpu", "--passes")
    assert "The search takes a walk along the nodes: " in text
    assert "  tried: the reference's rules: " in text and "  taken: a walk along the nodes" in text
    assert "cpu -> gpu cost (" in text and "over 1.wgt0): n4" in text


def test_a_report_of_a_graph(row: str, tmp_path: Path) -> None:
    page = tmp_path / "row.html"
    ok("explain", row, *DESKTOP, "--place", "w*=gpu", "--html", str(page))
    data = page_data(page.read_text())
    assert data["title"] == "row.txt"
    sizes = {(r["buffer"], r["memory"]): r["bytes"] for r in data["memory"]}
    assert sizes["weights", "VRAM"] == 3 * 64 * 64 * 4 and sizes["compute", "VRAM"] > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--place", "n0=gpu"), "--place n0=gpu: the devices are cpu"),
        (("--place", "z=cpu"), "no tensor of the graph has such a name"),
        (("--node", "n44"), "no tensor whose name matches 'n44'; did you mean n4"),
        (("--node", "W2"), "no tensor whose name matches 'W2'; did you mean w2"),
        (("--node", "zz*"), "no tensor whose name matches 'zz*'; some are x, w2, w4, w6, n0, n1"),
        (("--policy", "cost"), "needs a machine profile"),
        (("--save", "plan.json"), "--save is for models"),
        (("--passes", "--why", "n0"), "give only one of"),
    ],
)
def test_what_a_graph_does_not_take(row: str, given: tuple[str, ...], said: str) -> None:
    assert said in refused("explain", row, *given)


@pytest.mark.parametrize("given", [("-c", "300"), ("--tokens", "3")])
def test_options_that_only_models_have(row: str, given: tuple[str, ...]) -> None:
    said = refused("explain", row, *given, code=2)
    assert f"a graph as text takes no {given[0]}; --devices or --machine, --place" in said


def test_a_graph_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text('weft graph 1\n%0 = SQR(%1) f32[64] "y"\n')
    assert "graph text, line 2: uses %1 before its line" in refused("explain", str(path))
    path.write_text("weft graph 2\n")
    assert "must start with the line 'weft graph 1'" in refused("explain", str(path))


def test_rules_of_op_offload_hold_for_graphs(row: str) -> None:
    place = ("explain", row, *DESKTOP, "--brief", "--op-offload-min-batch")
    assert "split 1: gpu, nodes 2..3" in ok(*place, "2")
    assert "split 0: cpu, nodes 0..7" in ok(*place[:-1], "--no-op-offload")
    assert "not one of gpu, cpu" in refused(*place, "tpu=2")


def test_the_record_of_single_tensors(row: str) -> None:
    """`--node` chooses among the steps of `--json`, too."""
    data = json.loads(ok("explain", row, *DESKTOP, "--node", "n4", "--json"))
    (number,) = (t["id"] for t in data["tensors"] if t["name"] == "n4")
    changes = [one for step in data["steps"] for one in step["changes"]]
    asked = [one for step in data["steps"] for one in step["questions"]]
    assert {one["tensor"] for one in changes} == {number}
    assert asked and all(number in (one["tensor"], one["about"]) for one in asked)
    assert "no tensor whose name matches 'z'" in refused("explain", row, "--node", "z", "--json")


def test_each_pass_of_a_model() -> None:
    model = ("explain", MODEL, "-c", "64", "--devices", "reference,cpu", "-ngl", "1")
    text = ok(*model, "--passes")
    assert "Pass 5: the nodes are cut into 3 splits on cpu and reference" in text
    assert "split 1: reference, nodes 56..87" in text
    data = json.loads(ok(*model, "--json"))
    record = json.loads(ok(*model, "--passes", "--json"))
    assert [(s["device"], s["start"], s["end"]) for s in record["splits"]] == [
        (s["device"], s["start"], s["end"]) for s in data["splits"]
    ]
    assert "blk.1.ffn_up.weight: leaf" in ok(*model, "--node", "blk.1.ffn_up*")


def test_the_plans_from_which_that_of_a_model_was_chosen() -> None:
    model = ("explain", MODEL, *DESKTOP, "-c", "64", "--policy", "cost", "--passes")
    text = ok(*model)
    head, plans = text.split("The whole plan, for a prompt and what is generated after it:\n")
    assert "  taken: " in plans and "as many layers as fit, and the reference's rules" in plans
    assert "The search " in head
    plans = json.loads(ok(*model, "--json"))["plans"]
    assert sum(one["taken"] for one in plans) == 1
    assert min(one["seconds"] for one in plans) == next(p["seconds"] for p in plans if p["taken"])


def test_the_page_shows_what_its_commands_print(tmp_path: Path) -> None:
    """`make docs` writes the listings."""
    copy = tmp_path / PAGE.name
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    subprocess.run([sys.executable, ROOT / "docs/make_listings.py", copy], check=True)
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8")


def test_the_python_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples/placement")
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    exec(compile(code, PAGE.name, "exec"), {})
    printed = capsys.readouterr().out
    assert "R reference, C cpu" in printed and "\nn4: MUL_MAT" in printed
    assert "\n1 leaves 4 9\n" in printed
