"""The time that more runs under way would hide: a simulation of `Pipeline` with recorded times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from weft.execute.waits import Part, Parts, units

MOST_RUNS = 16
"""Maximum number of runs of a call that are simulated."""
_MOST_STAGES = 1500
"""Maximum number of pieces of work of a run that is simulated."""


class Stage(NamedTuple):
    """A piece of work of every run."""

    queue: str
    seconds: float
    after: tuple[int, ...]
    """The stages of the same run that must be over before it begins."""
    across: tuple[int, ...]
    """The stages of all earlier runs that must be over before it begins, whatever their memory."""


def stages_of(parts: Sequence[Part], known: Parts) -> list[Stage]:
    """The work of a run with mean times, from the parts of runs of one program; empty if it is too
    much. Copies of a split that a queue makes are one stage."""
    runs = defaultdict(list)
    for unit in units(parts):
        runs[unit.run].append(unit)
    longest = max(runs.values(), key=len, default=[])
    times: dict[tuple[int, str, bool], float] = defaultdict(float)
    samples: dict[tuple[int, str, bool], list[Part]] = {}
    for own in runs.values():
        for unit in own:
            for part in (*unit.copies, unit.steps):
                times[part.split, part.queue, part.copy >= 0] += part.end - part.begin
    for unit in longest:
        for part in (*unit.copies, unit.steps):
            samples.setdefault((part.split, part.queue, part.copy >= 0), []).append(part)
    if len(samples) > _MOST_STAGES:
        return []
    counts: dict[int, int] = defaultdict(int)
    for own in runs.values():
        for unit in own:
            counts[unit.steps.split] += 1
    groups = list(samples.values())
    lasting = [bool(known.lasting(group[0]).writes) for group in groups]
    stages = []
    for number, (key, group) in enumerate(samples.items()):
        after: dict[str, int] = {}
        for earlier in range(number - 1, -1, -1):
            queue = groups[earlier][0].queue
            if queue != key[1] and queue not in after:
                if any(known.relation(a, b) for a in groups[earlier] for b in group):
                    after[queue] = earlier
        across = [
            other
            for other, theirs in enumerate(groups)
            if (lasting[other] or lasting[number]) and theirs[0].queue != key[1]
            and known.lasting(theirs[0]).conflicts(known.lasting(group[0]))
        ]  # fmt: skip
        seconds = times[key] / counts[key[0]] * 1e-9
        stages.append(Stage(key[1], seconds, tuple(after.values()), tuple(across)))
    return stages


def time_of(stages: Sequence[Stage], runs: int, copies: int) -> float:
    """The seconds that runs take if up to `copies` of them are under way, the oldest first."""
    free: dict[str, float] = defaultdict(float)
    ends: list[list[float]] = [[] for _ in range(runs)]
    left = len(stages) * runs
    over = 0.0
    while left:
        best: tuple[float, int] | None = None
        for run in range(runs):
            number = len(ends[run])
            if number == len(stages):
                continue
            start = _start(stages, ends, free, run, copies)
            if start is not None and (best is None or start < best[0]):
                best = start, run
            if number == 0:
                break  # later runs begin later
        assert best is not None
        start, run = best
        stage = stages[len(ends[run])]
        end = start + stage.seconds
        ends[run].append(end)
        free[stage.queue] = end
        over = max(over, end)
        left -= 1
    return over


def _start(
    stages: Sequence[Stage], ends: Sequence[Sequence[float]], free: dict[str, float], run: int,
    copies: int,
) -> float | None:  # fmt: skip
    """When the next stage of a run may begin; None: work before it is not planned yet."""
    number = len(ends[run])
    stage = stages[number]
    start = free[stage.queue]
    if run >= copies:  # the memory of the run before it in the same copy
        if len(ends[run - copies]) < len(stages):
            return None
        start = max(start, max(ends[run - copies]))
    for earlier in stage.after:
        start = max(start, ends[run][earlier])
    for before in range(max(0, run - copies + 1), run):
        for other in stage.across:
            if other >= len(ends[before]):
                return None
            start = max(start, ends[before][other])
    return start


class Hidden(NamedTuple):
    """The time that copies of compute memory would hide."""

    copies: int
    seconds: float
    """The sum over all calls."""


def hidden(stages: Sequence[Stage], calls: Sequence[int], now: int, most: int = 4) -> Hidden | None:
    """The number of copies, more than `now`, that hides most waiting, the fewest that hide nearly
    as much as any; `calls` are numbers of runs that may overlap. None: no number hides any."""
    counts: dict[int, int] = defaultdict(int)
    for n in calls:
        counts[min(n, MOST_RUNS)] += 1
    if not stages or max(counts, default=0) < 2:
        return None

    def whole(copies: int) -> float:
        return sum(times * time_of(stages, n, copies) for n, times in counts.items())

    before = whole(now)
    gains = [Hidden(c, before - whole(c)) for c in range(now + 1, max(most, now + 1) + 1)]
    best = max(gain.seconds for gain in gains)
    if best <= 0:
        return None
    return next(gain for gain in gains if gain.seconds >= 0.9 * best)
