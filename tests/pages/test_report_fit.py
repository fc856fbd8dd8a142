"""The report of `weft quantize --fit` in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.frontends.gguf import open_gguf
from weft.llm.fitting.baseline import write_text
from weft.llm.fitting.budget import Budget
from weft.llm.fitting.fit import FitOptions, fit
from weft.llm.fitting.plan_file import fit_data
from weft.report import page_html

pytestmark = pytest.mark.xdist_group("browser")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    options = FitOptions(Budget(file=700_000), 256, "scaled", ("q5_0", "q4_0"), keep=False)
    return fit_data(fit(open_gguf(DEMO), options, lambda model: write_text(model, 32, 2, 1)))


@pytest.fixture(scope="module")
def path(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "fit.html"
    out.write_text(page_html(data))
    return out


def show(open_page: Any, path: Path, view: str, **options: Any) -> Any:
    page = open_page(f"{path.as_uri()}#{view}", **options)
    page.wait_for_selector("#report[data-ready]")
    return page


def test_the_curve_has_every_choice(open_page: Any, path: Path, data: dict[str, Any]) -> None:
    page = show(open_page, path, "fit")
    n_points = sum(c["kl_sum"] > 0 for c in data["curve"])
    assert page.locator(".fit-point").count() == n_points > 4
    assert page.locator(".fit-chosen").count() == 1
    assert page.locator(".fit-tried").count() == len(data["tried"]) - 1
    points = page.locator(".fit-point")
    heights = points.evaluate_all("dots => dots.map((d) => +d.getAttribute('cy'))")
    assert heights == sorted(heights), "more bytes, less divergence: further down"
    assert page.locator(".fit-limit").count() == 0  # the budget is of the file
    page.get_by_label("bytes in the file").check()
    assert page.locator(".fit-limit").count() == 1
    limit = float(page.locator(".fit-limit").get_attribute("x1"))
    after = float(page.locator(".fit-chosen").get_attribute("cx"))
    assert after <= limit
    assert page.locator(".fit-picked").count() == len({t["group"] for t in data["tensors"]})


def test_every_tensor_has_its_type_and_why(
    open_page: Any, path: Path, data: dict[str, Any]
) -> None:
    page = show(open_page, path, "fit-tensors")
    rows = page.locator("#panel-fit-tensors tbody tr")
    assert rows.count() == len(data["tensors"])
    texts = rows.all_inner_texts()
    for text, row in zip(texts, data["tensors"], strict=True):
        assert row["name"] in text and row["type"] in text and row["why"] in text


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (360, False),
        *(
            pytest.param(*look, marks=pytest.mark.part("pages"))
            for look in ((360, True), (1280, False), (1280, True))
        ),
    ],
)
def test_nothing_bars_the_way(
    open_page: Any, path: Path, barriers: Any, width: int, dark: bool
) -> None:
    page = show(open_page, path, "fit", width=width, dark=dark)
    assert barriers(page) == []
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide
