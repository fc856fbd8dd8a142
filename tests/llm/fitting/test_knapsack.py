"""The solver: the least cost within limits, the same as trying everything."""

from __future__ import annotations

import random
from itertools import product

import pytest

from weft.errors import ArgumentError
from weft.llm.fitting.knapsack import Option, Solution, solve


def tried(groups: list[list[Option]], limits: list[float]) -> float | None:
    """The least cost of all combinations."""
    costs = [
        sum(o.cost for o in picks)
        for picks in product(*groups)
        if all(sum(o.sizes[k] for o in picks) <= limit for k, limit in enumerate(limits))
    ]
    return min(costs, default=None)


def instance(rng: random.Random, n_limits: int) -> tuple[list[list[Option]], list[float]]:
    """Up to six groups of up to five options; like quantization: what is smaller costs more."""
    groups = []
    for _ in range(rng.randint(1, 6)):
        options = []
        for _ in range(rng.randint(1, 5)):
            sizes = tuple(float(rng.randint(1, 10 ** rng.randint(1, 9))) for _ in range(n_limits))
            options.append(Option(rng.random() ** 6 / (1 + sum(sizes)), sizes))
        groups.append(options)
    share = rng.random()
    limits = []
    for k in range(n_limits):
        least = sum(min(o.sizes[k] for o in g) for g in groups)
        most = sum(max(o.sizes[k] for o in g) for g in groups)
        limits.append(least + share * (most - least) if rng.random() < 0.9 else least - 1)
    return groups, limits


@pytest.mark.parametrize("n_limits", [1, 2, 3])
def test_it_is_as_good_as_trying_everything(n_limits: int) -> None:
    rng = random.Random(n_limits)
    n_solved = 0
    for _ in range(120):
        groups, limits = instance(rng, n_limits)
        found, best = solve(groups, limits), tried(groups, limits)
        assert (found is None) == (best is None)
        if found is None or best is None:
            continue
        n_solved += 1
        picks = [g[i] for g, i in zip(groups, found.chosen, strict=True)]
        assert found.cost == pytest.approx(best, rel=1e-9, abs=1e-300)
        for k, limit in enumerate(limits):
            assert sum(o.sizes[k] for o in picks) <= limit
    assert n_solved > 60


def test_large_sizes_stay_within_the_limit_to_the_byte() -> None:
    """A tolerance of the solver is 10^-6 of the limit: 8 kB of 8 GiB."""
    rng = random.Random(5)
    gib = 1 << 30
    groups = [
        [Option(1 / n, (float(n),)) for n in (rng.randint(1, gib // 8) for _ in range(6))]
        for _ in range(80)
    ]
    limit = sum(sum(o.sizes[0] for o in g) / len(g) for g in groups)
    found = solve(groups, [limit])
    assert found is not None and found.is_best
    assert sum(g[i].sizes[0] for g, i in zip(groups, found.chosen, strict=True)) <= limit


def test_no_groups_and_no_limits() -> None:
    assert solve([], []) == Solution((), 0.0, True)
    found = solve([[Option(2.0, ()), Option(1.0, ())]], [])
    assert found is not None and found.chosen == (1,)


@pytest.mark.parametrize(
    ("groups", "limits", "said"),
    [
        ([[]], [1.0], "no options"),
        ([[Option(1.0, (1.0, 2.0))]], [1.0], "2 sizes, but there are 1 limits"),
        ([[Option(float("nan"), (1.0,))]], [1.0], "not finite"),
        ([[Option(1.0, (float("inf"),))]], [1.0], "not finite"),
        ([[Option(1.0, (1.0,))]], [float("nan")], "must be finite"),
    ],
)
def test_senseless_input_is_a_sentence(
    groups: list[list[Option]], limits: list[float], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        solve(groups, limits)
