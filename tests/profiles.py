"""How many examples a test with random input tries.

The profile is chosen by `pytest --profile NAME`. `ci`, the default, takes the same examples in each
run; `nightly` takes five times as many, which differ from run to run. A test that needs more or
fewer than others says `@settings(max_examples=examples(2.0))`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

EXAMPLES = {"ci": 20, "nightly": 100}
"""Examples of a test, by profile."""
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
"""Checks that fail by how busy the machine is."""


def use_profile(name: str) -> None:
    """Makes `name` the profile of every test that is collected from now on."""
    common = {"deadline": None, "suppress_health_check": SLOW}
    settings.register_profile("ci", max_examples=EXAMPLES["ci"], derandomize=True, **common)
    settings.register_profile("nightly", max_examples=EXAMPLES["nightly"], **common)
    settings.load_profile(name)


def examples(factor: float) -> int:
    """The number of examples of the chosen profile, times `factor`; at least one."""
    return max(1, round(settings.default.max_examples * factor))  # type: ignore[union-attr]
