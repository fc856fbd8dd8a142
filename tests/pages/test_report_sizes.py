"""The report plans other sizes itself: its bytes are those of `weft explain --json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.report_page import compare, report, show
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.report import plan_data

pytestmark = pytest.mark.xdist_group("browser")

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the demo model."""
    return report(DEMO, tmp_path_factory.mktemp("demo"))


@pytest.mark.parametrize("n", [3, pytest.param(10, marks=pytest.mark.part("pages"))])
def test_demo_model(open_page: Open, demo: Path, n: int) -> None:
    compare(show(open_page(), demo), DEMO, n=n)


@pytest.mark.parametrize("n", [2, pytest.param(10, marks=pytest.mark.part("pages"))])
def test_two_devices(open_page: Open, tmp_path: Path, n: int) -> None:
    devices = ("--devices", "reference,cpu", "-ngl", "2")
    compare(show(open_page(), report(DEMO, tmp_path, *devices)), DEMO, *devices, n=n)


def test_tensors_have_the_bytes_of_a_plan_with_these_sizes(open_page: Open, demo: Path) -> None:
    """The table's bytes, cached keys and values of other types included. The table has the tensors
    of the plan that was made; the heads that another cache rotates are not in it."""
    page = show(open_page(), demo)
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
    rotated = {
        f"{name} ({how})"
        for il in range(5)
        for name, how in ((f"Qcur-{il}", "rotated"), (f"Kcur-{il} (reshaped)", "rotated"),
                          (f"Kcur-{il}", "3"))  # keys on their way from ROPE to the rotation
    }  # fmt: skip
    assert rotated < expected.keys()

    def named(sizes: dict[str, int]) -> dict[str, int]:
        """Without the tensors whose names are numbers, which count the others."""
        return {name: n for name, n in sizes.items() if not name.startswith("node_")}

    assert named(got) == {name: n for name, n in named(expected).items() if name not in rotated}


def test_sizes_that_no_plan_covers_cannot_be_chosen(open_page: Open, demo: Path) -> None:
    page = show(open_page(), demo)
    before = page.evaluate("() => report.state.get('layout').rows")
    page.evaluate("() => report.move({k: 'q5_1'})")
    assert page.evaluate("() => report.state.get('layout').rows") == before
    assert "No plan was made for these sizes" in page.locator(".sizes").inner_text()


def test_placement_that_depends_on_sizes_has_no_sliders(open_page: Open, tmp_path: Path) -> None:
    fitted = ("--devices", "reference,cpu", "--fit", "--memory", "reference=0.5MB")
    page = show(open_page(), report(DEMO, tmp_path, *fitted))
    assert page.locator("input[type=range]").count() == 0
    assert "No sliders for sizes: the placement depends on the sizes" in page.inner_text("#report")
