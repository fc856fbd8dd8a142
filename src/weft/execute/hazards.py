"""The order of work when several devices run at the same time.

Work that touches the same bytes, with at least one of the two writing, keeps its order. Bytes
decide and not tensors, because plans reuse memory: within a run, between a run and the next, and
between devices that share a buffer type. One rule covers all of it:

    before work w goes into queue q:  for every other queue, q waits for the last unfinished work
                                      there that conflicts with w and is not known to be over
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence

from weft.backends.base import Event
from weft.backends.memory import Memory
from weft.program import Program
from weft.records import dataclass

Ranges = dict[int, list[tuple[int, int]]]
"""Memory -> byte ranges in it, sorted and apart. Host memory is 0, and its ranges are addresses."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """The bytes that a piece of work reads and writes."""

    reads: Ranges
    writes: Ranges

    def feeds(self, later: Access) -> bool:
        """Whether `later` reads bytes that this work writes."""
        return _meet(self.writes, later.reads)

    def conflicts(self, later: Access) -> bool:
        """Whether `later` must not start before this work is over."""
        return (
            self.feeds(later) or _meet(self.writes, later.writes) or _meet(self.reads, later.writes)
        )


def constant_buffers(program: Program) -> frozenset[int]:
    """The buffers of weights that no step of the program writes."""
    written = {
        program.tensors[t].buffer
        for split in program.splits
        for t in (*(c.dst for c in split.copies), *(step.dst for step in split.steps))
    }
    weights = {i for i, b in enumerate(program.buffers) if b.usage == "weights"}
    return frozenset(weights - written)


def tensor_access(
    program: Program,
    memories: Sequence[Memory],
    reads: Iterable[int],
    writes: Iterable[int],
    constants: Container[int] = (),
) -> Access:
    """The access to tensors of a program, whatever the values of symbols. Reads of `constants`
    (buffers) are left out."""
    reads = [r for r in reads if program.tensors[r].buffer not in constants]
    return Access(_ranges(program, memories, reads), _ranges(program, memories, writes))


def _ranges(program: Program, memories: Sequence[Memory], tensors: Iterable[int]) -> Ranges:
    by_memory: Ranges = {}
    for index in tensors:
        spec = program.tensors[index]
        memory = memories[spec.buffer]
        low, high = spec.extent
        host = memory.host()
        key, base = (id(memory), 0) if host is None else (0, host.ctypes.data)
        by_memory.setdefault(key, []).append((base + low, base + high))
    return {key: _merged(ranges) for key, ranges in by_memory.items()}


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges.sort()
    merged = [ranges[0]]
    for low, high in ranges[1:]:
        if low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _meet(a: Ranges, b: Ranges) -> bool:
    for key, ranges in a.items():
        right = b.get(key)
        if right is None:
            continue
        i = j = 0
        while i < len(ranges) and j < len(right):
            if ranges[i][0] < right[j][1] and right[j][0] < ranges[i][1]:
                return True
            if ranges[i][1] <= right[j][1]:
                i += 1
            else:
                j += 1
    return False


@dataclass(slots=True)
class _Work:
    number: int
    access: Access
    event: Event
    finished: list[int]
    """Per queue, the number of its first work that may not be over when this work starts."""


class Order:
    """The unfinished work of some queues."""

    def __init__(self, n_queues: int) -> None:
        self._work: list[deque[_Work]] = [deque() for _ in range(n_queues)]
        self._count = [0] * n_queues
        # finished[q][p]: work of queue p below this number is over when the next work of q starts
        self._finished = [[0] * n_queues for _ in range(n_queues)]
        self._meets: dict[tuple[int, int], tuple[Access, Access, bool]] = {}

    def before(self, queue: int, access: Access) -> list[Event]:
        """The events that `queue` must wait for before it does work with this access."""
        finished = self._finished[queue]
        events = []
        for p in range(len(self._work)):
            if p == queue:
                continue
            work = self._last_conflict(p, finished[p], access)
            if work is not None:
                events.append(work.event)
                self._learn(finished, p, work)
        return events

    def add(self, queue: int, access: Access, event: Event) -> None:
        """Adds work to `queue`."""
        work = _Work(self._count[queue], access, event, list(self._finished[queue]))
        self._work[queue].append(work)
        self._count[queue] += 1

    def blockers(self, access: Access, without: int = -1) -> list[Event]:
        """The events that the host must wait for before it touches these bytes itself, except the
        events of queue `without`."""
        queues = (p for p in range(len(self._work)) if p != without)
        conflicts = (self._last_conflict(p, 0, access) for p in queues)
        return [work.event for work in conflicts if work is not None]

    def clear(self) -> None:
        """Drops all work, because everything is over."""
        for work in self._work:
            work.clear()
        self._meets.clear()

    def _last_conflict(self, queue: int, finished: int, access: Access) -> _Work | None:
        work = self._work[queue]
        while work and work[0].event.is_done():
            work.popleft()
        for item in reversed(work):
            if item.number < finished:
                return None
            if self._conflict(item.access, access):
                return item
        return None

    def _conflict(self, a: Access, b: Access) -> bool:
        # Plans are used again and again. The entry keeps both alive, so that their ids stay unique.
        key = (id(a), id(b))
        entry = self._meets.get(key)
        if entry is None:
            if len(self._meets) > 100_000:
                self._meets.clear()
            entry = self._meets[key] = (a, b, a.conflicts(b))
        return entry[2]

    def _learn(self, finished: list[int], queue: int, work: _Work) -> None:
        finished[queue] = max(finished[queue], work.number + 1)
        for p, number in enumerate(work.finished):
            finished[p] = max(finished[p], number)
