"""`Profile`: the time of runs step by step, compared with the peak rates of the machine.

    with session.profile() as profile:
        session.run(inputs)
    print(profile)                       # a line an op and weight type
    profile.save_trace("trace.json")     # for ui.perfetto.dev or chrome://tracing

Devices that report when each thread worked on each step (`RecordsSpans`), or the times of their
queue (`RecordsQueue`), get a line for each step; for others only the time of a whole split is
known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import QueueSpan, UsesThreads
from weft.errors import ProgramError
from weft.execute.profile_lines import Line, SplitLines, split_lines
from weft.execute.profile_results import ProfileResults
from weft.execute.profile_table import profile_text
from weft.execute.profile_trace import Group, Trace, length, overlap, overlapping
from weft.files import write_text
from weft.program import Program

__all__ = ["Line", "Profile"]


class Profile(ProfileResults):
    """Times, bytes and operations of everything that ran while it was recording."""

    def __init__(self, *, trace: bool | Trace = True, name: str = "") -> None:
        """`trace` keeps the data of `save_trace`, some 500 bytes a step, run and thread; it may be
        a timeline that another profile adds to, too. `name` is a title."""
        super().__init__(name)
        self.trace: Trace | None = (
            (Trace() if trace else None) if isinstance(trace, bool) else trace
        )
        # device -> intervals of its work, since the last run was added
        self._work: dict[str, list[tuple[int, int]]] = {}

    def save_trace(self, path: str | Path) -> None:
        """Writes a Chrome trace: a row a thread, a slice a step, and the waits between stages.

        Raises ProgramError for a profile that kept no trace, FormatError where the file cannot be
        written."""
        if self.trace is None:
            raise ProgramError("this profile keeps no trace; make it with trace=True")
        write_text(path, json.dumps(self.trace.as_json()))

    def add_clock(self, device: str, error: float) -> None:
        """Says that times of a device are by another clock, and by how many seconds they may be
        shifted."""
        self.clocks[device] = max(error, self.clocks.get(device, 0.0))
        if self.trace is not None:
            self.trace.clocks[device] = self.clocks[device]

    # ---- recording (called by sessions) ----------------------------------------------------------

    def add_run(self, start: int, end: int, spent: int, runs: int = 1) -> None:
        """Adds a run from `start` to `end` nanoseconds, of which `spent` without recording.

        With `runs` above 1 it adds several runs that overlapped."""
        self.runs += runs
        self.seconds += spent * 1e-9
        self.begin, self.end = min(self.begin or start, start), max(self.end, end)
        self.overlap += overlap(self._work.values()) * 1e-9
        self.wall += (end - start) * 1e-9
        for device, work in self._work.items():
            if device != "copies":
                self.busy[device] = self.busy.get(device, 0.0) + length(work) * 1e-9
        self._work.clear()
        if self.trace is not None:
            which = f"run {self.runs}" if runs == 1 else f"runs to {self.runs}"
            self.trace.run(f"{self.name} {which}".lstrip(), start, end)

    def add_call(self, program: Program, runs: int) -> None:
        """Says that the next `runs` runs of a program belong to one call, so that they could
        overlap."""
        if self.calls is None:
            self.calls = {}
        if not runs:
            return
        self.calls.setdefault(id(program), []).append(runs)

    def add_copy(
        self, program: Program, split: int, which: int, nbytes: int, start: int, end: int,
        spans: Sequence[tuple[str, Sequence[QueueSpan]]],
    ) -> None:  # fmt: skip
        """Adds a copy that a split needed: the call, and the work of device queues (by name) for
        it.

        The time of such work counts instead of the call's, which waits for earlier work."""
        line = self._splits(program)[split].copies
        line.calls += 1
        line.nbytes += nbytes
        name = program.tensors[program.splits[split].copies[which].src].name
        if self.trace is not None:
            self.trace.slice(f"copy {name}", "copy", "host copies", start, end, {"bytes": nbytes})
        for device, moves in spans:
            line.seconds += self.add_moves(device, moves, name)
        if not any(moves for _, moves in spans):
            line.seconds += (end - start) * 1e-9
            self._worked("copies", start, end)

    def add_moves(
        self, device: str, spans: Sequence[QueueSpan], name: str | Mapping[str, str]
    ) -> float:
        """Adds copies that a queue made, of `name` (or by their kind); returns the seconds they
        took."""
        for span in spans:
            self._worked(device, span.begin, span.end)
            if self.trace is not None:
                what = name if isinstance(name, str) else name.get(span.kind, "")
                title, about = f"{span.kind} device: {what}", {"bytes": span.nbytes}
                row = f"{device} copies"
                self.trace.slice(title, "copy", row, span.begin, span.end, about)
        return sum(span.end - span.begin for span in spans) * 1e-9

    def add_queued(
        self, program: Program, split: int, values: Mapping[str, int], start: int, end: int,
        spans: Sequence[QueueSpan],
    ) -> None:  # fmt: skip
        """Adds a split that was enqueued from `start` to `end`, and the work of its device's
        queue."""
        split_lines = self._splits(program)[split]
        nbytes, flops = split_lines.sizes_at(program, values)
        counted: set[int] = set()
        for span in spans:
            line = split_lines.lines[span.step]
            line.seconds += (span.end - span.begin) * 1e-9
            self._worked(split_lines.device, span.begin, span.end)
            if span.step not in counted:
                counted.add(span.step)
                line.calls += 1
                line.nbytes += float(nbytes[span.step])
                line.flops += float(flops[span.step])
        if self.trace is not None:
            if spans:
                begin, last = min(s.begin for s in spans), max(s.end for s in spans)
                self._trace_split(split, split_lines.device, begin, last, len(spans))
            title = f"enqueue split {split} on {split_lines.device}"
            self.trace.slice(title, "enqueue", "host", start, end, {"kernels": len(spans)})
            self.trace.kernels(split_lines.device, split_lines.lines, spans, nbytes)

    def _trace_split(self, split: int, device: str, begin: int, end: int, steps: int) -> None:
        assert self.trace is not None
        about = {"split": split, "steps": steps}
        self.trace.slice(
            f"split {split} on {device}", "split", f"{device} splits", begin, end, about
        )

    def _worked(self, device: str, begin: int, end: int) -> None:
        self._work.setdefault(device, []).append((begin, end))

    def add_split(
        self, program: Program, split: int, values: Mapping[str, int], start: int, end: int,
        spans: NDArray[np.int64] | None,
    ) -> None:  # fmt: skip
        """Adds a split that ran; `spans` are the spans of `RecordsSpans`, if its device reports
        them."""
        split_lines = self._splits(program)[split]
        nbytes, flops = split_lines.sizes_at(program, values)
        if spans is None or len(spans) != len(split_lines.lines):
            line = split_lines.whole
            line.calls += 1
            line.seconds += (end - start) * 1e-9
            line.nbytes += float(nbytes.sum())
            line.flops += float(flops.sum())
            self._worked(split_lines.device, start, end)
            if self.trace is not None:
                title = f"split {split} on {split_lines.device}"
                self.trace.slice(title, split_lines.device, split_lines.device, start, end)
            return
        self.threads = max(self.threads, int(np.count_nonzero(spans[:, :, 2].sum(axis=0))))
        groups = overlapping(spans)
        busy = spans[:, :, 2].sum(axis=1) * 1e-9
        if groups:
            self._worked(split_lines.device, groups[0].begin, groups[-1].end)
        for group in groups:
            self._add_group(split_lines, group, busy, nbytes, flops)
        if self.trace is not None:
            if groups:
                begin, last, steps = groups[0].begin, groups[-1].end, len(split_lines.lines)
                self._trace_split(split, split_lines.device, begin, last, steps)
            self.trace.steps(split_lines.device, split_lines.lines, groups, spans)

    def _add_group(
        self, split: SplitLines, group: Group, busy: NDArray[np.float64],
        nbytes: NDArray[np.float64], flops: NDArray[np.float64],
    ) -> None:  # fmt: skip
        total = float(busy[list(group.steps)].sum())
        for i in group.steps:
            line = split.lines[i]
            part = busy[i] / total if total else 1 / len(group.steps)
            line.calls += 1
            line.seconds += group.seconds * float(part)
            line.busy += float(busy[i])
            line.nbytes += float(nbytes[i])
            line.flops += float(flops[i])

    def _splits(self, program: Program) -> list[SplitLines]:
        entry = self._programs.get(id(program))
        if entry is None:
            for device in program.devices:
                if isinstance(device, UsesThreads):
                    self.target = self.target or device.target
                    self.threads = max(self.threads, device.n_threads)
            splits = [split_lines(program, i) for i in range(len(program.splits))]
            entry = self._programs[id(program)] = (program, splits)
        return entry[1]

    def __str__(self) -> str:
        """The table of `weft bench --profile`."""
        return profile_text(self)
