"""The updates of a cache in the report: a row for each, with its cells, cost and saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pages.report_page import show, views
from weft.llm import Context, Model
from weft.report import plan_data, report_html

pytestmark = pytest.mark.xdist_group("browser")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def context() -> Context:
    context = Context(Model.open(DEMO), 256, n_seq_max=3, n_threads=1)
    context.watch_cache()
    context.decode([1, *range(5, 30)])
    for token in range(12):
        context.decode([token])
    context.seq_cp(0, 1, 0, 20)
    context.decode([7, 8], [20, 38], seqs=[[1], [0]])
    context.seq_rm(0, 22, 30)
    context.seq_add(0, 30, -1, -8)
    context.decode([9])
    return context


@pytest.fixture(scope="module")
def path(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "cache.html"
    path.write_text(report_html(context, sliders=False))
    return path


def test_the_view_is_there_for_watched_caches_only(
    open_page: Any, path: Path, tmp_path: Path
) -> None:
    assert "cache" in views(show(open_page(), path))
    other = Context(Model.open(DEMO), 64, n_threads=1)
    assert plan_data(other, sliders=False)["cache"] is None
    (tmp_path / "r.html").write_text(report_html(other, sliders=False))
    assert "cache" not in views(show(open_page(), tmp_path / "r.html"))


def test_rows(open_page: Any, path: Path, context: Context, picture: Any) -> None:
    page = show(open_page(), path, "cache")
    texts = page.locator(".cache-text").all_inner_texts()[1:]  # below the heading
    steps = "seq 0: 12 steps, a token each, now up to cell 37"
    want = [e.text for e in context.cache_events]
    assert texts == [*want[:2], steps, *want[14:]]
    numbers = page.locator("td.cache-number").all_inner_texts()
    assert numbers[2:4] == ["3–14", "15"]
    page.get_by_label("one row for steps").uncheck()
    assert page.locator(".cache-text").all_inner_texts()[1:] == want
    saved = page.locator("td.cache-saved").all_inner_texts()
    assert [text for text in saved if text] == ["20"]
    facts = page.locator(".fact").all_inner_texts()
    assert facts[0] == f"{len(want)} updates of a cache of 256 cells for 3 sequences."
    assert facts[1].startswith("41 tokens took cells, and 20 tokens need not be computed")
    page.get_by_label("updates").select_option("shared")
    assert page.locator(".cache-text").all_inner_texts()[1:] == [want[14]]
    picture(page, "report-cache", whole=True)


def test_strips_show_cells_by_sequence(open_page: Any, path: Path) -> None:
    page = show(open_page(), path, "cache")
    row = page.locator("tr", has_text="seqs 0-1 take cells").locator("div").first
    said = row.locator(".hidden").inner_text()
    assert said == (
        "40 of 256 cells used; cells 0 to 19: several sequences; cells 20 to 38: sequence 0; "
        "cells 68 to 68: sequence 1"
    )
    boxes = [run.bounding_box() for run in row.locator(".cache-run").all()]
    strip = row.locator(".cache-strip").bounding_box()
    starts = [(box["x"] - strip["x"]) / strip["width"] for box in boxes]
    assert starts == pytest.approx([0, 20 / 69, 68 / 69], abs=0.01)
    changed = [box.bounding_box()["x"] for box in row.locator(".cache-change").all()]
    assert changed == pytest.approx([strip["x"] + strip["width"] * n / 69 for n in (38, 68)], abs=2)


@pytest.mark.parametrize("width", [360, 1280, 2560])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits(open_page: Any, path: Path, width: int, dark: bool, picture: Any) -> None:
    page = show(open_page(width=width, height=900, dark=dark), path, "cache")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in (".cache-strip", ".cache-text"):
        box = page.locator(f"tbody {name}").nth(3).bounding_box()
        assert box["width"] > 200 and box["x"] + box["width"] <= width
    picture(page, f"report-cache-{width}-{'dark' if dark else 'light'}")
