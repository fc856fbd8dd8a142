"""Sizes that the page computes by formulas are those of planning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.pages.report_page import show
from weft.graph.size import Sym, bounds, size_max, size_min
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.report import page_html
from weft.report.formulas import Formulas, NotCarried, upper_at
from weft.report.variants import slider_data

pytestmark = pytest.mark.xdist_group("browser")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Evaluates functions in a page without data."""
    path = tmp_path_factory.mktemp("report") / "page.html"
    path.write_text(page_html({"kind": "nothing", "title": "formulas"}))
    one = browser.new_page()
    yield show(one, path).evaluate
    one.close()


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({}, marks=pytest.mark.part("pages")),
        {"devices": ["reference", "cpu"], "n_gpu_layers": 2},
    ],
)
def test_lower_bounds_are_those_of_planning(page: Any, args: dict[str, Any]) -> None:
    model = Model.open(DEMO)
    data = slider_data(prepare(model, n_ctx=128, **args))
    for ctx, ub in product((64, 96, 128), (32, 64)):
        plan = prepare(model, n_ctx=ctx, n_ubatch=ub, **args)
        at = data["base"] | {"ctx": ctx, "ub": ub}
        got = page(
            """([sliders, at]) => {
                for (const structure of sliders.structures) structure.packings = {};
                return report.layoutAt({sliders}, at);
            }""",
            [data, at],
        )
        assert not got["exact"] and not got["regimes"][0]["tensors"]
        memory = plan.plan.allocation
        bounds = [(a["memory"], a["lower_bound"]) for a in got["regimes"][0]["arenas"]]
        assert bounds == [(arena.buffer_type.name, arena.lower_bound) for arena in memory.arenas]


def test_formulas_have_the_bounds_of_planning(page: Any) -> None:
    n, m = Sym("n_tokens", 1, 96).size, Sym("n_kv", 1, 640).size
    sizes = [
        512 * n, 4 * n * m + 8, 2 * ((m + 31) // 32) * n, size_max(n, m) * 4, size_min(3 * n, m),
        (n * m) % 7 + n, 12, ((n + 63) // 64 * 64) * 2,
    ]  # fmt: skip
    ranges = {"n_tokens": [1, 33], "n_kv": [1, 100]}
    low = {name: (a, b) for name, (a, b) in ranges.items()}
    formulas = Formulas()
    for size in sizes:
        formulas.number(size)
    assert page("([texts, r]) => texts.map((t) => report.formula.upper(t, r))",
                [formulas.texts, ranges]) == [upper_at(size, low) for size in sizes]  # fmt: skip
    full = {"n_tokens": (1, 96), "n_kv": (1, 640)}
    assert [upper_at(size, full) for size in sizes] == [bounds(size)[1] for size in sizes]
    with pytest.raises(NotCarried, match="of which the page knows no bound"):
        formulas.number(n * 8 - m)


def test_a_report_needs_no_network(page: Any, tmp_path: Path) -> None:
    policy = page("() => document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
