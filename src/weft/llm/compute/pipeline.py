"""`Pipelined` computes several ubatches at the same time, of a prompt or of several texts.

While the device of the last layers works on one ubatch, the first device works on the next one.
Each ubatch has its own inputs and compute memory; all use the same cache, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import OnMachine
from weft.execute import Pipeline, Run, Session, stage_work
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.inputs import Regime
from weft.llm.compute.rollback import Change, Places
from weft.program import Program
from weft.records import dataclass
from weft.schedule import Schedule

if TYPE_CHECKING:
    from weft.execute import Profile

Rows = tuple[Ubatch, NDArray[np.float32] | None]
"""A ubatch and its output rows, one for each token whose row is wanted, valid until the next
ubatch; None: no row is wanted."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A ubatch that is being computed."""

    ubatch: Ubatch
    n_out: int
    copy: int
    run: Run


class Pipelined:
    """Runs the graph of a regime for one ubatch after another, with several sessions of it."""

    def __init__(self, schedule: Schedule, regimes: Sequence[Regime], width: int) -> None:
        """`regimes` have the same program and an arena each; `width` is the length of a row."""
        self._regimes = list(regimes)
        self._width = width
        self._pipeline = Pipeline(schedule, self.sessions)
        self._free = deque(range(len(self._regimes)))
        """The sessions that compute nothing, by number."""

    @property
    def sessions(self) -> list[Session]:
        """The sessions, one for each ubatch that may be running."""
        return [regime.session for regime in self._regimes]

    def abort(self) -> None:
        """Stops `run`; may be called from any thread."""
        self._pipeline.abort()

    def clear_abort(self) -> None:
        """Cancels an `abort` that has stopped nothing."""
        self._pipeline.clear_abort()

    def profile(self, into: Profile) -> AbstractContextManager[Profile]:
        """Records the runs inside the `with` block."""
        return self._pipeline.profile(into)

    def run(
        self, ubatches: Sequence[Ubatch], change: Change, sizes: Callable[[Ubatch], dict[str, int]]
    ) -> Iterator[Rows]:
        """Takes cells for each ubatch, computes it, and yields its rows; all in order.

        `sizes` gives the values of the symbols for a ubatch whose cells are taken. Where no row is
        wanted, ops that only rows need are skipped. Raises AbortedError after `abort` and
        DeviceError; nothing is running then."""
        under_way = deque[UnderWay]()
        try:
            for ubatch in ubatches:
                if not self._free:
                    yield self._next(under_way)
                under_way.append(self.start(ubatch, change.occupy(ubatch), sizes))
            while under_way:
                yield self._next(under_way)
            self._pipeline.finish()
        except BaseException:
            self.reset()
            raise

    def _next(self, under_way: deque[UnderWay]) -> Rows:
        oldest = under_way.popleft()
        return oldest.ubatch, self.result(oldest)

    def start(
        self, ubatch: Ubatch, places: Places, sizes: Callable[[Ubatch], dict[str, int]]
    ) -> UnderWay:
        """Begins to compute a ubatch with a session that is free. After an error, call `reset`."""
        regime = self._regimes[self._free[0]]
        out_ids = np.flatnonzero(ubatch.outputs)
        regime.inputs.write(ubatch, places, out_ids)
        n_splits = None if len(out_ids) else self._pipeline.n_lasting
        output = regime.output if len(out_ids) and regime.rows is None else None
        copy = self._free.popleft()
        run = self._pipeline.start(copy, sizes(ubatch), n_splits, output)
        return UnderWay(ubatch, len(out_ids), copy, run)

    def result(self, oldest: UnderWay) -> NDArray[np.float32] | None:
        """Waits for the ubatch that was started first, and returns its rows, which are valid until
        the next `start`; None: no row is wanted. After an error, call `reset`."""
        self._pipeline.wait(oldest.run)
        regime, n, run = self._regimes[oldest.copy], oldest.n_out, oldest.run
        rows = None
        if n and regime.rows is not None:
            rows = regime.rows[: n * self._width].reshape(n, self._width)
        elif n:
            rows = run.outputs.get(regime.output)
            if rows is None:
                rows = regime.session.output(regime.output, run.values)
        self._free.append(oldest.copy)
        return rows

    def reset(self) -> None:
        """Stops and drops all that is under way."""
        self._pipeline.reset()
        self._free = deque(range(len(self._regimes)))


def several_stages(program: Program) -> bool:
    """Whether layers are on several machines, and all devices that compute them are cpus: their
    kernels compute each text by itself, so that results do not depend on what is beside it."""
    work = stage_work(program)
    used = [device for device in program.devices if work.get(device.name)]
    machines = {id(d.machine) if isinstance(d, OnMachine) else 0 for d in used}
    return len(machines) > 1 and all(getattr(device, "target", "") for device in used)
