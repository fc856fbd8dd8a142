"""The report in a browser: views, keyboard, selection, and what strangers' names may not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages.report_page import chromium, opened
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.report import page_html, plan_data, report_html

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    plan = prepare(Model.open(DEMO), n_ctx=128, devices=["reference", "cpu"], n_gpu_layers=2)
    return plan_data(plan)


@pytest.fixture(scope="module")
def path(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page_html(data))
    return file


def test_summary_is_what_explain_prints(browser: Any, data: dict[str, Any], path: Path) -> None:
    with opened(browser) as one:
        one.show(path)
        text = one.page.locator("#panel-summary pre").inner_text()
        assert all(line in text for line in data["text"])
        assert all(f"{row['bytes']:,}" in text for row in data["memory"])
        one.page.get_by_role("button", name="Copy as text").click()
        said = one.page.locator("#panel-summary [role=status]")
        said.filter(has_text="cop").wait_for()


def test_tabs_by_keyboard(browser: Any, path: Path) -> None:
    with opened(browser) as one:
        one.show(path, "memory")
        memory = one.page.locator("#tab-memory")
        assert memory.get_attribute("aria-selected") == "true"
        memory.focus()
        one.page.keyboard.press("End")
        last = one("() => document.activeElement.id")
        assert last != "tab-memory" and one("() => document.activeElement.ariaSelected") == "true"
        one.page.keyboard.press("ArrowRight")
        assert one("() => document.activeElement.id") == "tab-summary"
        assert one.page.locator("#panel-summary").is_visible()
        assert not one.page.locator("#panel-memory").is_visible()


def test_a_tensor_is_selected_everywhere(browser: Any, data: dict[str, Any], path: Path) -> None:
    with opened(browser) as one:
        one.show(path, "memory")
        canvas = one.page.locator("canvas.map").last
        canvas.focus()
        for _ in range(5):
            one.page.keyboard.press("ArrowRight")
        tip = one.page.locator(".tip").last.inner_text()
        one.page.keyboard.press("Enter")
        name = one("() => report.state.get('tensor')")
        assert name and tip.startswith(f"{name}: ") and "in use from" in tip
        assert one.page.locator(".details h2").inner_text() == name
        one.page.locator("#tab-table").click()
        one.page.locator(".grid").focus()
        row = one.page.locator(".grid-row[aria-selected=true]")
        assert row.count() == 1 and name in row.inner_text()
        one.page.keyboard.press("ArrowDown")
        assert one("() => report.state.get('tensor')") != name
        one.page.keyboard.press("Escape")
        assert not one.page.locator(".details").is_visible()


def test_details_say_who_and_why(browser: Any, data: dict[str, Any], path: Path) -> None:
    table = data["regimes"][0]["tensors"]
    row = next(i for i, why in enumerate(table["refused"]) if why is None and table["time"][i] > 0
               and table["arena"][i] >= 0 and table["why"][i])  # fmt: skip
    with opened(browser) as one:
        one.show(path)
        one("name => report.state.set({tensor: name})", table["name"][row])
        text = one.page.locator(".details").inner_text()
        assert table["why"][row] in text and f"{table['bytes'][row]:,}" in text
        assert table["memory"][row] in text and "in use" in text


def test_the_table_sorts_and_filters(browser: Any, data: dict[str, Any], path: Path) -> None:
    table = data["regimes"][0]["tensors"]
    with opened(browser) as one:
        one.show(path, "table")
        one.page.locator("[data-key=bytes] button").click()
        head = one.page.locator("[data-key=bytes]")
        assert head.get_attribute("aria-sort") == "descending"
        first = one.page.locator(".grid-body .grid-row").first.inner_text()
        assert f"{max(table['bytes']):,}" in first
        one.page.fill("#table-find", "mul_mat reference")
        devices = [d["name"] for d in data["devices"]]
        expected = sum(
            op == "MUL_MAT" and devices[device] == "reference"
            for op, device in zip(table["op"], table["device"], strict=True)
        )
        assert expected and f"{expected} tensors of" in one.page.inner_text(".filters")


def test_names_of_strangers_are_text(browser: Any, data: dict[str, Any], tmp_path: Path) -> None:
    bad = '<img src=x onerror="report.hit=1"></script><script>report.hit=1</script>{{DATA}}'
    table = data["regimes"][0]["tensors"]
    names = [f"{bad}{i}" for i in range(len(table["name"]))]
    regime = data["regimes"][0] | {"tensors": table | {"name": names, "why": names}}
    file = tmp_path / "bad.html"
    file.write_text(page_html(data | {"title": bad, "regimes": [regime]}))
    with opened(browser) as one:
        one.show(file)
        for view in one("() => report.views.filter(v => v.needs(report.data)).map(v => v.id)"):
            one("view => report.state.set({view})", view)
        one("name => report.state.set({tensor: name})", names[3])
        assert one.page.locator(".details h2").inner_text() == names[3]
        assert one.page.locator("img").count() == 0
        assert one("() => report.hit") is None
        assert one.page.title() == bad


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 4000])
def test_it_fits_every_screen(browser: Any, path: Path, width: int, scheme: str) -> None:
    with opened(browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as one:
        one.show(path)
        for view in one("() => report.views.filter(v => v.needs(report.data)).map(v => v.id)"):
            one("view => report.state.set({view})", view)
            one("() => report.state.set({tensor: report.data.regimes[0].tensors.at(-1).name})")
            assert one("() => document.documentElement.scrollWidth") <= width, view


def test_data_of_others_and_plans_of_contexts(path: Path) -> None:
    plan = prepare(Model.open(DEMO), n_ctx=64)

    class Holder:
        def __init__(self) -> None:
            self.plan = plan

    html = report_html(Holder(), sliders=False, title="a <title>")
    assert "<title>a &lt;title&gt;</title>" in html
    assert len(html) < len(path.read_text())
