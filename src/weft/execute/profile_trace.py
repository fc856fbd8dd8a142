"""A timeline in the Chrome trace format, which Perfetto reads, too, and groups of steps that ran at
the same time.

The format is Google's "Trace Event Format": complete events (`ph` X) with microseconds, and
metadata events (`ph` M) that name rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import QueueSpan
from weft.execute.profile_lines import Line
from weft.records import dataclass

_NAMED = 1000
"""Number of the first row that is not a thread of the cpu."""
_MOST = 1_000_000
"""The number of slices that are kept; viewers become slow far below it. Later ones are counted."""


class Slice(NamedTuple):
    """Work in one row from `start` to `end`, nanoseconds."""

    name: str
    kind: str
    """`run`, `split`, `stage`, `copy`, `enqueue`, `barrier` (a wait), or the device of a step."""
    row: str
    start: int
    end: int
    args: Mapping[str, Any]


class Trace:
    """Slices of work by row, in nanoseconds of one clock.

    A row is a thread of the cpu by its number, or something else by its name: `runs`, `opencl:0
    kernels`."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str, int, int, int, Mapping[str, Any]]] = []
        self._rows: dict[str, int] = {}
        self.clocks: dict[str, float] = {}
        """Device of another machine -> seconds by which its slices may be shifted."""
        self.dropped = 0
        """The number of slices beyond the limit."""

    def slice(
        self, name: str, kind: str, row: int | str, start: int, end: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Adds work in one row from `start` to `end`."""
        if isinstance(row, str):
            row = self._rows.setdefault(row, _NAMED + len(self._rows))
        if len(self._events) < _MOST:
            self._events.append((name, kind, row, start, end, args or {}))
        else:
            self.dropped += 1

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices in the order in which they were added."""
        names = {number: name for name, number in self._rows.items()}
        for name, kind, row, start, end, args in self._events:
            yield Slice(name, kind, names.get(row, f"thread {row}"), start, end, args)

    def run(self, name: str, start: int, end: int) -> None:
        """Adds a whole run, in a row of its own."""
        self.slice(name, "run", "runs", start, end)

    def steps(
        self, device: str, lines: Sequence[Line], groups: Sequence[Group],
        spans: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Adds the stages of a split, its steps, and the wait of each thread from the end of its
        part of a group to the end of the group; `spans` are the spans of `RecordsSpans`."""
        for number, group in enumerate(groups):
            own_lines = [lines[i] for i in group.steps]
            about = {"stage": number, "steps": [line.label for line in own_lines]}
            row = f"{device} stages"
            self.slice(_title(own_lines), "stage", row, group.begin, group.end, about)
            for thread in range(spans.shape[1]):
                own = spans[:, thread]
                mine = sorted((i for i in group.steps if own[i, 1]), key=lambda i: int(own[i, 0]))
                last = 0
                for part in _chains(mine, own):
                    start = int(own[part[0], 0])
                    last = max(int(own[i, 1]) for i in part)
                    args = {"stage": number, "steps": [lines[i].label for i in part]}
                    self.slice(_title([lines[i] for i in part]), device, thread, start, last, args)
                if last and group.end > last:
                    self.slice("wait", "barrier", thread, last, group.end, {"stage": number})

    def kernels(
        self, device: str, lines: Sequence[Line], spans: Sequence[QueueSpan],
        nbytes: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Adds the kernels of a split; `nbytes` are the bytes that each step reads and writes."""
        for span in spans:
            line = lines[span.step]
            about = {
                "kernel": span.name, "step": line.label, "bytes": float(nbytes[span.step])
            }  # fmt: skip
            self.slice(_title([line]), device, f"{device} kernels", span.begin, span.end, about)

    def as_json(self) -> dict[str, Any]:
        """The content of the file; times count from the first slice."""
        origin = min((start for _, _, _, start, _, _ in self._events), default=0)
        names = {number: name for name, number in self._rows.items()}
        rows = sorted({row for _, _, row, _, _, _ in self._events})
        pids = self._processes(names.get(row, "") for row in rows)
        events: list[dict[str, Any]] = [
            {
                "ph": "M", "pid": pid, "name": "process_name",
                "args": {"name": self._machine(machine)},
            }
            for machine, pid in pids.items()
            if len(pids) > 1
        ]  # fmt: skip
        events += [
            {
                "ph": "M", "pid": pids[_machine_of(names.get(row, ""))], "tid": row,
                "name": "thread_name", "args": {"name": names.get(row, f"thread {row}")},
            }
            for row in rows
        ]  # fmt: skip
        for name, kind, row, start, end, args in self._events:
            events.append(
                {
                    "ph": "X", "pid": pids[_machine_of(names.get(row, ""))], "tid": row,
                    "name": name, "cat": kind,
                    "ts": (start - origin) / 1000, "dur": (end - start) / 1000, "args": dict(args),
                }
            )  # fmt: skip
        about: dict[str, Any] = {"dropped slices": self.dropped}
        if self.clocks:
            about["clocks are right to seconds"] = dict(self.clocks)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    def _processes(self, rows: Iterable[str]) -> dict[str, int]:
        """Machine -> the number of its track; this machine has number 1."""
        machines = dict.fromkeys(["", *map(_machine_of, rows)])
        return {machine: number for number, machine in enumerate(machines, 1)}

    def _machine(self, machine: str) -> str:
        """The title of a machine's track."""
        if not machine:
            return "this machine"
        errors = [e for device, e in self.clocks.items() if _machine_of(device) == machine]
        return f"{machine} (clock within {max(errors) * 1e6:.0f} µs)" if errors else machine


def _machine_of(row: str) -> str:
    """The machine of a row called `MACHINE/DEVICE ...`; empty for this machine."""
    return row.partition(" ")[0].rpartition("/")[0]


def _chains(steps: Sequence[int], spans: NDArray[np.int64]) -> list[list[int]]:
    """Steps of one thread in order of their begin; steps that take turns are one chain."""
    chains: list[list[int]] = []
    end = 0
    for i in steps:
        if chains and int(spans[i, 0]) < end:
            chains[-1].append(i)
        else:
            chains.append([i])
        end = max(end, int(spans[i, 1]))
    return chains


def _title(lines: Sequence[Line]) -> str:
    if len(lines) == 1:
        return f"{lines[0].op} {lines[0].name}".rstrip()
    return " + ".join(dict.fromkeys(line.op for line in lines))


Interval = tuple[int, int]
"""Begin and end in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that ran side by side, or one after the other on threads that did not wait."""

    steps: tuple[int, ...]
    begin: int
    """The end of the group before, or the begin of the first group, in nanoseconds."""
    end: int

    @property
    def seconds(self) -> float:
        """The wall time in seconds; all groups add up to the time from the first to the last
        step."""
        return (self.end - self.begin) * 1e-9


def overlapping(spans: NDArray[np.int64]) -> list[Group]:
    """Groups of steps that ran side by side, in the order of time.

    `spans` is [step, thread, (begin, end, busy)] in nanoseconds, 0 where a thread had no part. A
    step belongs to the group before it if some thread began it before all threads had ended that
    group; a barrier separates groups. Steps that never ran are in no group."""
    begins = np.where(spans[:, :, 0] > 0, spans[:, :, 0], np.iinfo(np.int64).max).min(axis=1)
    ends = spans[:, :, 1].max(axis=1)
    groups: list[Group] = []
    for i in np.argsort(begins, kind="stable"):
        step, begin, end = int(i), int(begins[i]), int(ends[i])
        if end == 0:
            continue
        last = groups[-1] if groups else None
        if last is not None and begin < last.end:
            groups[-1] = Group((*last.steps, step), last.begin, max(last.end, end))
        else:
            groups.append(Group((step,), begin if last is None else last.end, end))
    return groups


def overlap(work: Collection[Sequence[Interval]]) -> int:
    """The nanoseconds by which the sum of all rows' times exceeds the time in which any row
    worked."""
    rows = [length(row) for row in work]
    return sum(rows) - length([interval for row in work for interval in row])


def length(intervals: Sequence[Interval]) -> int:
    """The length of the union of the intervals, in nanoseconds."""
    total, last = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total
