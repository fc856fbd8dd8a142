"""The report plans other sizes itself: its bytes are those of `weft explain --json`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_model import Shape, make_model
from tests.cli.in_process import weft
from tests.pages.report_page import show
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.report import plan_data

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
POSITIONS = 10
TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")


Open = Callable[..., Any]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with 32 layers."""
    path = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    shape = Shape(128, 32, 4, 2, 128, 320, 512, n_expert=4, n_expert_used=2)
    make_model(path, "q8_0", shape)
    return path


def report(model: Path, folder: Path, *args: str) -> Path:
    path = folder / "report.html"
    done = weft("explain", model, "--html", path, *args)
    assert done.returncode == 0, done.stderr
    assert f"report written to {path}" in done.stderr
    return path


def explained(model: Path, at: dict[str, Any], *args: str) -> list[dict[str, Any]]:
    """The rows of memory of `weft explain --json` with the sizes of a position."""
    done = weft(
        "explain", model, *args, "--json", "-c", str(at["ctx"]), "-ub", str(at["ub"]),
        "-np", str(at["seqs"]), "-ctk", at["k"], "-ctv", at["v"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["memory"]
    return rows


def bytes_of(rows: list[dict[str, Any]]) -> list[tuple[str, str, int, int | None]]:
    return [(r["buffer"], r["memory"], r["bytes"], r.get("lower_bound")) for r in rows]


def positions(page: Any, seed: int) -> list[dict[str, Any]]:
    """Positions that the sliders of an open report can take, the plan's own first."""
    sliders = page.evaluate("() => report.data.sliders")
    chosen = [sliders["base"]]
    rnd = random.Random(seed)
    while len(chosen) < POSITIONS:
        at = {name: rnd.choice(sliders[name]) for name in ("ctx", "ub", "seqs")}
        at |= {"k": rnd.choice(TYPES), "v": rnd.choice(TYPES)}
        covered = page.evaluate("at => report.variant(report.data.sliders, at) !== null", at)
        if at not in chosen and covered:
            chosen.append(at)
    return chosen


def compare(page: Any, model: Path, *args: str) -> None:
    for at in positions(page, 7):
        page.evaluate("at => report.move(at)", at)
        shown = page.evaluate("() => report.state.get('layout').rows")
        assert bytes_of(shown) == bytes_of(explained(model, at, *args)), at
        # people see the same bytes
        page.evaluate("() => report.state.set({view: 'memory'})")
        text = page.locator(".buffers").inner_text()
        assert all(f"{row['bytes']:,}" in text for row in shown), at


def test_demo_model(open_page: Open, tmp_path: Path) -> None:
    compare(show(open_page(), report(DEMO, tmp_path)), DEMO)


def test_two_devices(open_page: Open, tmp_path: Path) -> None:
    devices = ("--devices", "reference,cpu", "-ngl", "2")
    compare(show(open_page(), report(DEMO, tmp_path, *devices)), DEMO, *devices)


def test_mixture_of_32_layers(open_page: Open, tmp_path: Path, mixture: Path) -> None:
    path = report(mixture, tmp_path)
    assert path.stat().st_size < 500_000
    compare(show(open_page(), path), mixture)


def test_tensors_have_the_bytes_of_a_plan_with_these_sizes(open_page: Open, tmp_path: Path) -> None:
    """The table's bytes, cached keys and values of other types included."""
    page = show(open_page(), report(DEMO, tmp_path))
    at = {"ctx": 128, "ub": 64, "seqs": 4, "k": "q8_0", "v": "f32"}
    page.evaluate("at => report.move(at)", at)
    got = page.evaluate(
        """() => Object.fromEntries(report.data.regimes[0].tensors.filter((t) => t.view < 0)
            .map((t) => [t.name, report.bytesAt(report.data, report.state, t)]))"""
    )
    plan = prepare(
        Model.open(DEMO), n_ctx=128, n_ubatch=64, n_seq_max=4, type_k="q8_0", type_v="f32",
        n_outputs=31,
    )  # fmt: skip
    table = plan_data(plan, sliders=False)["regimes"][0]["tensors"]
    expected = {
        name: size
        for name, size, view in zip(table["name"], table["bytes"], table["view"], strict=True)
        if view < 0
    }
    assert got == expected


def test_sizes_that_no_plan_covers_cannot_be_chosen(open_page: Open, tmp_path: Path) -> None:
    page = show(open_page(), report(DEMO, tmp_path))
    before = page.evaluate("() => report.state.get('layout').rows")
    page.evaluate("() => report.move({k: 'q5_1'})")
    assert page.evaluate("() => report.state.get('layout').rows") == before
    assert "No plan was made for these sizes" in page.locator(".sizes").inner_text()


def test_placement_that_depends_on_sizes_has_no_sliders(open_page: Open, tmp_path: Path) -> None:
    fitted = ("--devices", "reference,cpu", "--fit", "--memory", "reference=0.5MB")
    page = show(open_page(), report(DEMO, tmp_path, *fitted))
    assert page.locator("input[type=range]").count() == 0
    assert "No sliders for sizes: the placement depends on the sizes" in page.inner_text("#report")
