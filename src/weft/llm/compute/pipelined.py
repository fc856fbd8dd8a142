"""`Pipelined` computes the ubatches of a prompt, several at the same time.

While the device of the last layers works on one ubatch, that of the first layers works on the next.
Each ubatch has its own inputs and compute memory; all use the same cache, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from weft.execute import Pipeline, Profile, Run, Session
from weft.llm.cache.rollback import Change
from weft.llm.compute.batch import Ubatch
from weft.llm.planning.regime import Regime
from weft.records import dataclass
from weft.schedule import Schedule

__all__ = ["Pipelined", "Rows"]

Rows = tuple[Ubatch, NDArray[np.float32] | None]
"""A ubatch and its output rows, one for each token whose row is wanted, valid until the next
ubatch; None: no row is wanted."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    ubatch: Ubatch
    n_out: int
    regime: Regime
    run: Run


class Pipelined:
    """Runs the graph of a regime for one ubatch after another, with several sessions of it."""

    def __init__(self, schedule: Schedule, regimes: Sequence[Regime], width: int) -> None:
        """`regimes` have the same program and an arena each; `width` is the length of a row."""
        self._regimes = list(regimes)
        self._width = width
        self._pipeline = Pipeline(schedule, self.sessions)

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
        pipeline, under_way = self._pipeline, deque[_UnderWay]()
        try:
            for number, ubatch in enumerate(ubatches):
                copy = number % len(self._regimes)
                if len(under_way) == len(self._regimes):
                    yield self._result(under_way.popleft())
                regime = self._regimes[copy]
                out_ids = np.flatnonzero(ubatch.outputs)
                regime.inputs.write(ubatch, change.occupy(ubatch), out_ids)
                n_splits = None if len(out_ids) else pipeline.n_lasting
                run = pipeline.start(copy, sizes(ubatch), n_splits)
                under_way.append(_UnderWay(ubatch, len(out_ids), regime, run))
            while under_way:
                yield self._result(under_way.popleft())
            pipeline.finish()
        except BaseException:
            pipeline.reset()
            raise

    def _result(self, oldest: _UnderWay) -> Rows:
        self._pipeline.wait(oldest.run)
        ubatch, regime, n = oldest.ubatch, oldest.regime, oldest.n_out
        if n == 0:
            return ubatch, None
        if regime.rows is None:
            return ubatch, regime.session.output(regime.output, oldest.run.values)
        return ubatch, regime.rows[: n * self._width].reshape(n, self._width)
