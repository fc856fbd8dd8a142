"""Plans of least predicted time within the memory of their machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from weft.allocate import Allocation
from weft.errors import OutOfMemoryError
from weft.graph.tensor import Tensor
from weft.schedule import CostOptions, Policy, Schedule

__all__ = ["memory_needs", "within_limits"]

_TRIES = 8


class Planned(Protocol):
    """A schedule and its memory."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def allocation(self) -> Allocation: ...


def memory_needs(plan: Planned, cost: CostOptions) -> dict[str, int]:
    """Memory of the profile -> bytes that a plan needs there for arenas, weights and caches."""
    model = cost.model(plan.schedule.graph, plan.schedule.backends)
    needs: dict[str, int] = {}
    for arena in plan.allocation.arenas:
        name = model.memory_of(arena.buffer_type)
        needs[name] = needs.get(name, 0) + arena.size
    for leaf in plan.schedule.graph.leaves:
        if leaf.buffer is not None:
            buffer_type = _type_of(leaf, plan.schedule)
            name = model.memory_of(buffer_type)
            needs[name] = needs.get(name, 0) + int(buffer_type.alloc_size(leaf))
    return needs


def _type_of(leaf: Tensor, schedule: Schedule) -> Any:
    assert leaf.buffer is not None
    own = leaf.buffer.type
    return schedule.backends[-1].buffer_type if own is None else own


P = TypeVar("P", bound=Planned)


def within_limits(
    fastest: P, plan: Callable[[Policy, CostOptions | None], P], cost: CostOptions
) -> P:
    """`fastest` if it fits every memory of the profile, else another plan that does.

    Results become more and more expensive in memories that are too full, until a plan fits; the
    last plan follows the reference's rules. Raises OutOfMemoryError naming the memory where none
    fits."""
    over = _over(fastest, cost)
    if not over:
        return fastest
    least = fastest
    seconds = fastest.schedule.predicted.total if fastest.schedule.predicted else 1.0
    surcharge = dict(cost.surcharge)
    for number in range(_TRIES):
        for name, (need, _) in over.items():
            # The first price doubles the time of all that a memory holds, the last is prohibitive.
            last = number == _TRIES - 1
            surcharge[name] = 1.0 if last else 4 * surcharge.get(name, seconds / need)
        least = plan("cost", replace(cost, surcharge=surcharge))
        over = _over(least, cost)
        if not over:
            model = cost.model(least.schedule.graph, least.schedule.backends)
            least.schedule.predicted = model.predict(least.schedule)
            return least
    rules = plan("ggml", None)
    if not _over(rules, cost):
        return rules
    name, (need, limit) = next(iter(over.items()))
    raise OutOfMemoryError(
        f"{name} has {limit:,} bytes and no plan was found that takes less than {need:,}; use a "
        "smaller context or batch, or leave more weights in host memory"
    )


def _over(plan: Planned, cost: CostOptions) -> dict[str, tuple[int, int]]:
    """Memory -> (need, limit) in bytes, where a plan needs more than there is."""
    memories = cost.profile.memories
    too_full = {}
    for name, need in memory_needs(plan, cost).items():
        limit = memories[name].size if name in memories else None
        if limit is not None and need > limit:
            too_full[name] = (need, limit)
    return too_full
