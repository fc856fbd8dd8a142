"""The reason of every wait of a device: what a split waited for while its device had nothing to do.

A profile knows when each piece of work began and ended, and `hazards` says which piece must follow
which. So waits are found afterwards; nothing is recorded for them while work is running.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from weft.execute.bound import BoundProgram
from weft.execute.hazards import Access, constant_buffers, tensor_access
from weft.execute.profile_trace import length
from weft.records import dataclass

Relation = Literal["data", "memory"] | None
Reason = Literal["data", "memory", "run", "copy", "start", "kernels", "end"]

_LEAST = 1_000
"""Nanoseconds of a gap that counts as a wait."""
_SLACK = 30_000
"""Nanoseconds by which the clocks of a device and of the host may differ."""


class Part(NamedTuple):
    """A piece of recorded work: the steps of a split, or one of its copies."""

    bound: BoundProgram
    split: int
    copy: int
    """The number of the copy in the split; -1: the steps."""
    queue: str
    """The device that did it, or `host`."""
    begin: int
    end: int
    nbytes: int = 0
    gaps: int = 0
    """Nanoseconds between its kernels, in which the device had nothing to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a device had nothing to do before a split of it began, added up over runs."""

    device: str
    split: int
    reason: Reason
    """`data`: another queue computed what it reads; `memory`: another queue still used memory that
    it writes; `run`: the run before it in the same memory was not over; `copy`: its inputs were
    copied; `start`: calls and enqueueing; `kernels`: the next kernel of the split; `end`: its
    splits were over, and the run was not."""
    tensor: str = ""
    """The tensor that it waited for, or whose memory."""
    nbytes: int = 0
    on: str = ""
    """The queue that it waited for."""
    work: int = -1
    """The split that the queue was working on; -1: several, or none."""
    runs_before: int = 0
    """The number of runs by which that work is older."""
    times: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The work or the event that it waited for, in words."""
        size = f" ({self.nbytes:,} B)" if self.nbytes else ""
        which = "" if not self.runs_before else " of the run before"
        if self.runs_before > 1:
            which = f" of {self.runs_before} runs before"
        split = "splits" if self.work < 0 else f"split {self.work}"
        used = f"{split} on {self.on}{which}"
        match self.reason:
            case "data":
                return f"{self.tensor}{size}, from {used}"
            case "memory":
                return f"memory of {self.tensor}{size}, in use by {used}"
            case "run":
                return f"the end of an earlier run in its memory, {split} on {self.on}"
            case "copy":
                return f"the copy of {self.tensor}{size}, by {self.on}"
            case "start":
                return "calls and enqueueing on the host"
            case "kernels":
                return "the next of its kernels"
        return f"the end of the run, of which {self.on} has the rest"


class Found(NamedTuple):
    """A wait of one run, from `begin` to `end` nanoseconds; `wait` has no time of its own."""

    wait: Wait
    begin: int
    end: int


class Parts:
    """The bytes that each piece of work touches, found when they are asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Access] = {}
        self._constants: dict[int, tuple[BoundProgram, frozenset[int]]] = {}
        self._relations: dict[tuple[int, int], tuple[Access, Access, Relation]] = {}
        self._lasting: dict[tuple[int, int, int], Access] = {}

    def access(self, part: Part) -> Access:
        """The bytes that a piece of work reads and writes."""
        key = (id(part.bound), part.split, part.copy)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.of(part.bound, *_touched(part))
        return found

    def of(self, bound: BoundProgram, reads: Sequence[int], writes: Sequence[int]) -> Access:
        """The bytes of tensors that are read and written."""
        program = bound.program
        if id(bound) not in self._constants:
            self._constants[id(bound)] = bound, constant_buffers(program)
        constants = self._constants[id(bound)][1]
        return tensor_access(program, bound.memories, reads, writes, constants)

    def relation(self, before: Part, after: Part) -> Relation:
        """`data` where `after` reads what `before` writes, `memory` where it must follow for
        another reason; None: they may overlap."""
        a, b = self.access(before), self.access(after)
        key = (id(a), id(b))
        if key not in self._relations:
            self._relations[key] = a, b, _relation(a, b)
        return self._relations[key][2]

    def lasting(self, part: Part) -> Access:
        """The bytes that a piece of work reads and writes outside of its run's own memory: caches
        and states."""
        key = (id(part.bound), part.split, part.copy)
        found = self._lasting.get(key)
        if found is None:
            tensors, buffers = part.bound.program.tensors, part.bound.program.buffers
            reads, writes = (
                [t for t in touched if buffers[tensors[t].buffer].kind != "arena"]
                for touched in _touched(part)
            )
            found = self._lasting[key] = self.of(part.bound, reads, writes)
        return found

    def shared(self, before: Part, after: Part, reason: str) -> tuple[str, int]:
        """The name and the bytes of a tensor of `after` for which it follows `before`."""
        tensors = after.bound.program.tensors
        access = self.access(before)
        reads, writes = _touched(after)
        for index in reads if reason == "data" else writes:
            one = self.of(after.bound, *(([index], []) if reason == "data" else ([], [index])))
            if access.feeds(one) if reason == "data" else access.conflicts(one):
                nbytes = after.nbytes if after.copy >= 0 else 0
                return tensors[index].name, nbytes
        return "", 0


def _relation(a: Access, b: Access) -> Relation:
    return "data" if a.feeds(b) else "memory" if a.conflicts(b) else None


def _touched(part: Part) -> tuple[list[int], list[int]]:
    """The tensors that a piece of work reads, and those it writes."""
    split = part.bound.program.splits[part.split]
    if part.copy >= 0:
        copy = split.copies[part.copy]
        return [copy.src], [copy.dst]
    reads = dict.fromkeys(s for step in split.steps for s in step.src if s >= 0)
    return [*reads], [*dict.fromkeys(step.dst for step in split.steps)]


class Unit(NamedTuple):
    """A split of one run: its copies, then its steps."""

    run: int
    copies: list[Part]
    steps: Part


def units(parts: Sequence[Part]) -> list[Unit]:
    """The splits of all runs, in the order in which their steps began. Parts of one bound program
    are in order; a run of it ends where its splits begin anew."""
    runs: dict[int, int] = {}
    last: dict[int, Part] = {}
    first: dict[tuple[int, int], int] = {}
    copies: dict[tuple[int, int, int], list[Part]] = defaultdict(list)
    found: list[tuple[tuple[int, int], list[Part], Part]] = []
    for part in parts:
        bound, before = id(part.bound), last.get(id(part.bound))
        if before is not None and before.copy < 0 and part.split <= before.split:
            runs[bound] = runs.get(bound, 0) + 1
        last[bound] = part
        run = bound, runs.get(bound, 0)
        first.setdefault(run, part.begin)
        if part.copy >= 0:
            copies[*run, part.split].append(part)
        else:
            found.append((run, copies.pop((*run, part.split), []), part))
    number = {run: n for n, run in enumerate(sorted(first, key=lambda run: first[run]))}
    found.sort(key=lambda item: item[2].begin)
    return [Unit(number[run], own, steps) for run, own, steps in found]


def find_waits(parts: Sequence[Part], begin: int, end: int, known: Parts) -> Iterator[Found]:
    """The waits of all devices between two times, if there are several devices."""
    splits = units(parts)
    devices = dict.fromkeys(unit.steps.queue for unit in splits)
    if len(devices) < 2:
        return
    of = {id(part): unit for unit in splits for part in (*unit.copies, unit.steps)}
    done = [part for part in parts if id(part) in of]
    by_end = sorted(done, key=lambda part: part.end)
    ends = [part.end for part in by_end]
    earlier = _runs_before(splits)
    free = dict.fromkeys(devices, begin)
    for part in sorted(done, key=lambda part: part.begin):
        unit, since = of[id(part)], free.get(part.queue)
        if since is None:
            continue
        if unit.steps.queue != part.queue:  # a copy for another device
            if part.begin <= since + _SLACK:
                free[part.queue] = max(since, part.end)
            continue
        free[part.queue] = max(since, part.end)
        if part.begin - since > _LEAST:
            low, high = bisect_right(ends, since), bisect_right(ends, part.begin + _SLACK)
            blocked = _blocked(unit, by_end[low:high], of, known)
            taken = _taken(unit, earlier.pop(unit.run, None), since, part.begin)
            if blocked is None or (taken is not None and taken[1] > blocked[1]):
                blocked = taken
            yield from _explained(unit, blocked, since, part.begin)
        if part.gaps > _LEAST:  # shown at the end of the split, as they are all over it
            wait = Wait(part.queue, part.split, "kernels")
            yield Found(wait, part.end - part.gaps, part.end)
    for device, last in free.items():
        others = [part for part in by_end if part.queue not in (device, "host")]
        if end - last > _LEAST and others:
            yield Found(Wait(device, -1, "end", on=others[-1].queue), last, end)


def _blocked(
    unit: Unit, ended: Sequence[Part], of: Mapping[int, Unit], known: Parts
) -> tuple[Wait, int] | None:
    """The work of other queues that ended last of all that a split has to follow, and its end."""
    steps = unit.steps
    for part in reversed(ended):
        other = of[id(part)]
        if other is unit or part.queue == steps.queue:
            continue
        for mine in (*unit.copies, steps):
            reason = known.relation(part, mine)
            if reason is not None:
                tensor, nbytes = known.shared(part, mine, reason)
                wait = Wait(
                    steps.queue, steps.split, reason, tensor, nbytes, part.queue, part.split,
                    max(unit.run - other.run, 0),
                )  # fmt: skip
                return wait, part.end
    return None


def _runs_before(splits: Sequence[Unit]) -> dict[int, Part]:
    """Run -> the last part of the run before it that had the same memory."""
    last: dict[tuple[int, int], Part] = {}
    for unit in splits:
        key = id(unit.steps.bound), unit.run
        if key not in last or unit.steps.end > last[key].end:
            last[key] = unit.steps
    pairs = pairwise(sorted(last))
    return {run: last[a, before] for (a, before), (b, run) in pairs if a == b}


def _taken(unit: Unit, last: Part | None, since: int, begin: int) -> tuple[Wait, int] | None:
    """The end of the run from which a run takes over its memory, where its first split waited for
    that."""
    steps = unit.steps
    if last is None or last.queue == steps.queue or not since < last.end <= begin + _SLACK:
        return None
    return Wait(steps.queue, steps.split, "run", on=last.queue, work=last.split), last.end


def _explained(
    unit: Unit, blocked: tuple[Wait, int] | None, since: int, begin: int
) -> Iterator[Found]:
    """The parts of the time between `since` and `begin`, in which a split was not allowed to begin:
    for other work, for copies, and the rest."""
    steps = unit.steps
    at = since
    if blocked is not None:
        wait, until = blocked
        at = max(min(until, begin), since)
        if at - since > _LEAST:
            yield Found(wait, since, at)
    copies = [c for c in unit.copies if c.queue != steps.queue and c.end > at and c.begin < begin]
    spans = [(max(c.begin, at), min(c.end, begin)) for c in copies]
    copied = length(spans)
    if copied > _LEAST:
        largest = max(copies, key=lambda part: part.end - part.begin)
        name = steps.bound.program.tensors[_touched(largest)[0][0]].name
        nbytes = sum(part.nbytes for part in copies)
        more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
        wait = Wait(steps.queue, steps.split, "copy", name + more, nbytes, largest.queue)
        first = min(span[0] for span in spans)
        yield Found(wait, first, min(first + copied, begin))
    rest = begin - at - copied
    if rest > _LEAST:
        yield Found(Wait(steps.queue, steps.split, "start"), begin - rest, begin)
