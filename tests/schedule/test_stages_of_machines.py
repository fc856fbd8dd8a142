"""Splits into stages: as good as trying every split, on random machines."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from weft.schedule.stages import StageProblem, best_split


def problem(
    rnd: random.Random, n_layers: int, machines: list[int], in_flight: int = 1
) -> StageProblem:
    """Random layers on devices whose machines are `machines`, the last of them at home."""
    n = len(machines)
    speed = [10 ** rnd.uniform(-1, 1) for _ in range(n)]
    work = np.array([rnd.uniform(0.5, 2.0) for _ in range(n_layers + 1)])
    seconds = np.array([work * s for s in speed])
    if rnd.random() < 0.3:
        seconds[rnd.randrange(n), rnd.randrange(n_layers)] = np.inf
    sizes = np.array([rnd.randint(1, 9) for _ in range(n_layers + 1)])
    far = np.array([[float(a != b) for b in range(n)] for a in range(n)])
    slow = np.array([[1.0 if machines[a] != machines[b] else 0.1 for b in range(n)]
                     for a in range(n)])  # fmt: skip
    spread = np.array([[10 ** rnd.uniform(-1, 1) for _ in range(n)] for _ in range(n)])
    size = n_layers + 2

    def table() -> tuple[np.ndarray, np.ndarray]:
        copies = np.array([[float(rnd.randint(0, 3)) for _ in range(size)] for _ in range(size)])
        return copies, copies * rnd.uniform(0.1, 2)

    room = [rnd.choice([np.inf, sizes.sum() * rnd.uniform(0.2, 1.2)]) for _ in range(n)]
    return StageProblem(
        seconds,
        np.array([rnd.uniform(0, 0.3) for _ in range(n)]),
        np.array([sizes] * n),
        np.array(room),
        [rnd.choice([i, max(i - 1, 0)]) if machines[i] == machines[max(i - 1, 0)] else i
         for i in range(n)],
        machines,
        n - 1,
        0.3 * far * slow * spread,
        0.2 * far * slow * spread,
        table(),
        table(),
        (1.0, rnd.uniform(0, 5)),
        in_flight,
    )  # fmt: skip


def every_split(p: StageProblem) -> Iterator[list[int]]:
    """All splits: any devices in any order, any borders, the output with the last or at home."""
    n = p.n_layers
    for k in range(1, p.n_devices + 1):
        for order in itertools.permutations(range(p.n_devices), k):
            for borders in itertools.combinations(range(1, n), k - 1):
                ends = [*borders, n]
                body = [d for d, (a, b) in zip(order, itertools.pairwise([0, *ends]), strict=True)
                        for _ in range(b - a)]  # fmt: skip
                for output in range(p.n_devices):
                    if output == body[-1] or p.machine[output] == p.machine[p.home]:
                        yield [*body, output]


def by_hand(p: StageProblem, of_layer: list[int]) -> float:
    """The time of a split, node for node, written without `StageProblem.time`."""
    n = p.n_layers
    body = [d for d, _ in itertools.groupby(of_layer[:n])]
    runs = [m for m, _ in itertools.groupby(p.machine[d] for d in body)]
    memories = [p.memory[d] for d in {*body, of_layer[n]}]
    if len(set(runs)) < len(runs) or len(set(memories)) < len(memories):
        return float("inf")
    for d in set(of_layer):
        if sum(p.nbytes[d][i] for i, x in enumerate(of_layer) if x == d) > p.room[d]:
            return float("inf")
    parts, at, i = [], p.home, 0
    for d, group in itertools.groupby(of_layer):
        j = i + len(list(group))
        parts.append(sum(p.seconds[d][i:j]) + p.start[d])
        parts.append(
            p.latency[p.home][d] * p.inputs[0][i][j] + p.per_byte[p.home][d] * p.inputs[1][i][j]
        )
        parts.append(
            p.latency[at][d] * p.crossing[0][i][j] + p.per_byte[at][d] * p.crossing[1][i][j]
        )
        at, i = d, j
    parts.append(p.latency[at][p.home] * p.result[0] + p.per_byte[at][p.home] * p.result[1])
    return max(sum(parts) / p.in_flight, max(parts))


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("seed", range(40))
def test_no_split_is_better(seed: int, in_flight: int) -> None:
    rnd = random.Random(seed)
    machines = rnd.choice([[1, 0], [1, 2, 0], [1, 1, 0], [1, 0, 0], [1, 1, 2, 0], [1, 2, 3, 0]])
    p = problem(rnd, rnd.randint(1, 6), machines, in_flight)
    found = best_split(p)
    times = [(by_hand(p, split), split) for split in every_split(p)]
    least, _ = min(times)
    assert all(p.time(split) == pytest.approx(t) for t, split in times[::7] if t < float("inf"))
    if found is None:
        assert least == float("inf")
        return
    assert by_hand(p, found.of_layer) == pytest.approx(found.seconds)
    assert found.seconds == pytest.approx(least)


def test_machines_are_visited_once() -> None:
    for seed in range(30):
        p = problem(random.Random(seed), 8, [1, 1, 2, 0])
        found = best_split(p)
        if found is not None:
            body = [p.machine[d] for d in found.of_layer[:-1]]
            runs = [m for m, _ in itertools.groupby(body)]
            assert len(set(runs)) == len(runs)


def test_more_devices_than_orders_are_tried_for() -> None:
    p = problem(random.Random(1), 40, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    p.seconds = np.ones_like(p.seconds)
    p.nbytes = np.ones_like(p.nbytes)
    p.room = np.full(10, 5.0)
    found = best_split(p)
    assert found is not None and len(set(found.of_layer)) == 9
    p.room[:] = 4
    assert best_split(p) is None


def test_equal_machines_share_the_layers() -> None:
    p = problem(random.Random(3), 12, [1, 0])
    p.seconds, p.nbytes = np.ones((2, 13)), np.ones((2, 13), np.int64)
    p.room, p.start = np.full(2, 10.0), np.zeros(2)
    p.inputs = p.crossing = (np.zeros((14, 14)), np.zeros((14, 14)))
    p.result = (0.0, 0.0)
    found = best_split(p)
    assert found is not None and found.seconds == pytest.approx(13)
    assert sorted((found.of_layer.count(0), found.of_layer.count(1))) == [6, 7]
