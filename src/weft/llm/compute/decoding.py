"""`Decoding`: computes a batch in ubatches, and takes its cells back if that fails."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.cache.pages import next_cell
from weft.llm.cache.rollback import Change, OneChange
from weft.llm.compute.batch import Batch, Ubatch, checked, require_encoded
from weft.llm.compute.graphs import Graphs
from weft.llm.compute.input_rows import InputRows
from weft.llm.compute.pipelined import UnderWay
from weft.llm.compute.ubatches import split, together_sizes
from weft.llm.planning.plan import ContextPlan
from weft.records import dataclass

__all__ = ["Decoding", "Started"]

_LAST = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A batch that is being computed."""

    change: Change
    """Its cells."""
    run: UnderWay


class Decoding:
    """Computes the batches of a context with the graphs of its plan."""

    def __init__(
        self, plan: ContextPlan, graphs: Graphs, input_rows: InputRows, n_ctx_seq: int
    ) -> None:
        """`n_ctx_seq` is the most cells of a sequence."""
        self.cache = plan.cache
        self._config = plan.model.config
        self._options = plan.options
        self._graphs = graphs
        self._input_rows = input_rows
        self._n_ctx_seq = n_ctx_seq
        self._width = self._config.n_embd if plan.options.embeddings else self._config.n_vocab
        self._together = together_sizes(plan.options.n_ubatch, self.cache.n_seq_max)
        self.states: NDArray[np.float32] | None = None
        """With the option `states`, what the output projection read of each token of the last call,
        [n, n_embd], in their order."""

    def _checked(self, tokens: Batch, n_batch: int) -> Ubatch:
        known, config, cache = self._input_rows, self._config, self.cache
        batch = checked(tokens, config, cache, n_batch, known)
        if config.n_encoder:
            require_encoded(batch, cache, config.n_vocab)
        if known.lags and not batch.is_rows and config.rope_sections:
            batch.planes = known.planes(batch.tokens, batch.positions, batch.first, cache)
        self._require_share(batch)
        self._require_window(batch)
        return batch

    def start(self, tokens: Batch, n_batch: int) -> Started | None:
        """Begins to compute a batch beside others; None: it needs `decode`.

        Raises ContextError as `decode` does; others go on then. After any other error nothing is
        under way any more."""
        batch, cache = self._checked(tokens, n_batch), self.cache
        n_ubatch, n_outputs = self._options.n_ubatch, self._options.n_outputs
        odd = batch.is_rows or bool(batch.tokens.max() >= self._config.n_vocab)
        if odd or cache.has_shift or len(batch) > n_ubatch or batch.outputs.sum() > n_outputs:
            return None
        change = Change(cache, len(batch))
        try:
            run = self._graphs.start(batch, change.occupy(batch))
        except BaseException:
            change.undo()
            raise
        if run is None:
            change.undo()
            return None
        return Started(change, run)

    def result(self, oldest: Started) -> NDArray[np.float32]:
        """Waits for the batch that was started first, and returns its rows. After an error nothing
        is under way any more; the caller undoes the changes."""
        rows = self._graphs.result(oldest.run)
        if rows is None:
            return np.empty((0, self._width), np.float32)
        return rows.copy() if rows.base is not None else rows

    def decode(self, tokens: Batch, n_batch: int) -> NDArray[np.float32]:
        """The rows of a batch of at most `n_batch` tokens; see `Context.decode`."""
        known, config, cache = self._input_rows, self._config, self.cache
        n_ubatch, n_outputs = self._options.n_ubatch, self._options.n_outputs
        batch = self._checked(tokens, n_batch)
        parts = split(
            batch,
            n_ubatch,
            n_outputs,
            by_sequence=cache.states is not None,
            together=self._together,
            inputs=known,
        )
        if len(parts) > 1 and not config.causal:
            raise ContextError(
                f"{len(batch)} tokens must be computed at once, but n_ubatch is "
                f"{n_ubatch} and n_outputs {n_outputs}; make them larger"
            )
        if cache.has_shift:
            self._graphs.rotate_keys()
        rows = np.empty((int(batch.outputs.sum()), self._width), np.float32)
        keeps = self._options.states
        states = np.empty((len(batch) if keeps else 0, config.n_embd), np.float32)
        change = Change(cache, len(batch))
        try:
            for ubatch, logits in self._graphs.run_all(parts, change):
                if logits is not None:
                    rows[ubatch.rows[ubatch.outputs]] = logits
                if keeps:
                    states[slice(None) if ubatch.at is None else ubatch.at] = self._graphs.states
            change.finish()
            self.states = states if keeps else None
            return rows
        except BaseException:
            self._graphs.drop()
            change.undo()
            raise

    def decode_one(self, token: int, position: int, seq: int) -> NDArray[np.float32] | None:
        """The row of a single token; None: this call needs `decode`."""
        cache, config = self.cache, self._config
        cell = next_cell(cache, seq) if 0 <= seq < cache.n_seq_max else -1
        if position < 0 <= cell:
            position = cache.pos_max(seq) + 1
        if (
            cell < 0
            or not 0 <= token < config.n_vocab
            or position > (config.n_positions or _LAST) - 1
            or self._n_ctx_seq < self._options.n_ctx
            or (self._input_rows.lags and config.rope_sections)
        ):
            return None
        change = OneChange(cache, cell, seq)
        try:
            cache.occupy_one(cell, position, seq, token)
            row = self._graphs.run_one(token, position, seq, cell, change.slots)
            change.finish()
            if self._graphs.states is not None:
                self.states = self._graphs.states.copy()
            return row
        except BaseException:
            self._graphs.drop()
            change.undo()
            raise

    def _require_share(self, batch: Ubatch) -> None:
        n_ctx, n_ctx_seq = self._options.n_ctx, self._n_ctx_seq
        if n_ctx_seq == n_ctx:
            return
        cells = self.cache.members.sum(axis=1) + batch.members.sum(axis=1)
        over = np.flatnonzero((cells > n_ctx_seq) & batch.members.any(axis=1))
        if len(over):
            raise ContextError(
                f"sequence {over[0]} would have {cells[over[0]]} tokens, but each of "
                f"{self.cache.n_seq_max} has {n_ctx_seq} cells of the {n_ctx}; make "
                "n_ctx larger, remove tokens first, or leave kv_unified on"
            )

    def _require_window(self, batch: Ubatch) -> None:
        window = self.cache.window
        if window is None:
            return
        for seq in np.unique(batch.first):
            start = int(batch.positions[batch.first == seq].min())
            if not window.has_all(self.cache, int(seq), start):
                raise ContextError(
                    f"position {start} of sequence {seq} sees tokens that sliding-window layers "
                    "have dropped; remove the sequence and decode it anew, or create the context "
                    "with swa_full=True"
                )
