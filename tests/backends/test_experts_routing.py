"""Simulated policies against their definitions, and records as files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from weft.backends.cpu.routing import SIMULATED, Routing, best_policy, simulate
from weft.errors import FormatError, MissingFileError


def routing_of(steps: list[tuple[int, list[int]]], n_experts: tuple[int, ...]) -> Routing:
    return Routing(n_experts, tuple(n for layer, e in steps for n in (layer, len(e), *e)))


def random_routing(skew: float, seed: int = 0, n_steps: int = 60) -> Routing:
    """Three layers of 12 experts, of which a token takes 3; with skew, some lead."""
    random = np.random.default_rng(seed)
    bias = skew * random.standard_normal((3, 12))
    steps = []
    for _ in range(n_steps):
        for layer in range(3):
            scores = bias[layer] + random.standard_normal(12)
            steps.append((layer, np.argsort(-scores)[:3].tolist()))
    return routing_of(steps, (12, 12, 12))


def steps_of(routing: Routing) -> list[tuple[int, list[int]]]:
    steps, i = [], 0
    while i < len(routing.record):
        layer, n = routing.record[i : i + 2]
        steps.append((layer, list(routing.record[i + 2 : i + 2 + n])))
        i += 2 + n
    return steps


def plain_lru(routing: Routing, n_slots: int) -> float:
    """The hit rate by the words: what gives way was used in the earliest step of its layer."""
    count: Counter[int] = Counter()
    last: dict[tuple[int, int], int] = {}
    slots: list[tuple[int, int] | None] = [None] * n_slots
    asked = hits = 0
    for layer, experts in steps_of(routing):
        count[layer] += 1
        now = [(layer, e) for e in experts]
        last |= dict.fromkeys(now, count[layer])
        asked += len(now)
        hits += sum(key in slots for key in now)
        for key in now:
            if key in slots:
                continue
            if None in slots:
                place = slots.index(None)
            else:
                places = [i for i, held in enumerate(slots) if held not in now]
                place = min(places, key=lambda i: last[slots[i]])  # type: ignore[index]
            slots[place] = key
    return hits / asked


@pytest.mark.parametrize("skew", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("n_slots", [3, 7, 18, 36])
def test_policies(skew: float, n_slots: int) -> None:
    routing = random_routing(skew)
    rates = {policy: simulate(routing, n_slots, policy) for policy in SIMULATED}
    assert rates["lru"] == pytest.approx(plain_lru(routing, n_slots))
    assert rates["lru"] <= rates["best"] and rates["lfu"] <= rates["best"]
    if n_slots == 36:  # everything is read once
        named = {(layer, e) for layer, experts in steps_of(routing) for e in experts}
        once = 1 - len(named) / routing.n_asked
        assert all(rates[p] == pytest.approx(once) for p in ("lru", "lfu", "best"))


def test_counts_beat_recency_where_some_experts_lead() -> None:
    routing = random_routing(2.0, n_steps=400)
    assert simulate(routing, 12, "lfu") > simulate(routing, 12, "lru") + 0.02
    assert best_policy(routing, 12, "lru") == best_policy(routing, 12, "lfu") == "lfu"


def test_predictions_hit_where_layers_follow_each_other() -> None:
    random = np.random.default_rng(0)
    steps = []
    for _ in range(200):
        first = random.choice(16, 2, replace=False)
        steps += [(0, first.tolist()), (1, ((first + 3) % 16).tolist())]
    routing = routing_of(steps, (16, 16))
    assert simulate(routing, 8, "predict") > simulate(routing, 8, "lfu") + 0.25
    assert best_policy(routing, 8) == "predict"


def test_a_policy_stays_where_none_is_better() -> None:
    routing = random_routing(1.0)
    assert [best_policy(routing, 36, now) for now in SIMULATED[:3]] == list(SIMULATED[:3])


def test_the_bound_is_beladys() -> None:
    # with two slots, 0 and 1 stay and 2 passes through: hits are 0 1 0 1
    routing = routing_of([(0, [e]) for e in (0, 1, 2, 0, 1, 2, 0, 1)], (3,))
    assert simulate(routing, 2, "lru") == 0
    assert simulate(routing, 2, "best") == 3 / 8
    assert simulate(routing, 3, "best") == 5 / 8


def test_records_are_files(tmp_path: Path) -> None:
    routing = random_routing(1.0)
    routing.save(tmp_path / "r")
    assert Routing.load(tmp_path / "r") == routing
    assert (routing.n_steps, routing.n_asked) == (180, 540)
    lines = (tmp_path / "r").read_text().splitlines()
    for number, line in ((3, "0 1 x"), (4, "3 1"), (5, "0 12"), (6, "-1 0"), (1, "{}"), (2, "")):
        damaged = [*lines[: number - 1], line, *lines[number:]]
        (tmp_path / "d").write_text("\n".join(damaged))
        with pytest.raises(FormatError, match=rf"/d, line {number}: not a record"):
            Routing.load(tmp_path / "d")
    (tmp_path / "d").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="cannot read"):
        Routing.load(tmp_path / "d")
    with pytest.raises(MissingFileError):
        Routing.load(tmp_path / "none")


def test_damaged_records_are_errors() -> None:
    for record in ((0,), (0, 5, 1), (0, -1), (3, 1, 0), (0, 1, 12), (-1, 0)):
        for policy in SIMULATED:
            with pytest.raises(FormatError, match="damaged record"):
                simulate(Routing((12, 12, 12), record), 4, policy)
