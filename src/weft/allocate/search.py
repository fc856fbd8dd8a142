"""Local search for an order of items that packs into fewer bytes.

An item that ends above the bound moves forward in the order, or trades places with another; the
items after it are packed again; a result that is not much worse is kept. The random numbers have a
fixed seed and effort is counted in steps of the packer, so that a plan never depends on the
machine.
"""

from __future__ import annotations

import random

from weft.allocate.pack import ORDERS, Packing, Problem, pack

# The relative increase of the cost with which a step is still kept.
_SLACK = 0.1
_SLACK_CHUNKS = 0.004
# The distance from the bound, relative to it, at which the search stops.
_ENOUGH = 1 / 2000
# Steps that placing an item counts beside one per neighbour, and those without lists of neighbours.
_ITEM_STEPS = 12
_DENSE_STEPS = 300


def improve(problem: Problem, bound: int, budget: int) -> tuple[Packing, str]:
    """The best packing, and the name of the method that gave it.

    The search stops near `bound` bytes, or after `budget` steps: visits of a neighbour's place,
    about 0.1 microseconds each."""
    goal = bound + int(bound * _ENOUGH)
    n = len(problem.sizes)
    if problem.neighbours is None:
        once = n * _DENSE_STEPS
    else:
        once = 2 * problem.n_pairs + n * _ITEM_STEPS
    starts: list[tuple[int, str, list[int], Packing]] = []
    for name in ORDERS:
        order = problem.order(name)
        packing = pack(problem, order, bound)
        if packing.size <= bound:
            return packing, name
        starts.append((packing.size, name, order, packing))
        budget -= once
        if budget <= 0:
            break
    starts.sort(key=lambda s: s[0])
    best, how = starts[0][3], starts[0][1]
    if best.size <= goal or problem.neighbours is None:
        return best, how
    # most of the effort where the start is best
    for share, (_, name, order, packing) in zip((0.5, 0.25, 0.25), starts, strict=False):
        walk = _Walk(problem, problem.neighbours, bound, goal)
        improved = walk.run(order, packing, int(budget * share))
        if improved.size < best.size:
            best, how = improved, f"{name}, improved"
        if best.size <= goal:
            break
    return best, how


class _Walk:
    """One search, from one order."""

    def __init__(
        self, problem: Problem, neighbours: list[list[int]], bound: int, goal: int
    ) -> None:
        self.problem = problem
        self.neighbours = neighbours
        self.bound = bound
        self.goal = goal
        self.slack = _SLACK if problem.limit is None else _SLACK_CHUNKS
        self.random = random.Random(0)

    def run(self, order: list[int], packing: Packing, budget: int) -> Packing:
        """The best packing of the search."""
        n = len(order)
        steps_per_item = 2 * self.problem.n_pairs // n + _ITEM_STEPS
        best = packing
        cost = self._cost(packing)
        while budget > 0 and best.size > self.goal:
            candidate, first = self._step(order, packing)
            budget -= (n - first + 1) * steps_per_item
            packed = pack(self.problem, candidate, self.bound, packing, first)
            new_cost = self._cost(packed)
            if new_cost <= cost * (1 + self.slack * self.random.random()):
                order, packing, cost = candidate, packed, new_cost
                if packed.size < best.size:
                    best = packed
        return best

    def _cost(self, packing: Packing) -> int:
        """Bytes above the bound, summed over items; the sum falls even while the peak stays."""
        return packing.excess if self.problem.limit is None else packing.size

    def _step(self, order: list[int], packing: Packing) -> tuple[list[int], int]:
        """A changed order, and the first position that changed."""
        offsets, rnd = packing.offsets, self.random
        high = packing.above
        if self.problem.limit is not None:
            tops = list(map(int.__add__, offsets, self.problem.sizes))
            high = [i for i, c in enumerate(packing.chunk_of) if tops[i] == packing.chunks[c]]
        item = rnd.choice(high)
        here = order.index(item)
        changed = order.copy()
        kind = rnd.random()
        if kind < 0.5:
            others = self.neighbours[item]
            below = [j for j in others if offsets[j] < offsets[item]] or others
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
