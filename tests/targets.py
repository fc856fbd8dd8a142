"""The kernel targets that this machine runs, and which of them have kernels of their own.

`make test` tries the best target with everything. Other whole targets (`WHOLE`) are compiled from
the same sources with other flags: they get every recorded case of an op, and a share of what is
slow. A target over another one (`DERIVED`) has the kernels of that one but for products: it gets
what reaches its own. The rest is `make test-all PART=targets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from weft import _native

__all__ = ["BEST", "BUT_PRODUCTS", "DERIVED", "TARGETS", "WHOLE", "in_turn", "own_ops"]

TARGETS = [name for name, score in _native.targets() if score]
"""The targets of this build that this machine can run."""
BEST = _native.best_target()
_NAMES = [row.split()[0] for row in _native.op_table()]


@cache
def own_ops(target: str) -> frozenset[str]:
    """The ops whose kernels the target does not share with one before it."""
    return frozenset(_NAMES[number] for number in _native.own_ops(target))


_EVERY = frozenset[str]().union(*map(own_ops, TARGETS))
WHOLE = [target for target in TARGETS if own_ops(target) == _EVERY]
DERIVED = [target for target in TARGETS if target not in WHOLE]
BUT_PRODUCTS = [
    pytest.param(target, marks=pytest.mark.part("targets") if target in DERIVED else ())
    for target in TARGETS
]
"""Every target as a parameter of tests in which no kernel of products runs."""


def in_turn(values: Sequence[Any], targets: Sequence[str] = TARGETS) -> list[Any]:
    """Parameters (value, target): the best target with all values, each other one with every third,
    not the same as its neighbour's; the rest belongs to the part `targets`."""
    rest = pytest.mark.part("targets")
    return [
        pytest.param(
            value,
            target,
            marks=() if target == BEST or place % 3 == number % 3 else rest,
            id=f"{getattr(value, 'name', value)}-{target}",
        )
        for number, target in enumerate(targets)
        for place, value in enumerate(values)
    ]
