"""The results of a profile: lines, sums of them, and shares of the machine's peak rates."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from weft.backends.cpu import Peaks, measure_peaks
from weft.execute.overlap import Hidden, hidden, stages_of
from weft.execute.profile_lines import Line, SplitLines
from weft.execute.waits import Part, Parts, Wait
from weft.program import Program
from weft.tables import any_layer


class ProfileResults:
    """Times, bytes and operations of everything that ran while it was recorded."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.runs = 0
        self.seconds = 0.0
        """Seconds of all runs, without the time of recording them."""
        self.begin = self.end = 0
        """Nanoseconds at which the first run began and the last one ended; 0: nothing ran."""
        self.threads = 1
        """The number of threads of the device that has the most."""
        self.barriers = 0
        """The number of barriers in all runs."""
        self.overlap = 0.0
        """Seconds in which several devices worked at the same time, which lines count twice."""
        self.busy: dict[str, float] = {}
        """Device -> seconds in which it worked."""
        self.wall = 0.0
        """Seconds from the begin to the end of runs, all added up, time of recording included."""
        self.clocks: dict[str, float] = {}
        """Device of another machine -> the seconds by which its times may be shifted."""
        self.untimed: dict[str, str] = {}
        """Device -> why it tells no times of kernels."""
        self.waits: dict[Wait, Wait] = {}
        """The waits of devices by what they were for (without bytes and times)."""
        self.calls: dict[int, list[int]] | None = None
        """By `id` of a program: for each call, the number of its runs that may overlap; None: that
        is not known."""
        self.known = Parts()
        self.parts: dict[int, list[Part]] = {}
        """By `id` of a program: work from which mean times are taken."""
        self.target: str | None = None
        """Kernel target of the cpu device."""
        self._programs: dict[int, tuple[Program, list[SplitLines]]] = {}

    @property
    def lines(self) -> list[Line]:
        """A line for each step that ran, in order; copies come first in each split."""
        lines = []
        for _, splits in self._programs.values():
            for split in splits:
                lines += [x for x in (split.copies, split.whole, *split.lines) if x.calls]
        return lines

    def by_op(self) -> list[Line]:
        """Lines added up by device, op and type, the slowest first."""
        return self._added(lambda line: (line.device, line.op, line.type, line.roof))

    def by_tensor(self) -> list[Line]:
        """Lines added up over layers, that is over tensors whose names differ in their number
        only."""
        return self._added(lambda x: (x.device, x.op, x.type, x.roof, x.any_layer))

    def _added(self, key: Any) -> list[Line]:
        groups: dict[Any, Line] = {}
        for line in self.lines:
            group = key(line)
            if group not in groups:
                name = group[4] if len(group) > 4 else ""
                groups[group] = Line(line.op, line.type, line.device, name, line.roof, steps=0)
            groups[group].add(line)
        return sorted(groups.values(), key=lambda line: -line.seconds)

    @property
    def outside(self) -> float:
        """The seconds of runs outside of all steps: calls, starts of threads, Python."""
        return self.seconds - sum(line.seconds for line in self.lines) + self.overlap

    @property
    def idle(self) -> dict[str, float]:
        """Device -> the share of the time of runs in which it did not work."""
        return {d: max(0.0, 1 - s / self.wall) for d, s in self.busy.items()} if self.wall else {}

    @property
    def busiest(self) -> str:
        """The device with the most work; empty where there is only one device."""
        return max(self.busy, key=lambda d: self.busy[d]) if len(self.busy) > 1 else ""

    def waits_by_time(self) -> list[Wait]:
        """The waits of devices, the longest first."""
        return sorted(self.waits.values(), key=lambda wait: -wait.seconds)

    def waits_in_short(self) -> list[list[Wait]]:
        """The waits in groups of the same reason, over splits and over tensors whose names differ
        in their number only; the longest group first."""
        groups: dict[Any, list[Wait]] = {}
        for wait in self.waits_by_time():
            key = wait.device, wait.reason, any_layer(wait.tensor), wait.on, wait.runs_before
            groups.setdefault(key, []).append(wait)
        return sorted(groups.values(), key=lambda group: -sum(wait.seconds for wait in group))

    def hidden(self) -> Hidden | None:
        """The time that more copies of compute memory would hide, by simulation; None: none."""
        best: Hidden | None = None
        for program, parts in self.parts.items():
            calls = [self.runs] if self.calls is None else self.calls.get(program, [])
            now = len({id(part.bound) for part in parts})
            found = hidden(stages_of(parts, self.known), calls, now)
            if found is not None and (best is None or found.seconds > best.seconds):
                best = found
        return best

    @property
    def waiting(self) -> float:
        """The part of all threads' time in steps that they spent waiting for other threads."""
        timed = [line for line in self.lines if line.busy]
        total = sum(line.seconds for line in timed) * self.threads
        return 1 - sum(line.busy for line in timed) / total if total else 0.0

    @cached_property
    def peaks(self) -> Peaks:
        """The peak rates of this machine with as many threads; measured on first use."""
        return measure_peaks(self.threads, self.target)

    def as_json(self) -> dict[str, Any]:
        """The terminal's table and every step, in seconds, bytes and operations."""
        peaks = self.peaks
        keys = ("threads", "target", "read", "int8", "f32", "bf16")
        return {
            "name": self.name,
            "runs": self.runs,
            "seconds": self.seconds,
            "outside": self.outside,
            "threads": self.threads,
            "barriers": self.barriers,
            "waiting": self.waiting,
            "overlap": self.overlap,
            "untimed": dict(self.untimed),
            "waits": [asdict(wait) | {"text": wait.text} for wait in self.waits_by_time()],
            "least_seconds": sum(line.least_seconds(peaks)[0] for line in self.lines),
            "peaks": {key: getattr(peaks, key) for key in keys},
            "ops": [line.as_json(peaks) for line in self.by_op()],
            "steps": [line.as_json(peaks) for line in self.lines],
        }
