"""The timeline of the report: nothing of a profile is lost or moved; long ones are cut at runs."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft as command
from weft.execute import Profile, Trace
from weft.llm import Context, Model
from weft.report import timeline_data

MODEL = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def profiles() -> tuple[list[Profile], Trace]:
    context = Context(Model.open(MODEL), 64, n_threads=2)
    trace, made = Trace(), []
    for name, batches in (("pp32", [list(range(32))]), ("tg8", [[i] for i in range(8)])):
        profile = Profile(name=name, trace=trace)
        with context.profile(profile):
            for batch in batches:
                context.decode(batch)
        made.append(profile)
    return made, trace


@pytest.fixture(scope="module")
def data(profiles: tuple[list[Profile], Trace]) -> dict[str, Any]:
    return json.loads(json.dumps(timeline_data(*profiles)))


def slices(data: dict[str, Any]) -> list[tuple[str, str, str, int, int, list[str]]]:
    """(row, name, kind, begin, end, steps) of every slice, with absolute times."""
    found = []
    for row in data["rows"]:
        at = 0
        for i, distance in enumerate(row["begin"]):
            at += distance
            steps = data["abouts"][row["about"][i]].get("steps", [])
            name, kind = data["names"][row["title"][i]], data["names"][row["kind"][i]]
            names = [data["steps"][s] for s in steps]
            found.append((row["name"], name, kind, at, at + row["length"][i], names))
    return found


def test_all_slices_are_there(data: dict[str, Any], profiles: tuple[list[Profile], Trace]) -> None:
    own = list(profiles[1].slices)
    origin = min(s.start for s in own)
    want = sorted((s.row, s.name, s.kind, s.start - origin, s.end - origin) for s in own)
    assert sorted(one[:5] for one in slices(data)) == want
    assert data["left_out"] == 0
    rows = [row["name"] for row in data["rows"]]
    assert rows[:4] == ["runs", "cpu splits", "cpu stages", "thread 0"]


def test_rows_nest(data: dict[str, Any]) -> None:
    """Steps lie in stages, stages in splits, splits in runs."""
    found = slices(data)
    by_kind = {
        kind: [s for s in found if s[2] == kind] for kind in ("run", "split", "stage", "cpu")
    }
    assert [len(by_kind["run"]), len(by_kind["split"])] == [9, 9]
    assert all(by_kind.values())
    for inner, outer in (("split", "run"), ("stage", "split"), ("cpu", "stage")):
        for _, name, _, begin, end, _ in by_kind[inner]:
            around = [s for s in by_kind[outer] if s[3] <= begin and end <= s[4]]
            assert around, f"{name} lies in no {outer}"
    labels = {step for *_, steps in found for step in steps}
    assert "MUL_MAT q8_0 blk.0.attn_q.weight" in labels


def test_figures_are_those_of_the_profile(
    data: dict[str, Any], profiles: tuple[list[Profile], Trace]
) -> None:
    for test, profile in zip(data["tests"], profiles[0], strict=True):
        assert test["name"] == profile.name and test["runs"] == test["shown"] == profile.runs
        lines = {line.label: line for line in profile.lines}
        for i, label in enumerate(data["steps"]):
            line, figures = lines[label], {key: column[i] for key, column in test["steps"].items()}
            json_line = line.as_json(profile.peaks)
            assert figures["calls"] == line.calls
            assert figures["ns"] == round(line.seconds / line.calls * 1e9)
            assert figures["bytes"] == round(line.nbytes / line.calls)
            assert figures["roof"] == pytest.approx(json_line["of_roof"], abs=1e-3)
        assert test["ops"][0][0] == "op" and test["tensors"][1][0]


def test_long_profiles_are_cut_at_runs(profiles: tuple[list[Profile], Trace]) -> None:
    whole = sum(len(row["begin"]) for row in timeline_data(*profiles)["rows"])
    cut = timeline_data(*profiles, most=whole // 2)
    shown = [(test["shown"], test["runs"]) for test in cut["tests"]]
    assert shown[0] == (1, 1) and 0 < shown[1][0] < 8
    kept = sum(len(row["begin"]) for row in cut["rows"])
    assert kept + cut["left_out"] == whole
    assert max(s[4] for s in slices(cut)) <= cut["tests"][1]["end"]


def test_a_profile_without_a_trace_has_tables(profiles: tuple[list[Profile], Trace]) -> None:
    data = timeline_data(profiles[0], None)
    assert data["rows"] == [] and len(data["tests"][0]["ops"]) > 3


def page_data(html: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]*)<', html)
    assert packed is not None
    data: dict[str, Any] = json.loads(gzip.decompress(b64decode(packed[1])))
    return data


def test_bench_writes_a_report(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    words = ("bench", str(MODEL), "-p", "16", "-n", "2", "-r", "1", "-t", "1", "--html", str(out))
    done = command(*words)
    assert done.returncode == 0 and "report written to" in done.stderr
    data = page_data(out.read_text())
    assert data["kind"] == "plan" and data["model"]["layers"] == 5
    assert [test["name"] for test in data["profile"]["tests"]] == ["pp16", "tg2"]
    assert out.stat().st_size < 600_000
    two = command(*words, "-t", "1,2")
    assert two.returncode != 0 and "--html shows one model with one setting" in two.stderr
