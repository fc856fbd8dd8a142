"""The report's graph, timeline and differences in a browser, and the report in a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft as command
from tests.llm.paper_model import MIXTRAL, paper_model
from weft.backends.base import Support
from weft.backends.null import NullBackend, NullBufferType
from weft.execute import Profile, Trace
from weft.graph.tensor import Tensor
from weft.llm import LLM, Context, Model
from weft.llm.planning.prepare import prepare
from weft.report import page_html, plan_data, timeline_data
from weft.schedule import load_profile
from weft.schedule.machine import paper_devices

pytestmark = pytest.mark.xdist_group("browser")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
READY = "#report[data-ready]"


class Gpu(NullBackend):
    """A device with memory of its own that has no kernel for attention."""

    def supports_op(self, node: Tensor) -> Support:
        return Support(node.op.name != "FLASH_ATTN_EXT", "no kernel for FLASH_ATTN_EXT")

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        return buffer_type is self.buffer_type


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def two_devices(folder: Path) -> tuple[Path, dict[str, Any]]:
    gpu = Gpu("gpu", "GPU", NullBufferType("gpu", "gpu", is_host=False))
    plan = prepare(Model.open(DEMO), n_ctx=64, devices=[gpu, "cpu"], n_gpu_layers=3)
    return _written(folder / "two.html", plan_data(plan, sliders=False))


@pytest.fixture(scope="module")
def experts(folder: Path) -> tuple[Path, dict[str, Any]]:
    devices = paper_devices(load_profile("desktop-rtx4090"))
    model = paper_model(folder, MIXTRAL)
    plan = prepare(model, n_outputs=1, n_ctx=512, devices=devices, n_gpu_layers=20)
    return _written(folder / "experts.html", plan_data(plan, sliders=False))


@pytest.fixture(scope="module")
def profiled(folder: Path) -> tuple[Path, Trace]:
    context = Context(Model.open(DEMO), 64, n_threads=2)
    trace, profiles = Trace(), []
    for name, batches in (("pp32", [list(range(32))]), ("tg8", [[i] for i in range(8)])):
        profile = Profile(name=name, trace=trace)
        with context.profile(profile):
            for batch in batches:
                context.decode(batch)
        profiles.append(profile)
    data = plan_data(context, sliders=False) | {"profile": timeline_data(profiles, trace)}
    return _written(folder / "profile.html", data)[0], trace


@pytest.fixture(scope="module")
def differences(folder: Path) -> Path:
    for name, layers in (("a", 1), ("b", 3)):
        words = ("-c", "64", "--devices", "reference,cpu", "-ngl", str(layers), "-t", "1")
        done = command("explain", str(DEMO), *words, "--save", str(folder / f"{name}.json"))
        assert done.returncode == 0
    out = folder / "diff.html"
    command("diff", str(folder / "a.json"), str(folder / "b.json"), "--html", str(out))
    return out


def _written(path: Path, data: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    path.write_text(page_html(data))
    return path, data


def show(open_page: Any, path: Path, view: str, **options: Any) -> Any:
    """The page of a report with a view open, once it is drawn."""
    page = open_page(f"{path.resolve().as_uri()}#{view}", **options)
    page.wait_for_selector(READY)
    return page


# **** the graph ****


def test_layers_fold_and_unfold(open_page: Any, experts: tuple[Path, dict[str, Any]]) -> None:
    page = show(open_page, experts[0], "graph")
    page.select_option("header select", index=len(experts[1]["regimes"]) - 1)
    heads = page.locator(".group-head")
    names = heads.locator(".group-name").all_inner_texts()
    assert names == [
        "input", "layers 0 to 10", "layer 11", "layers 12 to 30", "layer 31", "output",
    ]  # fmt: skip
    assert heads.nth(3).locator(".times").inner_text() == "×19"
    heads.nth(3).click()
    inside = page.locator(".group .group .group-head")
    assert inside.count() == 19 and "layer 12" in inside.first.inner_text()
    inside.nth(4).click()
    first = page.locator(".group .group .node-row").first
    assert first.is_visible()
    heads.nth(3).click()
    assert not first.is_visible()


def test_every_node_is_in_the_graph(
    open_page: Any, two_devices: tuple[Path, dict[str, Any]], picture: Any
) -> None:
    page = show(open_page, two_devices[0], "graph")
    heads = ".group-head[aria-expanded=false]"
    while page.locator(heads).count():
        page.eval_on_selector_all(heads, "heads => heads.forEach(head => head.click())")
    table = two_devices[1]["regimes"][0]["tensors"]
    want = [
        name for name, kind in zip(table["name"], table["kind"], strict=True)
        if kind in ("node", "copy")
    ]  # fmt: skip
    shown = page.eval_on_selector_all(".node-row", "rows => rows.map(row => row.dataset.name)")
    assert shown == want
    assert page.locator(".node-row circle").count() == len(want)
    assert page.locator(".split-head").count() == len(two_devices[1]["regimes"][0]["splits"])
    picture(page, "report-graph", whole=True)


def test_a_refusal_on_a_click(open_page: Any, two_devices: tuple[Path, dict[str, Any]]) -> None:
    page = show(open_page, two_devices[0], "graph")
    page.get_by_role("button", name="Unfold layers").click()
    page.get_by_role("button", name="Unfold layers").click()
    row = page.locator(".node-row", has_text="FLASH_ATTN_EXT").last
    assert "not on gpu" in row.inner_text()
    row.click()
    details = page.locator(".details").inner_text()
    assert "no kernel for FLASH_ATTN_EXT" in details and "because" in details
    assert row.get_attribute("aria-current") == "true"


def test_what_other_views_select(open_page: Any, two_devices: tuple[Path, dict[str, Any]]) -> None:
    table = two_devices[1]["regimes"][0]["tensors"]
    layer = [i for i, op in enumerate(table["op"]) if op == "FLASH_ATTN_EXT"]
    page = show(open_page, two_devices[0], "table")
    page.evaluate("name => report.state.set({tensor: name})", table["name"][layer[1]])
    page.get_by_role("tab", name="Graph").click()
    row = page.locator(".node-row[aria-current=true]")
    assert row.count() == 1 and row.is_visible()
    assert row.get_attribute("data-name") == table["name"][layer[1]]
    # a link of the details goes on
    page.evaluate("name => report.state.set({tensor: name})", table["name"][layer[3]])
    assert page.locator(".node-row[aria-current=true]").get_attribute("data-row") == str(layer[3])


def test_copies_and_the_map(open_page: Any, two_devices: tuple[Path, dict[str, Any]]) -> None:
    page = show(open_page, two_devices[0], "graph")
    regime = two_devices[1]["regimes"][0]
    boxes = page.locator(".split-box")
    assert boxes.count() == len(regime["splits"])
    labels = [box.get_attribute("aria-label") for box in boxes.all()]
    for label, split in zip(labels, regime["splits"], strict=True):
        assert label is not None and label.startswith(f"split {split['split']}: {split['device']}")
        assert ("copied to it" in label) == bool(split["inputs"])
    assert page.locator(".copy-curve").count() >= len(regime["splits"]) - 1
    boxes.nth(2).focus()
    page.keyboard.press("Enter")
    row = int(page.evaluate("document.activeElement.dataset.row"))
    assert regime["tensors"]["split"][row] == 2


def test_the_graph_by_keyboard(open_page: Any, two_devices: tuple[Path, dict[str, Any]]) -> None:
    page = show(open_page, two_devices[0], "graph")
    heads = page.locator(".group-head")
    heads.nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert heads.nth(1).get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("report.state.get('tensor') === document.activeElement.dataset.name")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert heads.nth(1).get_attribute("aria-expanded") == "false"


def test_the_passes_step_by_step(open_page: Any, two_devices: tuple[Path, dict[str, Any]]) -> None:
    path, data = two_devices
    passes = data["regimes"][0]["passes"]
    page = show(open_page, path, "passes")
    cells = page.locator(".pass-cell")
    assert set(cells.all_inner_texts()[:5]) == {"?"}  # the first step places leaves, not nodes
    page.locator(".pass-board").focus()
    for number, step in enumerate(passes["steps"], 1):
        assert page.evaluate("location.hash") == f"#passes/{number}"
        assert step["title"] in page.locator(".pass-about").inner_text()
        page.keyboard.press("ArrowRight")
    assert "?" not in cells.all_inner_texts()
    no = "no kernel for FLASH_ATTN_EXT"
    asked = [q for step in passes["steps"] for q in step["questions"]]
    refused = next(q["tensor"] for q in asked if q["reason"] == no)
    page.locator("label", has_text="fold equal layers").click()
    page.locator(f'[data-tensor="{refused}"]').click()
    story = page.locator(".pass-story").inner_text()
    assert f"gpu runs FLASH_ATTN_EXT: no, {no}" in story
    page.locator(".pass-story .link").first.click()
    assert page.evaluate("report.state.get('view')") == "passes"
    step = int(page.evaluate("location.hash.split('/')[1]"))
    assert any(q["tensor"] == refused for q in passes["steps"][step - 1]["questions"])
    again = show(open_page, path, page.evaluate("location.hash.slice(1)"))
    assert again.locator(".pass-story").inner_text() == story
    for address, there in (("3.7", "3"), ("3/%E0%A4%A", "3"), ("99", str(len(passes["steps"])))):
        odd = show(open_page, path, f"passes/{address}")
        assert odd.evaluate("location.hash") == f"#passes/{there}"
    legend = page.locator("#panel-passes .legend").inner_text()
    for letter, device in zip(passes["letters"], passes["devices"], strict=True):
        assert f"{letter} {device}" in legend  # as on the command line


@pytest.mark.parametrize("by", ["cause", pytest.param("op", marks=pytest.mark.part("pages"))])
def test_colours(open_page: Any, two_devices: tuple[Path, dict[str, Any]], by: str) -> None:
    page = show(open_page, two_devices[0], "graph")
    legend = page.locator("#panel-graph .legend")
    before = legend.inner_text()
    assert "gpu" in before
    page.check(f"input[name=graph-color][value={by}]")
    after = legend.inner_text()
    assert after != before
    assert ("products" if by == "op" else "a weight is there") in after


# **** the timeline ****


def test_the_trace_is_that_of_the_file(open_page: Any, profiled: tuple[Path, Trace]) -> None:
    """The page's trace has the slices that `weft bench --trace` writes, times and all."""
    page = show(open_page, profiled[0], "timeline")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the trace").click()
    assert download.value.suggested_filename == "weft-demo.gguf-trace.json"
    mine = json.loads(Path(download.value.path()).read_text())
    own = profiled[1].as_json()

    def slices(document: dict[str, Any]) -> list[tuple[str, str, float, float]]:
        rows = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
        return sorted(
            (rows[e["tid"]], e["name"], e["ts"], e["dur"])
            for e in document["traceEvents"] if e["ph"] == "X"
        )  # fmt: skip

    assert slices(mine) == slices(own)


def test_the_timeline_says_what(open_page: Any, profiled: tuple[Path, Trace], picture: Any) -> None:
    page = show(open_page, profiled[0], "timeline")
    assert "pp32: 1 run" in page.locator(".fact").first.inner_text()
    page.select_option("#panel-timeline .tools select", label="tg8")
    assert page.locator(".run-of").inner_text() == "run 1 of 8"
    page.get_by_role("button", name="Next run").click()
    assert page.locator(".run-of").inner_text() == "run 2 of 8"
    canvas = page.locator("canvas.timeline")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 35)
    assert "tg8 run" in page.locator(".slice-tip").inner_text()
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", ".", ".", ".", "+", "+", "ArrowRight", "0"):
        page.keyboard.press(key)
    about = page.locator(".slice-about").inner_text()
    assert "cpu stages" in about and "stage 3" in about and "of the roof" in about
    page.check("input[name=timeline-color][value=roof]")
    assert "75% and more" in page.locator("#panel-timeline .legend").inner_text()
    picture(page, "report-timeline")
    page.locator(".slice-about .link").first.click()
    assert page.locator(".details h2").inner_text()


@pytest.mark.part("pages")
def test_mouse_zooms_and_moves(open_page: Any, profiled: tuple[Path, Trace]) -> None:
    page = show(open_page, profiled[0], "timeline")
    canvas = page.locator("canvas.timeline")
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + 60
    at_first = canvas.evaluate("canvas => canvas.toDataURL()")
    page.mouse.move(*middle)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(100)
    assert canvas.evaluate("canvas => canvas.toDataURL()") == at_first, (
        "the wheel alone scrolls the page"
    )
    page.mouse.click(*middle)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(200)
    zoomed = canvas.evaluate("canvas => canvas.toDataURL()")
    assert zoomed != at_first
    page.mouse.down()
    page.mouse.move(middle[0] - 200, middle[1], steps=4)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert canvas.evaluate("canvas => canvas.toDataURL()") != zoomed


def test_perfetto_from_disk(open_page: Any, profiled: tuple[Path, Trace]) -> None:
    page = show(open_page, profiled[0], "timeline")
    page.get_by_role("button", name="Open in Perfetto").click()
    hint = page.locator("#panel-timeline p[role=status]")
    assert "Download it" in hint.inner_text()
    assert hint.locator("a").get_attribute("href") == "https://ui.perfetto.dev"


def test_perfetto_from_a_server(open_page: Any, profiled: tuple[Path, Trace]) -> None:
    """The trace is handed over in the way that Perfetto documents, after a click only."""
    page = open_page()
    html = profiled[0].read_text()
    page.route("http://127.0.0.1:9/r", lambda r: r.fulfill(body=html, content_type="text/html"))
    stand_in = """<script>let got = null; addEventListener("message", (e) => {
      if (e.data === "PING") e.source.postMessage("PONG", "*");
      else if (e.data.perfetto) got = e.data.perfetto; });</script>"""
    page.context.route(
        "https://ui.perfetto.dev/", lambda r: r.fulfill(body=stand_in, content_type="text/html")
    )
    page.goto("http://127.0.0.1:9/r#timeline")
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Open in Perfetto").click()
    popup.value.wait_for_function("got !== null")
    assert popup.value.evaluate("got.title") == "weft-demo.gguf"
    text = popup.value.evaluate("new TextDecoder().decode(got.buffer)")
    events = json.loads(text)["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(list(profiled[1].slices))


# **** differences, notebooks ****


def test_differences(open_page: Any, differences: Path, picture: Any) -> None:
    page = show(open_page, differences, "compare")
    text = page.locator("#panel-compare").inner_text()
    assert "Nodes that moved" in text and "cpu → reference" in text and "n_ctx" not in text
    assert page.locator(".graph-map svg").count() == 2
    change = page.locator(".change").first
    names = page.locator(".changes li").first.locator("p")
    assert not names.is_visible()
    change.click()
    assert names.is_visible() and change.get_attribute("aria-expanded") == "true"
    page.check("input[name=compare-color][value=moved]")
    assert "moved to another device" in page.locator("#panel-compare .legend").inner_text()
    assert "in Reference" in page.locator(".bars-name").first.inner_text()
    picture(page, "report-differences", whole=True)


def test_a_log_of_ggml(open_page: Any, differences: Path, picture: Any) -> None:
    """Beside a log sizes are what it prints, and the page is as wide as a phone."""
    log = DEMO.parents[1] / "tests/data/ggml/two-devices.log"
    out = differences.parent / "log.html"
    command("diff", str(log), str(differences.parent / "a.json"), "--html", str(out))
    page = show(open_page, out, "compare", width=360)
    text = page.locator("#panel-compare").inner_text()
    assert "two-devices.log: 1.76 MiB" in text and "ggml's allocator takes" in text
    assert " B)" not in page.locator(".bars").first.inner_text()
    assert "Copies that differ: " in text and "two-devices.log: at least " in text
    table = page.locator(".beside table").last
    assert table.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth")
    picture(page, "report-differences-log", whole=True)


def test_a_notebook(open_page: Any, folder: Path) -> None:
    with LLM(DEMO, n_threads=1, n_ctx=64) as llm:
        html = llm._repr_html_()
    path = folder / "notebook.html"
    path.write_text(f"<!doctype html><title>notebook</title><p>cell</p>{html}")
    page = open_page(path)
    frame = page.frame_locator("iframe")
    frame.locator(READY).wait_for()
    for name in ("Graph", "Memory", "Table", "Summary"):
        frame.get_by_role("tab", name=name).click()
        assert frame.locator(f"#panel-{name.lower()}").is_visible()
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None


@pytest.mark.parametrize(
    ("width", "dark"), [(360, False), pytest.param(1280, True, marks=pytest.mark.part("pages"))]
)
def test_no_barriers(
    open_page: Any, barriers: Any, two_devices: tuple[Path, Any], profiled: tuple[Path, Any],
    differences: Path, width: int, dark: bool,
) -> None:  # fmt: skip
    views = ((two_devices[0], "graph"), (profiled[0], "timeline"), (differences, "compare"))
    for path, view in views:
        page = show(open_page, path, view, dark=dark, width=width)
        if view == "graph":
            page.locator(".group-head").nth(1).click()
        assert barriers(page) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width
