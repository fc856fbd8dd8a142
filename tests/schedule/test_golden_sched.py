"""The reference's own plans: every value of every recorded case, and how much smaller ours are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vectors.sched import SET_ASIDE, Driver, load_cases, run_case
from weft.allocate import allocate, validate

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "sched_cases.jsonl.gz"
FULL = ROOT.parent / "shared" / "vectors" / "sched" / "cases.jsonl.gz"
KINDS = "textbook random llama many_inputs alloc alloc_deps edge sequence".split()


@pytest.fixture(scope="module", params=["sample", "full"])
def cases(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    path = SAMPLE if request.param == "sample" else FULL
    if not path.exists():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    return list(load_cases(path))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_reference(cases: list[dict[str, Any]], kind: str) -> None:
    chosen = [c for c in cases if c["kind"] == kind and c["id"] not in SET_ASIDE]
    assert chosen
    messages = [message for ok, message in map(run_case, chosen) if not ok]
    assert not messages, "\n".join(messages)


def test_little_is_set_aside(cases: list[dict[str, Any]]) -> None:
    assert len(SET_ASIDE) <= 0.02 * len(cases)


def test_a_difference_is_found(cases: list[dict[str, Any]]) -> None:
    case = next(c for c in cases if c["kind"] == "textbook" and "steps" not in c)
    changed = {**case, "expect": {**case["expect"], "n_splits": 99}}
    ok, message = run_case(changed)
    assert not ok and "n_splits: the reference has 99" in message


def test_best_is_never_larger_and_mostly_optimal(cases: list[dict[str, Any]]) -> None:
    """Never above the reference's plan; within 1% of the lower bound on 95% of the cases."""
    near = 0
    for case in cases:
        worst = 0.0
        driver = Driver(case)
        # of a sequence the last two graphs, to save time: the others are alike
        for name, call, graph in _graphs(case)[-2:]:
            _, scheduled = driver.step("split" if call == "alloc" else call, graph)
            ours, theirs = allocate(scheduled), allocate(scheduled, "ggml")
            validate(scheduled, ours)
            assert ours.total <= theirs.total, name
            worst = max(worst, ours.total / max(ours.lower_bound, 1))
        near += worst <= 1.01
    assert near >= 0.95 * len(cases)


def _graphs(case: dict[str, Any]) -> list[tuple[str, str, Any]]:
    if "steps" not in case:
        return [(case["id"], "alloc", case)]
    return [
        (f"{case['id']} step {i}", step["call"], case["graphs"][step["graph"]])
        for i, step in enumerate(case["steps"])
        if "graph" in step
    ]
