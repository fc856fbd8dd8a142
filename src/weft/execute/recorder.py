"""`Recorder`: hands what a program did to a profile, once every device is done with it.

Calls to a device with a queue say nothing about when it worked. It is asked at the end, so that
nothing waits because of being watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

from weft.backends.base import QueueSpan, RecordsQueue, RecordsSpans
from weft.execute.bound import BoundProgram, Moved
from weft.execute.profile import Profile

__all__ = ["Recorder"]

Later = Callable[[], list[QueueSpan]]


class Recorder:
    """Records runs of one bound program into a profile, from `start` to `stop`.

    Copies and splits of devices with a queue are noted by the thread that enqueues them; splits of
    other devices may be by other threads."""

    def __init__(self, profile: Profile, bound: BoundProgram) -> None:
        self.profile = profile
        self.bound = bound
        self._queues = [d for d in bound.program.devices if isinstance(d, RecordsQueue)]
        self._names = {d.name: d for d in self._queues}  # type: ignore[attr-defined]
        self._known: list[Callable[[], None]] = []
        self._done = 0  # when the last device ended
        self._overhead = 0  # nanoseconds that recording took since the last run

    def start(self) -> None:
        """Devices with a queue note their times."""
        for queue in self._queues:
            queue.record_queue(True)

    def stop(self) -> None:
        """Nothing is noted any more."""
        for queue in self._queues:
            queue.record_queue(False)
        for executable in self.bound.executables:
            if isinstance(executable, RecordsSpans):
                executable.record_spans(False)

    def between(self) -> None:
        """Notes what came from outside of splits: inputs that were sent, outputs that were read."""
        for name, later in self._taken():
            self._known.append(lambda name=name, later=later: self._add_outside(name, later()))

    def copy(self, split: int, values: Mapping[str, int], which: int) -> Moved:
        """Makes a copy that a split needs, and notes it."""
        program, profile = self.bound.program, self.profile
        start = perf_counter_ns()
        moved = self.bound.copy_inputs(split, values, [which])
        end = perf_counter_ns()
        taken = self._taken()

        def add() -> None:
            spans = [(name, self._seen(later())) for name, later in taken]
            profile.add_copy(program, split, which, moved.nbytes, start, end, spans)

        self._known.append(add)
        return moved

    def run(self, split: int, values: Mapping[str, int]) -> None:
        """Runs a split, and notes it."""
        program, profile = self.bound.program, self.profile
        executable = self.bound.executables[split]
        recorded = executable if isinstance(executable, RecordsSpans) else None
        before = perf_counter_ns()
        if recorded is not None:
            recorded.record_spans(True)
        start = perf_counter_ns()
        self.bound.run(split, values)
        end = perf_counter_ns()
        profile.barriers += getattr(executable, "barriers", 0)
        device = program.splits[split].device
        values = dict(values)
        if device in self._names:
            later = self._names[device].recorded()
            self._known.append(
                lambda: profile.add_queued(program, split, values, start, end, self._seen(later()))
            )
            return
        spans = None if recorded is None else recorded.spans()
        self._overhead += start - before + perf_counter_ns() - end
        self._known.append(lambda: profile.add_split(program, split, values, start, end, spans))

    def end_run(self, begin: int, runs: int = 1) -> None:
        """Adds a run that began at `begin` nanoseconds (or several that were under way together)
        to the profile; it ends when its devices are done, which is waited for."""
        end, overhead = perf_counter_ns(), self._overhead
        self.finish()
        end = max(end, self._done)
        self.profile.add_run(begin, end, end - begin - overhead, runs)

    def finish(self) -> None:
        """Waits for the devices, and adds what is known to the profile."""
        known = self._known
        self.forget()
        for add in known:
            add()

    def forget(self) -> None:
        """Leaves out what is noted, as of a run that failed."""
        self._known, self._done, self._overhead = [], 0, 0

    def _taken(self) -> list[tuple[str, Later]]:
        return [(name, queue.recorded()) for name, queue in self._names.items()]

    def _seen(self, spans: list[QueueSpan]) -> list[QueueSpan]:
        if spans:
            self._done = max(self._done, spans[-1].end)
        return spans

    def _add_outside(self, device: str, spans: list[QueueSpan]) -> None:
        self.profile.add_moves(device, self._seen(spans), {"to": "inputs", "from": "outputs"})
