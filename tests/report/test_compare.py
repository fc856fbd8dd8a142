"""Two plans side by side: what the page says is what `weft diff` counts."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft as command
from tests.report.test_timeline import MODEL, page_data
from weft.errors import FormatError
from weft.report import diff_data, page_html

SPLIT = ("explain", str(MODEL), "-c", "64", "--devices", "reference,cpu", "-t", "1", "--save")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("plans")
    a, b = folder / "a.json", folder / "b.json"
    assert command(*SPLIT, str(a), "-ngl", "1").returncode == 0
    assert command(*SPLIT, str(b), "-ngl", "3").returncode == 0
    return a, b


@pytest.fixture(scope="module")
def data(plans: tuple[Path, Path]) -> dict[str, Any]:
    a, b = (json.loads(path.read_text()) for path in plans)
    return diff_data(a, b, ("one", "two"))


def test_groups_add_up(data: dict[str, Any]) -> None:
    pair = data["pairs"][0]
    moved = sum(group["n"] for group in pair["groups"] if group["what"] == "moved")
    assert f"moved: {moved} nodes from cpu to reference" in data["text"]
    assert all((g["from"], g["to"]) == ("cpu", "reference") for g in pair["groups"]
               if g["what"] == "moved")  # fmt: skip
    assert sum(m == 1 for m in pair["sides"][0]["nodes"]["moved"]) == moved
    # what decides stands first: weights that live there, then neighbours, then views
    first = pair["groups"][0]
    assert "weight blk.*." in first["why_after"] and first["n"] > 1
    weights = sum(group["n"] for group in data["leaves"] if group["kind"] == "weight")
    lines = [line for line in data["text"] if line.startswith("weight ")]
    assert all(line.endswith(": cpu -> reference memory") for line in lines)
    folded = [re.search(r"\*.* \((\d+) of them\):", line) for line in lines]
    assert weights == sum(1 if found is None else int(found[1]) for found in folded)
    assert len(lines) < weights and "layers on a device: 1 layer -> 3 layers" in data["text"]


def test_totals_and_memory(data: dict[str, Any], plans: tuple[Path, Path]) -> None:
    a, b = (json.loads(path.read_text()) for path in plans)
    totals = {what: (one, two) for what, one, two in data["pairs"][0]["totals"]}
    assert totals["copied bytes"] == (a["totals"]["copied_bytes"], b["totals"]["copied_bytes"])
    rows = {(buffer, memory): (one, two) for buffer, memory, one, two in data["memory"]}
    for plan, side in ((a, 0), (b, 1)):
        for row in plan["memory"]:
            assert rows[row["buffer"], row["memory"]][side] == row["bytes"]
    assert data["pairs"][0]["label"] == "the largest batches"
    assert len(data["pairs"]) == 1 + len(a["smaller"])


def test_figures_have_units(plans: tuple[Path, Path]) -> None:
    a, b = (json.loads(path.read_text()) for path in plans)
    b["options"] |= {"n_ctx": 4096, "n_ubatch": 1, "n_seq_max": 2, "n_outputs": 62, "n_copies": 4,
                     "expert_budget": 3 << 20}  # fmt: skip
    a["predicted"], b["predicted"] = {"seconds": 0.0125}, {"seconds": 2.0}
    data = diff_data(a, b)
    assert {what: (one, two) for what, one, two in data["options"]} == {
        "n_ctx": ("64 tokens", "4,096 tokens"),
        "n_ubatch": ("64 tokens", "1 token"),
        "n_seq_max": ("1 sequence", "2 sequences"),
        "n_outputs": ("31 rows", "62 rows"),
        "n_copies": ("1 ubatch", "4 ubatches"),
        "expert_budget": ("", "3.00 MiB"),
    }
    facts = {what: (one, two) for what, one, two in data["facts"]}
    assert facts["layers on a device"] == ("1 layer", "3 layers")
    assert facts["predicted time"] == ("12.5 ms", "2000 ms")
    counted = ("splits", "nodes", "copies", "views", "ops")  # the unit is what is counted
    for line in data["text"]:
        what, _, figures = line.partition(": ")
        if re.search(r"\d -> \d", figures):
            assert what in counted, line
        elif re.match(r"\d", figures) and what != "moved":  # 56 nodes from a to b
            unit = r"[\d,.]+ (B|KiB|MiB|ms|tokens?|sequences?|rows?|ubatch(es)?|layers?)"
            assert re.fullmatch(rf"{unit} -> {unit}( \([+-][\d,]+ B\))?", figures), line


def test_a_plan_beside_itself(plans: tuple[Path, Path]) -> None:
    plan = json.loads(plans[0].read_text())
    data = diff_data(plan, plan)
    assert data["text"] == [] and data["options"] == [] and data["leaves"] == []
    assert all(pair["groups"] == [] for pair in data["pairs"])


def test_data_that_is_no_plan(plans: tuple[Path, Path]) -> None:
    good = json.loads(plans[0].read_text())
    with pytest.raises(FormatError, match="not a plan of format"):
        diff_data({}, good)
    for key in ("name", "why", "device"):
        bad = copy.deepcopy(good)
        bad["splits"][0]["nodes"][0].pop(key)
        with pytest.raises(FormatError, match="lacks a field"):
            diff_data(bad, json.loads(plans[1].read_text()))


def test_the_command(plans: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "diff.html"
    done = command("diff", str(plans[0]), str(plans[1]), "--html", str(out))
    assert done.returncode == 1 and done.stdout == "" and "report written" in done.stderr
    data = page_data(out.read_text())
    assert data["kind"] == "diff" and data["names"] == ["a.json", "b.json"]
    same = command("diff", str(plans[0]), str(plans[0]), "--html", str(out))
    assert same.returncode == 0 and page_data(out.read_text())["text"] == []
    lost = command("diff", str(plans[0]), str(plans[1]), "--html", str(tmp_path / "no" / "x.html"))
    assert lost.returncode == 2 and "cannot write" in lost.stderr


def _damaged(value: Any, draw: random.Random) -> Any:
    """`value` with some values of other kinds in it, and some keys left out."""
    if draw.random() < 0.002:
        return draw.choice([None, -1, "x", [], {}, float("inf"), float("nan"), True])
    if isinstance(value, dict):
        return {k: _damaged(v, draw) for k, v in value.items() if draw.random() > 0.0005}
    return [_damaged(v, draw) for v in value] if isinstance(value, list) else value


def test_damaged_plans_are_refused_or_shown(plans: tuple[Path, Path]) -> None:
    a, b = (json.loads(path.read_text()) for path in plans)
    draw, refused = random.Random(5), 0
    for _ in range(150):
        try:
            page_html(diff_data(_damaged(a, draw), _damaged(b, draw)))
        except FormatError:
            refused += 1
    assert 0 < refused < 150
