"""`Profile`: where the time of runs goes, step by step, against what the machine reaches at best.

    with session.profile() as profile:
        session.run(inputs)
    print(profile)                       # a line an op and weight type
    profile.save_trace("trace.json")     # for ui.perfetto.dev or chrome://tracing

Devices that can say when each thread worked on each step (`RecordsSpans`), or when their queue did
what (`RecordsQueue`), get a line a step; of others the time of a whole split is known.
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
from weft.execute.profile_trace import Trace
from weft.execute.spans import Group, overlap, overlapping
from weft.files import write_text
from weft.program import Program

__all__ = ["Line", "Profile"]


class Profile(ProfileResults):
    """Times, bytes and operations of everything that ran while it was recording."""

    def __init__(self, *, trace: bool | Trace = True, name: str = "") -> None:
        """`trace`: keep what `save_trace` needs, some 500 bytes a step, run and thread; or a
        timeline to which another profile adds, too. `name`: a title."""
        super().__init__(name)
        self.trace: Trace | None = (
            (Trace() if trace else None) if isinstance(trace, bool) else trace
        )
        # device -> when it worked, since the last run was added
        self._work: dict[str, list[tuple[int, int]]] = {}

    def save_trace(self, path: str | Path) -> None:
        """Writes a Chrome trace: a row a thread, a slice a step, and the waits between stages.

        Raises ProgramError on a profile that kept no trace, FormatError where the file cannot be
        written."""
        if self.trace is None:
            raise ProgramError("this profile keeps no trace; make it with trace=True")
        write_text(path, json.dumps(self.trace.as_json()))

    # ---- recording (called by sessions) ----------------------------------------------------------

    def add_run(self, start: int, end: int, spent: int, runs: int = 1) -> None:
        """A whole run from `start` to `end` nanoseconds, of which `spent` without recording; or
        several `runs` that were under way together."""
        self.runs += runs
        self.seconds += spent * 1e-9
        self.overlap += overlap(self._work.values()) * 1e-9
        self._work.clear()
        if self.trace is not None:
            which = f"run {self.runs}" if runs == 1 else f"runs to {self.runs}"
            self.trace.run(f"{self.name} {which}".lstrip(), start, end)

    def add_copy(
        self, program: Program, split: int, which: int, nbytes: int, start: int, end: int,
        spans: Sequence[tuple[str, Sequence[QueueSpan]]],
    ) -> None:  # fmt: skip
        """A copy that a split needed: the call, and what queues of devices (by name) did for it.
        Where they did something that is what took time: the call waits for work before it."""
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
        """Copies that a queue made, of `name` (or by their kind); the seconds that they took."""
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
        """A split that was enqueued from `start` to `end`, and what the queue of its device did."""
        known = self._splits(program)[split]
        nbytes, flops = known.sizes_at(program, values)
        seen: set[int] = set()
        for span in spans:
            line = known.lines[span.step]
            line.seconds += (span.end - span.begin) * 1e-9
            self._worked(known.device, span.begin, span.end)
            if span.step not in seen:
                seen.add(span.step)
                line.calls += 1
                line.nbytes += float(nbytes[span.step])
                line.flops += float(flops[span.step])
        if self.trace is not None:
            title = f"enqueue split {split} on {known.device}"
            self.trace.slice(title, "enqueue", "host", start, end, {"kernels": len(spans)})
            self.trace.kernels(known.device, known.lines, spans, nbytes)

    def _worked(self, device: str, begin: int, end: int) -> None:
        self._work.setdefault(device, []).append((begin, end))

    def add_split(
        self, program: Program, split: int, values: Mapping[str, int], start: int, end: int,
        spans: NDArray[np.int64] | None,
    ) -> None:  # fmt: skip
        """A split that ran; `spans` as of `RecordsSpans` where its device knows them."""
        known = self._splits(program)[split]
        nbytes, flops = known.sizes_at(program, values)
        if spans is None or len(spans) != len(known.lines):
            line = known.whole
            line.calls += 1
            line.seconds += (end - start) * 1e-9
            line.nbytes += float(nbytes.sum())
            line.flops += float(flops.sum())
            self._worked(known.device, start, end)
            if self.trace is not None:
                title = f"split {split} on {known.device}"
                self.trace.slice(title, known.device, known.device, start, end)
            return
        self.threads = max(self.threads, int(np.count_nonzero(spans[:, :, 2].sum(axis=0))))
        groups = overlapping(spans)
        busy = spans[:, :, 2].sum(axis=1) * 1e-9
        if groups:
            self._worked(known.device, groups[0].begin, groups[-1].end)
        for group in groups:
            self._add_group(known, group, busy, nbytes, flops)
        if self.trace is not None:
            self.trace.steps(known.device, known.lines, groups, spans)

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
        known = self._programs.get(id(program))
        if known is None:
            for device in program.devices:
                if isinstance(device, UsesThreads):
                    self.target = self.target or device.target
                    self.threads = max(self.threads, device.n_threads)
            splits = [split_lines(program, i) for i in range(len(program.splits))]
            known = self._programs[id(program)] = (program, splits)
        return known[1]

    def __str__(self) -> str:
        """The table of `weft bench --profile`."""
        return profile_text(self)
