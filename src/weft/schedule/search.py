"""The search for a placement: a walk along the nodes that keeps the best partial placements, then
small changes.

The walk is dynamic programming over states. The cost of later nodes depends on earlier choices only
through the device of the current split, whether that split has copied something, and for each value
that is still to be read its place and the devices that have a copy. Two partial placements with the
same state are compared and the cheaper is kept. On a chain there are few states and the result is
the optimum. On a graph with many values alive, the cheapest `width` states go on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import field

from weft.records import dataclass
from weft.schedule.problem import FREE, Problem

_SHIFTS = (1, 2, 4, 8, 16)


@dataclass(slots=True)
class Found:
    """The placement that a search found."""

    seconds: float
    where: list[int]
    """Device of each work node."""
    exact: bool = False
    """Whether it is known that no placement is faster."""
    how: str = ""


@dataclass(slots=True)
class _Node:
    """One node as the walk sees it; positions are in the list of live values."""

    enter: list[int] = field(default_factory=list)
    """States of values that are read here for the first time, appended to the list."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(position, value) of each value that it reads."""
    follows: tuple[int, int] | None = None
    """(position, value) of the value in whose memory it computes."""
    keep: list[int] = field(default_factory=list)
    """Positions of values that are read later."""
    n_results: int = 0
    """The number of results that are read later; they follow the kept values."""
    fixed: list[float] = field(default_factory=list)
    """Per device, the seconds of the node and of copies of values that only this node reads."""
    copies: list[bool] = field(default_factory=list)
    """Per device, whether there are copies of values that only this node reads."""
    foreign: list[bool] = field(default_factory=list)
    """Per device, whether it must copy a weight that only this node reads."""


_State = tuple[int, bool, tuple[int, ...]]
"""Device, whether its split has inputs, and the states of live values."""
_Cost = tuple[float, tuple[int, ...]]
"""The objective so far, and the bytes that free leaves take in each limited memory."""
_Way = tuple[float, tuple[int, ...], int, int]
"""A `_Cost`, the number of the state before, and the device of the node."""


@dataclass(slots=True)
class _Room:
    """The limits of memory for free leaves, and its price."""

    slot: dict[str, int]
    """The number of each limited memory."""
    sizes: list[int]
    """The bytes of each limited memory."""
    price: float
    """Seconds per byte."""


def walk(
    problem: Problem, width: int, *, price: float = 0.0, limits: Mapping[str, int] | None = None
) -> Found | None:
    """The best placement that a search over `width` states at a time finds; None where none fits.

    `limits` maps a memory to the bytes that free leaves may take there. `price` is the time in
    seconds per byte that such a leaf must save to be worth its room."""
    limited = sorted(limits or {})
    slot = {memory: i for i, memory in enumerate(limited)}
    room = _Room(slot, [(limits or {})[memory] for memory in limited], price)
    exact = True
    states: dict[_State, _Cost] = {(-1, False, ()): (0.0, (0,) * len(limited))}
    parents: list[list[tuple[int, int]]] = []
    for i, node in enumerate(_prepare(problem)):
        fresh, settles = _states_behind(problem, i, node, states, room)
        if not fresh:
            return None
        if settles:
            exact = False
        if len(fresh) > width:
            exact = False
            fresh = _best_states(fresh, width, problem.n_devices)
        parents.append([(parent, b) for _, _, parent, b in fresh.values()])
        states = {key: (total, used) for key, (total, used, _, _) in fresh.items()}
    costs = [cost for cost, _ in states.values()]
    index = costs.index(min(costs))
    where = []
    for step in reversed(parents):
        index, b = step[index]
        where.append(b)
    where.reverse()
    seconds, _ = problem.simulate(where)
    return Found(seconds, where, exact, "a walk along the nodes")


def _states_behind(
    problem: Problem, i: int, node: _Node, states: Mapping[_State, _Cost], room: _Room
) -> tuple[dict[_State, _Way], bool]:
    """The states behind node `i`, each with the cheapest way there, and whether any way chooses
    the place of a free leaf."""
    n, settles = problem.n_devices, False
    home, readable = problem.home, problem.readable
    fresh: dict[_State, _Way] = {}
    for parent, ((current, has_inputs, live), (cost, used)) in enumerate(states.items()):
        base = (*live, *node.enter)
        for b in problem.allowed[i]:
            values = list(base)
            own = home[b] << n
            total = cost + node.fixed[b]
            settled = 0
            if node.follows is not None:
                position, v = node.follows
                if values[position] == FREE:
                    values[position] = own
                    settled += problem.sizes[v]
                elif not readable[values[position] >> n][b]:
                    continue
            new_split = b != current or (has_inputs and node.foreign[b])
            added = node.copies[b]
            for position, v in node.reads:
                state = values[position]
                if state == FREE:
                    values[position] = own
                    settled += problem.sizes[v]
                    continue
                place = state >> n
                if readable[place][b]:
                    continue
                if has_inputs and problem.is_weight[v]:
                    new_split = True
                if not state >> b & 1:
                    total += problem.copy(v, place, b)
                    added = True
                    if not problem.group[v]:
                        values[position] = state | 1 << b
            new_used = used
            if settled:
                settles = True
                k = room.slot.get(problem.memory[home[b]])
                if k is not None:
                    total += room.price * settled
                    new_used = (*used[:k], used[k] + settled, *used[k + 1 :])
            if used and any(u > r for u, r in zip(new_used, room.sizes, strict=True)):
                continue
            if new_split:
                total += problem.start[b]
            key = (
                b,
                added or (has_inputs and not new_split),
                (*[values[k] for k in node.keep], *[own] * node.n_results),
            )
            old = fresh.get(key)
            if old is None or total < old[0]:
                fresh[key] = (total, new_used, parent, b)
    return fresh, settles


def _best_states(fresh: dict[_State, _Way], width: int, n: int) -> dict[_State, _Way]:
    """The cheapest `width` states, among which each device has a share."""
    order = sorted(fresh.items(), key=lambda entry: entry[1][0])
    share = max(width // (2 * n), 1)
    counts = [0] * n
    chosen, remaining = [], []
    for entry in order:
        b = entry[1][3]
        if counts[b] < share:
            counts[b] += 1
            chosen.append(entry)
        else:
            remaining.append(entry)
    return dict([*chosen, *remaining[: max(width - len(chosen), 0)]])


def _prepare(problem: Problem) -> list[_Node]:
    """The nodes with the values alive at each, and the costs that do not depend on earlier
    choices."""
    n = problem.n_devices
    results = {v for written in problem.writes for v in written}

    def entity(v: int) -> int:
        # views of one free leaf are in one place
        return problem.group[v][0] if problem.group[v] else v

    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i in range(len(problem.nodes)):
        for v in (*problem.reads[i], problem.follows[i]):
            if v < 0:
                continue
            e = entity(v)
            first.setdefault(e, i)
            last[e] = i

    nodes: list[_Node] = []
    live: list[int] = []
    for i in range(len(problem.nodes)):
        node = _Node(fixed=list(problem.time[i]), copies=[False] * n, foreign=[False] * n)
        touched = [(v, True) for v in problem.reads[i]]
        if problem.follows[i] >= 0:
            touched.append((problem.follows[i], False))
        for v, is_read in touched:
            e = entity(v)
            once = first[e] == last[e] == i and e not in results
            place = problem.start_place[v]
            if once and place != FREE and is_read and problem.follows[i] != v:
                for b in range(n):
                    if not problem.readable[place][b]:
                        node.fixed[b] += problem.copy(v, place, b)
                        node.copies[b] = True
                        node.foreign[b] = node.foreign[b] or problem.is_weight[v]
                continue
            if e not in live:
                live.append(e)
                node.enter.append(place if place == FREE else place << n)
            if is_read:
                node.reads.append((live.index(e), v))
            else:
                node.follows = (live.index(e), v)
        node.keep = [k for k, e in enumerate(live) if last[e] > i]
        live = [live[k] for k in node.keep]
        later = [v for v in problem.writes[i] if last.get(v, -1) > i]
        node.n_results = len(later)
        live += later
        nodes.append(node)
    return nodes


def improve(
    problem: Problem, start: Found, *, steps: int = 400_000, limits: Mapping[str, int] | None = None
) -> Found:
    """Moves the borders of runs, whole runs, and parts of runs to other devices while that saves
    time.

    `steps` is the total number of nodes that may be evaluated."""
    where, seconds = list(start.where), start.seconds
    n_nodes = len(where)
    if problem.n_devices == 1 or start.exact:
        return start
    rnd = random.Random(0)
    queue = _moves(where, problem.n_devices)
    budget = steps
    improved = False
    while budget > 0:
        if queue:
            begin, end, b = queue.pop()
        else:
            begin = rnd.randrange(n_nodes)
            end = min(n_nodes, begin + rnd.choice((1, 1, 2, 4, 8, 16, 32)))
            b = rnd.randrange(problem.n_devices)
        candidate = list(where)
        changed = False
        for i in range(begin, end):
            if candidate[i] != b and b in problem.allowed[i]:
                candidate[i] = b
                changed = True
        budget -= end - begin + 1
        if not changed:
            continue
        budget -= n_nodes
        new, _ = problem.simulate(candidate)
        if new < seconds * (1 - 1e-12) and fits(problem, candidate, limits):
            where, seconds, improved = candidate, new, True
            queue = _moves(where, problem.n_devices)
    how = f"{start.how}, improved" if improved else start.how
    return Found(seconds, where, False, how)


def fits(problem: Problem, where: list[int], limits: Mapping[str, int] | None) -> bool:
    """Whether free leaves take at most the limit of each memory."""
    if not limits:
        return True
    used = problem.used(problem.simulate(where)[1])
    return all(used.get(memory, 0) <= limit for memory, limit in limits.items())


def _moves(where: list[int], n_devices: int) -> list[tuple[int, int, int]]:
    """(begin, end, device) of whole runs and of the ends of runs; the last is tried first."""
    borders = [0, *(i for i in range(1, len(where)) if where[i] != where[i - 1]), len(where)]
    moves = []
    for begin, end in itertools.pairwise(borders):
        for b in range(n_devices):
            if b == where[begin]:
                continue
            moves.append((begin, end, b))
            for step in _SHIFTS:
                if step < end - begin:
                    if begin > 0 and where[begin - 1] == b:
                        moves.append((begin, begin + step, b))
                    if end < len(where) and where[end] == b:
                        moves.append((end - step, end, b))
    return moves
