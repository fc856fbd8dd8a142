"""`Recorder`: reports the work of a program to a profile, once every device has finished it.

Calls to a device with a queue return before the device works. Its times are read at the end, so
that recording makes nothing wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

from weft.backends.base import HasOtherClock, NativeRun, QueueSpan, RecordsQueue, RecordsSpans
from weft.execute.bound import BoundProgram, Moved
from weft.execute.profile import Profile
from weft.program import Program

Later = Callable[[], list[QueueSpan]]

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
        self._done = 0  # when the last device ended
        self._overhead = 0  # nanoseconds that recording took since the last run

    def start(self) -> None:
        """Makes devices with a queue record their times."""
        for name, queue in self._queues.items():
            queue.record_queue(True)
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
        symbol_values, queue = dict(values), self._queues.get(self._program.splits[split].device)
        later = None if queue is None else queue.recorded()

        def add() -> None:
            profile, program = self.profile, self._program
            if later is None:
                profile.add_split(program, split, symbol_values, start, end, spans)
            else:
                profile.add_queued(program, split, symbol_values, start, end, self._spans_of(later))

        self._records.append(add)
        self._overhead += start - before + perf_counter_ns() - end

    def end_run(self, begin: int, runs: int = 1) -> None:
        """Adds a run that began at `begin` nanoseconds to the profile, or several runs that
        overlapped.

        The run ends when its devices have finished, for which this waits."""
        end, overhead = perf_counter_ns(), self._overhead
        end = max(end, self.finish())
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
        self._records, self._done, self._overhead = [], 0, 0

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
