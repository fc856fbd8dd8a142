"""The report plans other sizes itself: its bytes are those of `weft explain --json`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_model import Shape, make_model
from tests.cli.in_process import weft
from tests.pages.report_page import chromium, opened

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
POSITIONS = 10
TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


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


def positions(one: Any, seed: int) -> list[dict[str, Any]]:
    """Positions that the sliders of an open report can take, the plan's own first."""
    sliders = one("() => report.data.sliders")
    chosen = [sliders["base"]]
    rnd = random.Random(seed)
    while len(chosen) < POSITIONS:
        at = {name: rnd.choice(sliders[name]) for name in ("ctx", "ub", "seqs")}
        at |= {"k": rnd.choice(TYPES), "v": rnd.choice(TYPES)}
        if at not in chosen and one("at => report.variant(report.data.sliders, at) !== null", at):
            chosen.append(at)
    return chosen


def compare(browser: Any, model: Path, path: Path, *args: str) -> None:
    with opened(browser) as one:
        one.show(path)
        for at in positions(one, 7):
            one("at => report.move(at)", at)
            shown = one("() => report.state.get('layout').rows")
            assert bytes_of(shown) == bytes_of(explained(model, at, *args)), at
            # the table shows the same bytes to people
            one("() => report.state.set({view: 'memory'})")
            text = one.page.locator(".buffers").inner_text()
            assert all(f"{row['bytes']:,}" in text for row in shown), at


def test_demo_model(browser: Any, tmp_path: Path) -> None:
    compare(browser, DEMO, report(DEMO, tmp_path))


def test_two_devices(browser: Any, tmp_path: Path) -> None:
    devices = ("--devices", "reference,cpu", "-ngl", "2")
    compare(browser, DEMO, report(DEMO, tmp_path, *devices), *devices)


def test_mixture_of_32_layers(browser: Any, tmp_path: Path, mixture: Path) -> None:
    path = report(mixture, tmp_path)
    assert path.stat().st_size < 200_000
    compare(browser, mixture, path)


def test_sizes_that_no_plan_covers_cannot_be_chosen(browser: Any, tmp_path: Path) -> None:
    with opened(browser) as one:
        one.show(report(DEMO, tmp_path))
        before = one("() => report.state.get('layout').rows")
        one("() => report.move({k: 'q5_1'})")
        assert one("() => report.state.get('layout').rows") == before
        assert "No plan was made for these sizes" in one.page.locator(".sizes").inner_text()


def test_placement_that_depends_on_sizes_has_no_sliders(browser: Any, tmp_path: Path) -> None:
    fitted = ("--devices", "reference,cpu", "--fit", "--memory", "reference=0.5MB")
    with opened(browser) as one:
        one.show(report(DEMO, tmp_path, *fitted))
        assert one.page.locator("input[type=range]").count() == 0
        assert "No sliders for sizes: the placement depends on the sizes" in one.page.inner_text(
            "#report"
        )
