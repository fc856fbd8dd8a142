"""`Recorder`: reports the work of a program to a profile, once every device has finished it.

Calls to a device with a queue return before the device works. Its times are read at the end, so
that recording makes nothing wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns

from weft.backends.base import (
    HasOtherClock,
    MayLackTimes,
    NativeRun,
    QueueSpan,
    RecordsQueue,
    RecordsSpans,
)
from weft.execute.bound import BoundProgram, Moved
from weft.execute.profile import Profile
from weft.execute.profile_trace import length
from weft.execute.waits import Part, find_waits
from weft.program import Program

Later = Callable[[], list[QueueSpan]]

_MOST_PARTS = 20_000
"""Pieces of work of a program from which mean times are taken."""
_OUTSIDE = {"to": "inputs", "from": "outputs"}


class Recorder:
    """Records runs of a program into a profile, from `start` to `stop`.

    One thread calls it; others may call `run` for splits of devices without a queue, and `copy`
    for copies without part of one."""

    def __init__(self, profile: Profile, program: Program) -> None:
        self.profile = profile
        self._program = program
        self._queues = {d.name: d for d in program.devices if isinstance(d, RecordsQueue)}
        self._records: list[Callable[[], None]] = []
        self._parts: list[Part] = []
        self._several = len({split.device for split in program.splits}) > 1
        self._done = 0  # when the last device ended
        self._overhead = 0  # nanoseconds that recording took since the last run

    def start(self) -> None:
        """Makes devices with a queue record their times."""
        for name, queue in self._queues.items():
            queue.record_queue(True)
            if isinstance(queue, MayLackTimes) and queue.why_untimed:
                self.profile.untimed[name] = queue.why_untimed
            if isinstance(queue, HasOtherClock):
                self.profile.add_clock(name, queue.clock_error)

    def stop(self) -> None:
        """Ends recording."""
        for queue in self._queues.values():
            queue.record_queue(False)

    def between(self) -> None:
        """Records transfers outside of splits: inputs that were sent, outputs that were read."""
        for device, later in self._queue_spans():
            self._records.append(self._outside(device, later))

    def copy(
        self,
        bound: BoundProgram,
        split: int,
        values: Mapping[str, int],
        i: int,
        *,
        queued: bool = True,
    ) -> Moved:
        """Makes copy `i` of a split, and records it; `queued` says that a device's queue may take
        part in it."""
        start = perf_counter_ns()
        moved = bound.copy_inputs(split, values, [i])
        end = perf_counter_ns()
        queue_spans = self._queue_spans() if queued else []

        def add() -> None:
            spans = [(device, self._spans_of(later)) for device, later in queue_spans]
            self.profile.add_copy(self._program, split, i, moved.nbytes, start, end, spans)
            queue, moves = next(((d, s) for d, s in spans if s), ("host", []))
            self._part(bound, split, i, queue, start, end, moves, moved.nbytes)

        self._records.append(add)
        return moved

    def run(self, bound: BoundProgram, split: int, values: Mapping[str, int]) -> None:
        """Runs a split, and records it."""
        executable = bound.executables[split]
        recorded = executable if isinstance(executable, RecordsSpans) else None
        before = perf_counter_ns()
        if recorded is not None:
            recorded.record_spans(True)
        start = perf_counter_ns()
        try:
            bound.run(split, values)
            end = perf_counter_ns()
            spans = None if recorded is None else recorded.spans()
        finally:
            if recorded is not None:
                recorded.record_spans(False)
        if isinstance(executable, NativeRun):
            self.profile.barriers += executable.barriers
        device = self._program.splits[split].device
        symbol_values, queue = dict(values), self._queues.get(device)
        later = None if queue is None else queue.recorded()

        def add() -> None:
            profile, program = self.profile, self._program
            kernels: list[QueueSpan] = []
            if later is None:
                profile.add_split(program, split, symbol_values, start, end, spans)
            else:
                kernels = self._spans_of(later)
                profile.add_queued(program, split, symbol_values, start, end, kernels)
            self._part(bound, split, -1, device, start, end, kernels)

        self._records.append(add)
        self._overhead += start - before + perf_counter_ns() - end

    def end_run(self, begin: int, runs: int = 1) -> None:
        """Adds a run that began at `begin` nanoseconds to the profile, or several runs that
        overlapped.

        The run ends when its devices have finished, for which this waits."""
        end, overhead = perf_counter_ns(), self._overhead
        end = max(end, self.finish())
        parts, self._parts = self._parts, []
        if parts:
            self._add_waits(parts, begin, end)
        self.profile.add_run(begin, end, end - begin - overhead, runs)

    def finish(self) -> int:
        """Waits for the devices, adds the records to the profile, and returns the time of the last
        end."""
        records = self._records
        self.forget()
        for add in records:
            add()
        return self._done

    def forget(self) -> None:
        """Drops the records, as after a run that failed."""
        self._records, self._parts, self._done, self._overhead = [], [], 0, 0

    def _part(
        self, bound: BoundProgram, split: int, copy: int, queue: str, start: int, end: int,
        spans: Sequence[QueueSpan], nbytes: int = 0,
    ) -> None:  # fmt: skip
        """Keeps when work was done, by its device if that says so, else by the call."""
        gaps = 0
        if spans:
            start, end = min(s.begin for s in spans), max(s.end for s in spans)
            gaps = end - start - length([(s.begin, s.end) for s in spans])
        if self._several:
            self._parts.append(Part(bound, split, copy, queue, start, end, nbytes, gaps))

    def _add_waits(self, parts: Sequence[Part], begin: int, end: int) -> None:
        """Adds the waits between the work of one run, or of several that overlapped."""
        profile = self.profile
        kept = profile.parts.setdefault(id(self._program), [])
        if len(kept) + len(parts) <= _MOST_PARTS:
            kept += parts
        for wait, since, until in find_waits(parts, begin, end, profile.known):
            key = replace(wait, nbytes=0)
            before = profile.waits.get(key, key)
            profile.waits[key] = replace(
                before, nbytes=max(before.nbytes, wait.nbytes), times=before.times + 1,
                seconds=before.seconds + (until - since) * 1e-9,
            )  # fmt: skip
            if profile.trace is not None and wait.reason != "kernels":
                about = {"split": wait.split, "bytes": wait.nbytes, "queue": wait.on}
                title, row = f"waits for {wait.text}", f"{wait.device} waits"
                profile.trace.slice(title, "wait", row, since, until, about)

    def _queue_spans(self) -> list[tuple[str, Later]]:
        return [(name, queue.recorded()) for name, queue in self._queues.items()]

    def _spans_of(self, later: Later) -> list[QueueSpan]:
        spans = later()
        if spans:
            self._done = max(self._done, spans[-1].end)
        return spans

    def _outside(self, device: str, later: Later) -> Callable[[], None]:
        def add() -> None:
            self.profile.add_moves(device, self._spans_of(later), _OUTSIDE)

        return add
