"""The page packs as `weft.allocate` does: the same places, whatever the sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages.report_page import show
from weft.allocate.lifetime import Item, lifetimes
from weft.allocate.pack import Problem
from weft.allocate.plan import like_reference
from weft.allocate.search import improve
from weft.graph.size import Sym, bounds, size_max, size_min
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.report import page_html
from weft.report.formulas import Formulas, NotCarried, upper_at
from weft.report.structure import structure

pytestmark = pytest.mark.xdist_group("browser")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Evaluates functions in a page without data."""
    path = tmp_path_factory.mktemp("report") / "page.html"
    path.write_text(page_html({"kind": "nothing", "title": "packing"}))
    one = browser.new_page()
    yield show(one, path).evaluate
    one.close()


def test_random_numbers_are_those_of_python(page: Any) -> None:
    rnd = random.Random(0)
    expected = [[rnd.random(), rnd.randrange(1 + i * 37), rnd.choice(range(5))] for i in range(900)]
    drawn = page(
        """() => {
            const r = report.random(0);
            return Array.from({length: 900}, (_, i) =>
                [r.random(), r.below(1 + i * 37), r.choice([0, 1, 2, 3, 4])]);
        }"""
    )
    assert drawn == expected


@pytest.mark.parametrize(
    ("seed", "n", "longest", "limit"),
    [
        (1, 60, 12, None),
        (1, 60, 12, 3000),
        (2, 150, 30, None),
        (2, 150, 30, 3000),
        (3, 900, 900, None),
        pytest.param(3, 900, 900, 3000, marks=pytest.mark.part("pages")),
    ],
)
def test_packings_are_equal(page: Any, seed: int, n: int, longest: int, limit: int | None) -> None:
    """With few items that live together, and with so many that there are no lists of them."""
    rnd = random.Random(seed)
    starts = [rnd.randrange(-1, n) for _ in range(n)]
    ends = [start + rnd.randrange(longest) for start in starts]
    sizes = [64 * rnd.randrange(1, 40) for _ in range(n)]
    items = [Item(0, *item) for item in zip(starts, ends, sizes, strict=True)]
    problem = Problem(items, limit)
    assert (problem.neighbours is None) == (n == 900)
    used = [sum(s for a, b, s in zip(starts, ends, sizes, strict=True) if a <= t <= b)
            for t in range(-1, n + longest)]  # fmt: skip
    packing, how = improve(problem, max(used), 300_000)
    got = page(
        """([starts, ends, sizes, limit, bound]) =>
            report.improve(report.pack.problem(starts, ends, sizes, limit), bound, 300000)""",
        [starts, ends, sizes, limit, max(used)],
    )
    assert got["how"] == how
    assert got["offsets"] == packing.offsets
    assert got["chunkOf"] == packing.chunk_of
    assert got["chunks"] == packing.chunks


@pytest.mark.parametrize("args", [{}, {"devices": ["reference", "cpu"], "n_gpu_layers": 2}])
def test_the_references_plan_is_equal(page: Any, args: dict[str, Any]) -> None:
    plan = prepare(Model.open(DEMO), n_ctx=128, **args)
    schedule = plan.plan.schedule
    life = lifetimes(schedule)
    expected = like_reference(schedule, life)
    shape = structure(schedule, Formulas())
    sizes = [life.sizes[t] for t in life.spans]
    got = page(
        """([structure, sizes]) => {
            const plan = report.reference.plan(structure, sizes);
            return {...plan, valid: report.reference.isValid(structure, sizes, plan.places)};
        }""",
        [shape, sizes],
    )
    places = [expected.place[t] for t in life.spans]
    assert [[p["arena"], p["chunk"], p["offset"]] for p in got["places"]] == [
        [p.arena, p.chunk, p.offset] for p in places
    ]
    assert got["chunks"] == [list(arena.chunks) for arena in expected.arenas]
    assert got["valid"] is True
    got["places"][-1]["offset"] = got["places"][-2]["offset"] = 0
    clash = page(
        "([structure, sizes, places]) => report.reference.isValid(structure, sizes, places)",
        [shape, sizes, [{"arena": 0, "chunk": 0, "offset": 0} for _ in places]],
    )
    assert clash is False


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
