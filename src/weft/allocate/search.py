"""Local search for an order of items that packs into fewer bytes.

An item that ends above the bound is put earlier in the order, or trades places with another; the
items after it are packed again; a result that is not much worse is kept. The random numbers have a
fixed seed and effort is counted in steps of the packer, so that a plan never depends on the
machine.
"""

from __future__ import annotations

import random

from weft.allocate.pack import ORDERS, Packing, Problem, pack

__all__ = ["improve"]

# How much worse (relative) a step may be and still be kept: small, as most steps must improve.
_SLACK = 0.1
_SLACK_CHUNKS = 0.004
# Close enough to stop looking, relative to the bound.
_ENOUGH = 1 / 2000
# Steps that placing an item costs on top of one per neighbour.
_ITEM_STEPS = 12


def improve(problem: Problem, bound: int, budget: int) -> tuple[Packing, str]:
    """The best packing found, and how. Stops near `bound` bytes, or after `budget` steps: places
    of neighbours looked at, about 0.1 microseconds each."""
    goal = bound + int(bound * _ENOUGH)
    starts: list[tuple[int, str, list[int], Packing]] = []
    for name in ORDERS:
        order = problem.order(name)
        packing = pack(problem, order)
        if packing.size <= bound:
            return packing, name
        starts.append((packing.size, name, order, packing))
    starts.sort(key=lambda s: s[0])
    best, how = starts[0][3], starts[0][1]
    if best.size <= goal:
        return best, how
    # most of the effort where the start is best
    for share, (_, name, order, packing) in zip((0.5, 0.25, 0.25), starts, strict=False):
        found = _walk(problem, order, packing, (bound, goal), int(budget * share))
        if found.size < best.size:
            best, how = found, f"{name}, improved"
        if best.size <= goal:
            break
    return best, how


def _walk(
    problem: Problem, order: list[int], packing: Packing, goals: tuple[int, int], budget: int
) -> Packing:
    bound, enough = goals
    steps_per_item = sum(map(len, problem.neighbours)) // len(order) + _ITEM_STEPS
    rnd = random.Random(0)
    slack = _SLACK if problem.limit is None else _SLACK_CHUNKS
    best = packing
    cost = _cost(problem, packing, bound)
    while budget > 0 and best.size > enough:
        candidate, first = _step(problem, order, packing, bound, rnd)
        budget -= (len(order) - first + 1) * steps_per_item
        packed = pack(problem, candidate, packing, first)
        new_cost = _cost(problem, packed, bound)
        if new_cost <= cost * (1 + slack * rnd.random()):
            order, packing, cost = candidate, packed, new_cost
            if packed.size < best.size:
                best = packed
    return best


def _cost(problem: Problem, packing: Packing, bound: int) -> int:
    """Bytes above the bound, summed over items: falls even while the peak stays."""
    if problem.limit is not None:
        return packing.size
    tops = map(int.__add__, packing.offsets, problem.sizes)
    return sum([top - bound for top in tops if top > bound])


def _step(
    problem: Problem, order: list[int], packing: Packing, bound: int, rnd: random.Random
) -> tuple[list[int], int]:
    """A changed order, and the first position that changed."""
    offsets, sizes = packing.offsets, problem.sizes
    if problem.limit is None:
        high = [i for i, (o, s) in enumerate(zip(offsets, sizes, strict=True)) if o + s > bound]
    else:
        tops = packing.chunks
        high = [i for i, c in enumerate(packing.chunk_of) if offsets[i] + sizes[i] == tops[c]]
    item = rnd.choice(high)
    here = order.index(item)
    changed = order.copy()
    kind = rnd.random()
    if kind < 0.5:
        neighbours = problem.neighbours[item]
        below = [j for j in neighbours if offsets[j] < offsets[item]] or neighbours
        del changed[here]
        there = changed.index(rnd.choice(below)) if below else 0
        changed.insert(there, item)
    elif kind < 0.85:
        there = rnd.randrange(here + 1)
        del changed[here]
        changed.insert(there, item)
    else:
        there = rnd.randrange(len(order))
        changed[here], changed[there] = changed[there], changed[here]
    return changed, min(here, there)
