"""`InFlight`: the steps of a context that are being computed at the same time.

    step = in_flight.submit(batch)     # takes cells and begins
    ...                                # other steps are submitted, tokens are drawn
    rows = step.collect()              # waits

While the last stage works on one step, the first stage works on the next, so that all machines have
work. Steps are of different sequences: each has its own cells, inputs and compute memory. Devices
work on them in the order in which they were submitted, and they are collected in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, DeviceError
from weft.llm.compute.batch import Batch
from weft.llm.compute.decoding import Decoding, Started
from weft.llm.compute.fallback import Held, remember

__all__ = ["InFlight", "Resume", "Step"]

Resume = Callable[[DeviceError, Held, Sequence[Batch]], list[NDArray[np.float32]]]
"""Goes on after a device failed: computes the cache that is held again, and then these batches;
returns the rows of each."""


class Step:
    """A batch that is being computed."""

    __slots__ = ("_of", "batch", "rows", "started")

    def __init__(self, of: InFlight, batch: Batch, started: Started | None = None) -> None:
        self._of = of
        self.batch = batch
        self.started = started
        """None: it is over."""
        self.rows: NDArray[np.float32] | None = None
        """The rows, once they were computed."""

    @property
    def given_up(self) -> bool:
        """Whether it was taken back after an error."""
        return self.started is None and self.rows is None

    def collect(self) -> NDArray[np.float32]:
        """Waits for the rows, those that `Context.decode` would return. The step that was submitted
        first is to be collected first.

        Raises DeviceError if a device failed and nothing replaces it, and AbortedError after
        `abort`. After any error, Ctrl-C included, all steps are given up, and the cache is as it
        was before them."""
        return self._of.collect(self)


class InFlight:
    """The steps under way, the oldest first."""

    def __init__(self, decoding: Decoding, n_batch: int, resume: Resume | None) -> None:
        """`resume` goes on after a device has failed; None: the error is the caller's."""
        self._decoding, self._n_batch, self._resume = decoding, n_batch, resume
        self._steps: deque[Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, batch: Batch) -> Step | None:
        """Begins a step; see `Context.submit`."""
        cache = self._decoding.cache
        held = None if self._resume is None else remember(cache)  # some failures empty the cache
        try:
            started = self._decoding.start(batch, self._n_batch)
        except ContextError:
            raise
        except DeviceError as error:
            changes = [step.started.change for step in self._steps if step.started is not None]
            step = Step(self, batch)
            self._recover(error, None if held is None else held.without(changes), [step])
            return step
        except BaseException:
            self._give_up()
            raise
        if started is None:
            return None
        step = Step(self, batch, started)
        self._steps.append(step)
        return step

    def collect(self, step: Step) -> NDArray[np.float32]:
        """Waits for a step; see `Step.collect`."""
        if step.rows is None:
            if step.started is None:
                raise ContextError("this step was given up after an error; submit it again")
            if step is not self._steps[0]:
                raise ContextError("an older step is in flight; collect that first")
            try:
                step.rows = self._decoding.result(step.started)
                self._steps.popleft()
                step.started = None
            except DeviceError as error:
                self._recover(error, None, [])
            except BaseException:
                self._give_up()
                raise
        assert step.rows is not None
        return step.rows

    def _give_up(self) -> list[Step]:
        """Takes all steps back, the newest first; returns them."""
        steps = list(self._steps)
        self._steps.clear()
        for step in reversed(steps):
            if step.started is not None:
                step.started.change.undo()
                step.started = None
        return steps

    def _recover(self, error: DeviceError, held: Held | None, more: Sequence[Step]) -> None:
        """Computes all steps, and `more`, anew after a device has failed. Raises `error` where
        nothing replaces it."""
        steps = [*self._give_up(), *more]
        if self._resume is None:
            raise error
        held = remember(self._decoding.cache) if held is None else held
        rows = self._resume(error, held, [step.batch for step in steps])
        for step, own in zip(steps, rows, strict=True):
            step.rows = own
