"""`Recorder`: hands what a program did to a profile, once every device is done with it.

Calls to a device with a queue say nothing about when it worked. It is asked at the end, so that
nothing waits because of being watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

from weft.backends.base import NativeRun, QueueSpan, RecordsQueue, RecordsSpans
from weft.execute.bound import BoundProgram, Moved
from weft.execute.profile import Profile
from weft.program import Program

__all__ = ["Recorder"]

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
        self._known: list[Callable[[], None]] = []
        self._done = 0  # when the last device ended
        self._overhead = 0  # nanoseconds that recording took since the last run

    def start(self) -> None:
        """Devices with a queue note their times."""
        for queue in self._queues.values():
            queue.record_queue(True)

    def stop(self) -> None:
        """Nothing is noted any more."""
        for queue in self._queues.values():
            queue.record_queue(False)

    def between(self) -> None:
        """Notes what came from outside of splits: inputs that were sent, outputs that were read."""
        for device, later in self._taken():
            self._known.append(self._outside(device, later))

    def copy(
        self,
        bound: BoundProgram,
        split: int,
        values: Mapping[str, int],
        i: int,
        *,
        queued: bool = True,
    ) -> Moved:
        """Makes copy `i` of those that a split needs, and notes it; `queued`: a device's queue may
        have part in it."""
        start = perf_counter_ns()
        moved = bound.copy_inputs(split, values, [i])
        end = perf_counter_ns()
        taken = self._taken() if queued else []

        def add() -> None:
            spans = [(device, self._seen(later)) for device, later in taken]
            self.profile.add_copy(self._program, split, i, moved.nbytes, start, end, spans)

        self._known.append(add)
        return moved

    def run(self, bound: BoundProgram, split: int, values: Mapping[str, int]) -> None:
        """Runs a split, and notes it."""
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
        kept, queue = dict(values), self._queues.get(self._program.splits[split].device)
        later = None if queue is None else queue.recorded()

        def add() -> None:
            profile, program = self.profile, self._program
            if later is None:
                profile.add_split(program, split, kept, start, end, spans)
            else:
                profile.add_queued(program, split, kept, start, end, self._seen(later))

        self._known.append(add)
        self._overhead += start - before + perf_counter_ns() - end

    def end_run(self, begin: int, runs: int = 1) -> None:
        """Adds a run that began at `begin` nanoseconds (or several that were under way together)
        to the profile; it ends when its devices are done, which is waited for."""
        end, overhead = perf_counter_ns(), self._overhead
        end = max(end, self.finish())
        self.profile.add_run(begin, end, end - begin - overhead, runs)

    def finish(self) -> int:
        """Waits for the devices, and adds what is known to the profile; when the last ended."""
        known = self._known
        self.forget()
        for add in known:
            add()
        return self._done

    def forget(self) -> None:
        """Leaves out what is noted, as of a run that failed."""
        self._known, self._done, self._overhead = [], 0, 0

    def _taken(self) -> list[tuple[str, Later]]:
        return [(name, queue.recorded()) for name, queue in self._queues.items()]

    def _seen(self, later: Later) -> list[QueueSpan]:
        spans = later()
        if spans:
            self._done = max(self._done, spans[-1].end)
        return spans

    def _outside(self, device: str, later: Later) -> Callable[[], None]:
        def add() -> None:
            self.profile.add_moves(device, self._seen(later), _OUTSIDE)

        return add
