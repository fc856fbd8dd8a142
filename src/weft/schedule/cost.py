"""`policy="cost"`: the placement with the least predicted time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from weft.backends.base import Backend
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.cause import CHOSEN
from weft.schedule.devices import Devices
from weft.schedule.explain import seconds_text
from weft.schedule.parts import Candidate
from weft.schedule.problem import Problem
from weft.schedule.profile import Profile
from weft.schedule.result import Schedule
from weft.schedule.search import Found, fits, improve, walk
from weft.schedule.timing import Point, TimeModel

# The product of states, nodes and devices that a walk may visit: about half a second.
_EFFORT = 250_000
_WIDTHS = (8, 512)
RULES = "the reference's rules"
"""The way in which the first candidate was found."""


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The machine and the passes that time is predicted for."""

    profile: Profile
    points: tuple[Point, ...] = ()
    """Kinds of passes; empty: one pass with every symbol at its maximum."""
    what: str = "pass"
    """A word for all points together, as reports print it."""
    effort: int = _EFFORT
    """The approximate number of transitions that the search may visit."""
    must_fit: bool = True
    """False lets a plan need more memory than the profile has."""

    def model(self, graph: Graph, devices: Devices | Sequence[Backend]) -> TimeModel:
        """The time model of a graph on devices."""
        return TimeModel(self.profile, graph, devices, self.points, self.what)


@dataclass(frozen=True, slots=True)
class Homes:
    """The devices in whose memory leaves without a home should live."""

    device_of: dict[Tensor, int]
    """Free leaf -> number of the device in whose memory it belongs."""
    seconds: float
    used: dict[str, int] = field(default_factory=dict)
    """Memory -> bytes of free leaves."""


def place_by_cost(
    model: TimeModel,
    fixed: Mapping[Tensor, int],
    starts: Sequence[Mapping[Tensor, int]],
    effort: int = _EFFORT,
) -> tuple[dict[Tensor, int], list[Found]]:
    """The device of each node that does work, and the placements among which it is the best.

    `fixed` are devices that may not change; `starts` are placements that the search may begin with.
    Raises UnsupportedOpError where no device runs a node."""
    problem = Problem(model)
    for i, node in enumerate(problem.nodes):
        if node in fixed:
            problem.allowed[i] = (fixed[node],)
    candidates = []
    walked = walk(problem, _width(problem, effort))
    if walked is not None:
        candidates.append(improve(problem, walked))
    if not candidates or not candidates[0].exact:
        for start in starts:
            where = [start.get(node, -1) for node in problem.nodes]
            if all(b in allowed for b, allowed in zip(where, problem.allowed, strict=True)):
                begun = Found(problem.evaluate(where), where, how=RULES)
                candidates.append(improve(problem, begun))
    best = min(candidates, key=lambda f: f.seconds)
    return dict(zip(problem.nodes, best.where, strict=True)), candidates


def _width(problem: Problem, effort: int) -> int:
    low, high = _WIDTHS
    return max(low, min(high, effort // (len(problem.nodes) * problem.n_devices)))


def faster(
    model: TimeModel,
    rules: Schedule,
    build: Callable[[Mapping[Tensor, int]], Schedule],
    where: Mapping[Tensor, int],
    found: Sequence[Found],
) -> Schedule:
    """The schedule of the placement `where`, the fastest of `found`, or `rules` where that is
    predicted to be as fast.

    The result carries the prediction, all placements that were considered, and for each node a note
    of its time on each device."""
    by_rules = model.predict(rules)
    result = build(where)
    predicted = model.predict(result)
    names = [b.name for b in result.backends]

    def counts(placed: Sequence[int]) -> dict[str, int]:
        return {name: placed.count(b) for b, name in enumerate(names)}

    ruled_nodes = [rules.backend_of[node] for node in where]
    kept = predicted.total >= by_rules.total * (1 - 1e-9)
    tried = [Candidate(RULES, by_rules.total, counts(ruled_nodes), by_rules, kept)]
    best = min(found, key=lambda f: f.seconds)
    for one in sorted(found, key=lambda f: -f.seconds):
        if one is best:
            time, placed = predicted.total, counts(one.where)
            tried.append(Candidate(one.how, time, placed, predicted, not kept, one.exact))
        elif one.how != RULES:
            tried.append(Candidate(one.how, one.seconds, counts(one.where)))
    rules.tried = result.tried = tuple(tried)
    if kept:
        rules.predicted = by_rules
        return rules
    result.predicted = predicted
    for node, b in where.items():
        if result.cause_of.get(node) is not CHOSEN:
            continue
        notes = [f"{seconds_text(model.node(node, b))} here"]
        for other in range(len(names)):
            if other != b and model.devices.supports_op(other, node):
                notes.append(f"{seconds_text(model.node(node, other))} on {names[other]}")
        ruled = rules.backend_of.get(node, -1)
        if ruled not in (b, -1):
            notes.append(f"the reference's rules say {names[ruled]}")
        result.notes[node] = ", ".join(notes)
    return result


def choose_homes(
    model: TimeModel,
    free: Mapping[Tensor, int] | Sequence[Tensor],
    limits: Mapping[str, int],
    effort: int = _EFFORT,
) -> Homes | None:
    """Homes for leaves that may live anywhere (weights and caches before a load).

    The predicted time is the least for which each memory of `limits` holds no more than its limit.
    The walk runs at several prices of a byte: at a high price only leaves that save much time for
    their size go to a memory with a limit, at price 0 the first leaves fill it. None where nothing
    fits."""
    problem = Problem(model, set(free))
    width = _width(problem, effort // 4)
    best = walk(problem, width)
    if best is None or not fits(problem, best.where, limits):
        best = None
        for price in _prices(problem):
            placement = walk(problem, width, price=price, limits=limits)
            if placement is not None and (best is None or placement.seconds < best.seconds):
                best = placement
    if best is None:
        return None
    best = improve(problem, best, limits=limits)
    seconds, place = problem.simulate(best.where)
    device_of = {}
    for v, group in enumerate(problem.group):
        if group and group[0] == v:
            value = problem.values[v]
            base = value if value.view_src is None else value.view_src
            device_of[base] = problem.home.index(place[v])
    return Homes(device_of, seconds, problem.used(place))


def _prices(problem: Problem) -> list[float]:
    """Prices in seconds per byte, around the average cost of a byte of a leaf on the slowest
    devices."""
    total = sum(problem.sizes[v] for v, g in enumerate(problem.group) if g and g[0] == v)
    slowest = sum(max(times) for times in problem.time)
    scale = slowest / max(total, 1)
    return [0.0, *(scale * 10**k for k in (-2, -1.5, -1, -0.75, -0.5, -0.25, 0, 0.5, 1))]
