"""`Steps`: the batches of a context that are being computed at the same time.

    step = steps.submit(batch)         # takes cells and begins
    ...                                # other steps are submitted, tokens are drawn
    rows = step.collect()              # waits

While the last stage works on one step, the first stage works on the next, so that all machines have
work. Steps are of different sequences: each has its own cells, inputs and compute memory. Devices
work on them in the order in which they were submitted, and they are collected in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, DeviceError
from weft.llm.cache.cells import Cells
from weft.llm.compute.batch import Batch
from weft.llm.compute.decoding import Decoding
from weft.llm.compute.graphs import Graphs
from weft.llm.compute.pipeline import UnderWay
from weft.llm.compute.rollback import Change

Resume = Callable[[DeviceError, Cells, Sequence[Batch]], list[NDArray[np.float32]]]
"""Goes on after a device failed: computes the held cache again, and then these batches; returns the
rows of each batch."""


class Step:
    """A batch that is being computed."""

    __slots__ = ("_steps", "batch", "change", "rows", "run")

    def __init__(self, steps: Any, batch: Batch, change: Any) -> None:
        """`Steps.submit` makes steps."""
        self._steps: Steps = steps
        self.batch = batch
        self.change: Change | None = change
        """The cells that the step has taken; None once it was collected or given up."""
        self.run: UnderWay | None = None
        self.rows: NDArray[np.float32] | None = None
        """The rows, once they were computed."""

    @property
    def given_up(self) -> bool:
        """Whether the step was taken back after an error."""
        return self.change is None and self.rows is None

    def collect(self) -> NDArray[np.float32]:
        """Waits for the rows, which are the rows that `Context.decode` would return. The step that
        was submitted first is to be collected first.

        Raises DeviceError if a device failed and nothing replaces it, and AbortedError after
        `abort`. After any error, Ctrl-C included, all steps are given up, and the cache is as it
        was before them."""
        return self._steps.collect(self)


class Steps:
    """The steps of a context that are under way, the oldest first."""

    def __init__(
        self, decoding: Decoding, graphs: Graphs, n_batch: int, resume: Resume | None
    ) -> None:
        """`resume` goes on after a device has failed; None: the caller gets the error."""
        self._decoding, self._graphs = decoding, graphs
        self._n_batch, self._resume = n_batch, resume
        self._steps: deque[Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, batch: Batch) -> Step | None:
        """Begins a step; see `Context.submit`."""
        tokens = self._decoding.checked(batch, self._n_batch)
        if not self._decoding.is_one_ubatch(tokens) or not self._graphs.is_pipelined(tokens):
            return None
        change = Change(self._decoding.cache, len(tokens))
        step = Step(self, batch, change)
        self._steps.append(step)
        try:
            step.run = self._graphs.start(tokens, change.occupy(tokens))
        except DeviceError as error:
            self._recover(error)
        except BaseException:
            self._give_up()
            raise
        return step

    def collect(self, step: Step) -> NDArray[np.float32]:
        """Waits for a step; see `Step.collect`."""
        if step.rows is None:
            if step.run is None or step.change is None:
                raise ContextError("this step was given up after an error; submit it again")
            if step is not self._steps[0]:
                raise ContextError("an older step is in flight; collect that first")
            try:
                step.rows = self._graphs.result(step.run)
                self._steps.popleft()
                step.change = None
            except DeviceError as error:
                self._recover(error)
            except BaseException:
                self._give_up()
                raise
        assert step.rows is not None
        return step.rows

    def _give_up(self) -> list[Step]:
        """Stops all steps and takes them back, the newest first; returns them."""
        self._graphs.reset()
        steps = list(self._steps)
        self._steps.clear()
        for step in reversed(steps):
            if step.change is not None:
                step.change.undo()
                step.change = None
        return steps

    def _recover(self, error: DeviceError) -> None:
        """Computes all steps anew after a device has failed. Raises `error` where nothing replaces
        the device."""
        steps = self._give_up()
        if self._resume is None:
            raise error
        rows = self._resume(error, self._decoding.cache.copy(), [step.batch for step in steps])
        for step, own in zip(steps, rows, strict=True):
            step.rows = own
