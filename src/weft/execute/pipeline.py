"""`Pipeline`: runs of one program that overlap, each with memory of its own.

    cpu      run 1, split 0 | run 2, split 0 | run 3, split 0 | ...
    opencl                  | run 1, split 1 | run 2, split 1 | ...

While one device works on a run, another works on the next. The calling thread submits the work,
each piece when it has to wait for no other device, so that no queue is blocked. Work of the oldest
run comes first. Work of a later run is submitted only if it touches no bytes of earlier work that
is not submitted yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

from weft.backends.base import OnMachine
from weft.errors import AbortedError
from weft.execute.bound import Moved
from weft.execute.devices import DeviceQueues, Run, Work
from weft.execute.session import Session
from weft.execute.split_access import SplitAccess
from weft.program import Program
from weft.records import dataclass
from weft.schedule import Schedule

if TYPE_CHECKING:
    from weft.execute.profile import Profile
    from weft.execute.recorder import Recorder

_SHORT, _LONG = 0.0001, 0.002
"""The shortest and the longest time in seconds between polls of devices, whose queues do not
notify; the time grows from poll to poll."""
_LIGHT = frozenset({"GET_ROWS", "SCALE", "ADD", "MUL", "CPY", "CONT", "RMS_NORM", "NORM"})
"""Ops of the input, which take no longer than handing them to another thread."""
_RECORDED = 256
"""Runs after which times are fetched from devices, although runs are under way."""


@dataclass(slots=True)
class _Flight:
    """A run that is not over."""

    run: Run
    items: list[Work]
    next: int = 0

    @property
    def left(self) -> list[Work]:
        """The work that is not submitted yet."""
        return self.items[self.next :]


class Pipeline:
    """Submits runs of sessions to devices. One thread calls it."""

    def __init__(self, schedule: Schedule, sessions: Sequence[Session]) -> None:
        """`sessions` are of one program, each over arenas of its own."""
        self.sessions = list(sessions)
        self._devices = DeviceQueues(schedule.backends)
        self._splits = [SplitAccess(schedule, s.bound, self._devices) for s in sessions]
        self.n_lasting = self._splits[0].n_lasting
        """The number of splits that a run needs even if nobody reads its outputs."""
        work = stage_work(self._splits[0].program)
        names = [backend.name for backend in schedule.backends]
        self._light = {d for d, name in enumerate(names) if not work.get(name)}
        far = [isinstance(backend, OnMachine) for backend in schedule.backends]
        self._notified = all(far[d] or d in self._light for d in self._splits[0].device)
        """Whether every device with lasting work is on another machine, which signals its end."""
        self._flights: list[_Flight] = []
        self._meets: dict[tuple[int, int], bool] = {}
        self._stop = False
        self._counting = threading.Lock()
        self._ended = threading.Event()
        self._patience = _SHORT
        self._recorder: Recorder | None = None
        self._begin = 0
        self._runs = 0

    @property
    def n_copies(self) -> int:
        """The largest number of runs at the same time."""
        return len(self.sessions)

    def start(
        self,
        copy: int,
        values: Mapping[str, int],
        n_splits: int | None = None,
        output: str | None = None,
    ) -> Run:
        """Runs a session whose inputs are written and whose earlier run is over, up to split
        `n_splits`. Output `output` is among the run's own, if it can be read before later runs are
        over.

        Submits work of all runs as far as nothing has to wait."""
        if self._recorder is not None:
            self._recorder.between()
            if not self._flights and not self._runs:
                self._begin = perf_counter_ns()
            self._runs += 1
        run = Run(self._devices.fault, dict(values))
        items = self._items(copy, run, n_splits)
        if output is not None:
            items += self._reading(copy, run, output)
        self._flights.append(_Flight(run, items))
        while self._hand_out():
            pass
        return run

    def wait(self, run: Run) -> None:
        """Continues all runs until this one is over.

        Raises AbortedError after `abort`, DeviceError naming split and device when one fails; call
        `reset` then."""
        while any(flight.run is run and flight.left for flight in self._flights):
            self._go_on()
        while not run.is_done():
            if self._notified and not any(flight.left for flight in self._flights):
                break
            self._go_on()
        run.wait()
        self._flights = [flight for flight in self._flights if flight.run is not run]
        self._check()
        if not self._flights or self._runs >= _RECORDED:
            self._record_runs()

    def finish(self) -> None:
        """Waits for all runs; raises as `wait`."""
        while self._flights:
            self.wait(self._flights[0].run)
        self._devices.synchronize()
        self._record_runs()

    def reset(self) -> None:
        """Stops and drops all runs, after a failure or Ctrl-C."""
        for session in self.sessions:
            session.abort()
        self._devices.restart()
        self.clear_abort()
        self._flights.clear()
        self._runs = 0
        if self._recorder is not None:
            self._recorder.forget()

    def abort(self) -> None:
        """Stops all runs, from any thread."""
        self._stop = True
        for session in self.sessions:
            session.abort()

    def clear_abort(self) -> None:
        """Cancels an `abort` that has stopped nothing."""
        self._stop = False
        for session in self.sessions:
            session.clear_abort()

    @contextmanager
    def profile(self, into: Profile) -> Iterator[Profile]:
        """Records every run inside the `with`."""
        from weft.execute.recorder import Recorder  # most pipelines record nothing

        recorder = Recorder(into, self.sessions[0].program)
        recorder.start()
        self._recorder = recorder
        try:
            yield into
            self._record_runs()
            recorder.between()
            recorder.finish()
        finally:
            self._recorder = None
            recorder.stop()

    def _record_runs(self) -> None:
        if self._recorder is not None and self._runs:
            self._recorder.end_run(self._begin, self._runs)
        self._runs = 0

    # ---- handing out -----------------------------------------------------------------------------

    def _items(self, copy: int, run: Run, n_splits: int | None) -> list[Work]:
        splits, session = self._splits[copy], self.sessions[copy]
        bound, values = splits.bound, run.values

        def compute(split: int) -> None:
            if self._recorder is None:
                bound.run(split, values)
            else:
                self._recorder.run(bound, split, values)

        def copies(split: int, which: list[int], here: bool) -> None:
            recorder, moved = self._recorder, Moved()
            if recorder is None:
                moved = bound.copy_inputs(split, values, which)
            else:
                for i in which:
                    moved.add(recorder.copy(bound, split, values, i, queued=here))
            with self._counting:
                session.moved.add(moved)

        numbers = range(len(splits.device) if n_splits is None else n_splits)
        return [work for number in numbers for work in splits.work(number, copies, compute)]

    def _reading(self, copy: int, run: Run, output: str) -> list[Work]:
        """The work of reading an output behind the run; none where it is read at the end."""
        session = self.sessions[copy]
        if not session.reads_later(output):
            return []
        device, access = self._splits[copy].output_access[output]

        def read() -> None:
            run.put_later(output, session.output_later(output, run.values))

        return [Work(device, access, read, True)]

    def _go_on(self) -> None:
        """Submits all work that need not wait; if there is none, waits for a device."""
        self._ended.clear()
        if self._hand_out():
            self._patience = _SHORT
        else:
            self._ended.wait(self._patience)
            self._patience = min(2 * self._patience, _LONG)

    def _hand_out(self) -> bool:
        """Submits one piece of work; False where all remaining work has to wait."""
        self._check()
        before: list[Work] = []
        for flight in self._flights:
            if flight.left:
                item = flight.left[0]
                free = not any(self._conflict(other, item) for other in before)
                if free and not self._devices.blocks(item):
                    self._submit(flight, item)
                    return True
            before += flight.left
        return False

    def _submit(self, flight: _Flight, item: Work) -> None:
        flight.next += 1

        def do() -> None:
            try:
                item.do()
            finally:
                self._ended.set()

        inline = item.device in self._light
        work = Work(item.device, item.access, do, item.copies)
        flight.run.add(self._devices.submit(work, inline=inline))

    def _conflict(self, earlier: Work, later: Work) -> bool:
        key = (id(earlier.access), id(later.access))
        conflict = self._meets.get(key)
        if conflict is None:
            conflict = self._meets[key] = earlier.access.conflicts(later.access)
        return conflict

    def _check(self) -> None:
        if self._stop:
            raise AbortedError("the run was stopped by abort()")
        self._devices.fault.check()


def stage_work(program: Program) -> dict[str, int]:
    """Device -> the number of its steps that are more than a look at the input."""
    counts: dict[str, int] = {}
    for split in program.splits:
        n = sum(step.op.name not in _LIGHT for step in split.steps)
        counts[split.device] = counts.get(split.device, 0) + n
    return counts
