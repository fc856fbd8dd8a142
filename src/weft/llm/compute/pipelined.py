"""`Pipelined`: the ubatches of a prompt, several under way at the same time.

While the last layers' device works on one, that of the first layers works on the next. Each has
inputs and compute memory of its own; the cache is the same, and its order is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.execute import Pipeline, Profile, Run, Session
from weft.llm.cache.rollback import Change
from weft.llm.compute.batch import Ubatch
from weft.llm.planning.regime import Regime
from weft.schedule import Schedule

__all__ = ["Pipelined", "Rows"]

Rows = tuple[Ubatch, NDArray[np.float32] | None]
"""A ubatch and what it gave: a row for each token whose output is wanted, valid until the next."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    ubatch: Ubatch
    n_out: int
    regime: Regime
    run: Run


class Pipelined:
    """Runs a regime's graph for ubatch after ubatch, over as many sessions of it."""

    def __init__(self, schedule: Schedule, regimes: Sequence[Regime], width: int) -> None:
        """`regimes`: of one program, each with arenas of its own; `width`: of a row."""
        self._regimes = list(regimes)
        self._width = width
        self._pipeline = Pipeline(schedule, self.sessions)

    @property
    def sessions(self) -> list[Session]:
        """One for each ubatch that may be under way."""
        return [regime.session for regime in self._regimes]

    def abort(self) -> None:
        """Stops `run`, from any thread."""
        self._pipeline.abort()

    def clear_abort(self) -> None:
        """Forgets an `abort` that has stopped nothing."""
        self._pipeline.clear_abort()

    def profile(self, into: Profile) -> AbstractContextManager[Profile]:
        """Records what runs inside the `with`."""
        return self._pipeline.profile(into)

    def run(
        self, ubatches: Sequence[Ubatch], change: Change, sizes: Callable[[Ubatch], dict[str, int]]
    ) -> Iterator[Rows]:
        """Takes cells for each and computes it; yields them in order, each once it is over. `sizes`
        gives the symbols' values once its cells are taken. Where no row is wanted, what only
        rows need is left out.

        Raises AbortedError after `abort`, DeviceError; nothing is under way then."""
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

    def _result(self, done: _UnderWay) -> Rows:
        self._pipeline.wait(done.run)
        regime, n = done.regime, done.n_out
        if n == 0:
            return done.ubatch, None
        if regime.rows is None:
            return done.ubatch, regime.session.output(regime.output, done.run.values)
        return done.ubatch, regime.rows[: n * self._width].reshape(n, self._width)
