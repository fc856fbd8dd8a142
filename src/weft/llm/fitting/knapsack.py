"""One choice for each group: the least cost within limits, exactly.

This is the multiple-choice knapsack problem. HiGHS solves it as an integer program (branch and cut,
`scipy.optimize.milp`), after choices that another of the same group beats in every respect are left
out. Needs the extra `weft[fit]`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from weft.errors import ArgumentError, UnsupportedOpError
from weft.extras import how_to_install
from weft.records import dataclass

_SECONDS = 20.0
"""Number of seconds after which the best solution so far counts."""
_SCALE = 1e6
"""Sum to which costs are scaled; HiGHS stops at an absolute gap of 1e-6."""
_UNITS = 1e6
"""Number to which limits are scaled, so that the solver's tolerance of 1e-6 is less than a byte."""
_TRIES = 12
_ROUNDING = 1e-13
"""Share of a limit by which a sum may miss it through rounding; for 8 TiB it is a byte."""
_LEAST = 1e-9
_GAP = 1e-4
"""Relative cost by which a solution within the limits may exceed the first one, which was not, and
still count as the best."""


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of a group: what it costs, and what it takes of each limit."""

    cost: float
    sizes: tuple[float, ...]
    """Amount of each limit that the option uses; same length and order as the limits."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice for each group."""

    chosen: tuple[int, ...]
    """The index of the option of each group."""
    cost: float
    is_best: bool
    """False if time ran out before it was certain."""


def require_solver() -> None:
    """Raises UnsupportedOpError, naming the extra, if SciPy is not installed."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise UnsupportedOpError(
            f"choosing types for a budget needs SciPy's solver; {how_to_install('fit')}"
        ) from None


def solve(
    groups: Sequence[Sequence[Option]], limits: Sequence[float], gap: float = 1e-6
) -> Solution | None:
    """The options, one of each group, of least total cost whose total sizes are within `limits`.

    The solver stops when the cost is certain to be the least to `gap` of it. None: nothing is
    within the limits. Raises ArgumentError for a group without options and numbers that are not
    finite, UnsupportedOpError without SciPy."""
    _require_sane(groups, limits)
    if not groups:
        return Solution((), 0.0, True)
    kept = [_undominated(options) for options in groups]
    least = [sum(min(o.sizes[k] for o in g) for g in groups) for k in range(len(limits))]
    if any(n > limit for n, limit in zip(least, limits, strict=True)):
        return None
    narrowed, less, bound = list(limits), 0.0, -math.inf
    for _ in range(_TRIES):
        found = _milp(groups, kept, narrowed, gap)
        if found is None and bound == -math.inf:
            return None
        if found is None:  # so near to a sum of sizes that the solver finds neither
            less *= 4
            narrowed = [limit - less * abs(limit) for limit in limits]
            continue
        bound = found.cost if bound == -math.inf else bound
        over = max(
            (sum(g[i].sizes[k] for g, i in zip(groups, found.chosen, strict=True)) - limit)
            / max(abs(limit), 1e-300)
            for k, limit in enumerate(limits)
        ) if limits else 0.0  # fmt: skip
        if over <= _ROUNDING:
            certain = found.is_best and found.cost <= bound + _GAP * abs(bound)
            return Solution(found.chosen, found.cost, certain)
        # the solver takes 0.999999 for 1, so that a limit is missed by a little: ask for less
        less = max(2 * over, 4 * less, _LEAST)
        narrowed = [limit - less * abs(limit) for limit in limits]
    return None


def _require_sane(groups: Sequence[Sequence[Option]], limits: Sequence[float]) -> None:
    if not all(groups):
        raise ArgumentError("a group has no options; leave it out")
    for group in groups:
        for option in group:
            if len(option.sizes) != len(limits):
                raise ArgumentError(
                    f"an option has {len(option.sizes)} sizes, but there are {len(limits)} limits"
                )
            if not all(map(math.isfinite, (option.cost, *option.sizes))):
                raise ArgumentError(f"{option} has numbers that are not finite")
    if not all(map(math.isfinite, limits)):
        raise ArgumentError(f"limits {list(limits)} must be finite; leave out those without")


def _undominated(options: Sequence[Option]) -> list[int]:
    """The options than which no other is better or as good in every respect."""
    kept: list[int] = []
    order = sorted(range(len(options)), key=lambda i: (options[i].cost, options[i].sizes))
    for i in order:
        sizes = options[i].sizes
        if not any(all(a <= b for a, b in zip(options[j].sizes, sizes, strict=True)) for j in kept):
            kept.append(i)
    return kept


def _milp(
    groups: Sequence[Sequence[Option]],
    kept: Sequence[Sequence[int]],
    limits: Sequence[float],
    gap: float,
) -> Solution | None:
    require_solver()
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    owners = np.concatenate([np.full(len(k), g) for g, k in enumerate(kept)])
    chosen = [groups[g][i] for g, k in enumerate(kept) for i in k]
    cost = np.array([o.cost for o in chosen])
    n = len(chosen)
    one = csr_array((np.ones(n), (owners, np.arange(n))), shape=(len(groups), n))
    constraints = [LinearConstraint(one, 1, 1)]
    for k, limit in enumerate(limits):
        sizes = np.array([o.sizes[k] for o in chosen])
        unit = max(abs(limit), float(np.abs(sizes).max()), 1e-300) / _UNITS
        constraints.append(LinearConstraint(sizes[None] / unit, -np.inf, limit / unit))
    with _quiet():
        result = milp(
            _scaled(cost),
            integrality=np.ones(n),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": gap, "time_limit": _SECONDS, "presolve": True},
        )
    if result.x is None:
        return None
    taken = np.rint(result.x).astype(bool)
    picks: list[int] = []
    at = 0
    for options in kept:
        picks.append(options[int(taken[at : at + len(options)].argmax())])
        at += len(options)
    total = sum(g[i].cost for g, i in zip(groups, picks, strict=True))
    return Solution(tuple(picks), total, result.status == 0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the solver from writing to the process's standard output, where it leaves a line now
    and then that no option turns off."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _scaled(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs from 0 on, whose sum is `_SCALE`."""
    total = float(np.abs(cost).sum())
    return cost * (_SCALE / total) if total > 0 else cost
