"""A little of what `make fuzz` runs for long; and what was found once stays found."""

from __future__ import annotations

import pytest

from tests.fuzz import (
    adapters,
    batches,
    commands,
    kept_texts,
    links,
    models,
    plans,
    quality,
    samplers,
    states,
    templates,
    wheels,
)
from tests.shares import share

DRIVERS = {
    "adapters": (adapters.run, 25),
    "batches": (batches.run, 150),
    "commands": (commands.run, 40),
    "kept_texts": (kept_texts.run, 30),
    "links": (links.run, 60),
    "models": (models.run, 40),
    "plans": (plans.run, 15),
    "quality": (quality.run, 150),
    "samplers": (samplers.run, 300),
    "states": (states.run, 25),
    "templates": (templates.run, 20),
    "wheels": (wheels.run, 60),
}


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("seed", share("faults", (0, 1), (0,)))
def test_nothing_but_results_and_weft_errors(name: str, seed: int) -> None:
    run, n = DRIVERS[name]
    run(seed, n)


@pytest.mark.parametrize("text", plans.TEXTS)
def test_plans_that_are_none(text: str) -> None:
    assert not plans.check(text)


@pytest.mark.parametrize("seed", [38, 82, 275, 292, 1030, 1668, 1757, 2396])
def test_samplers_that_failed_once(seed: int) -> None:
    samplers.check(seed)
