"""`Decoding`: computes a batch in ubatches, and takes its cells back if that fails."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, ContextFull
from weft.llm.cache.pages import next_cell
from weft.llm.compute.batch import Batch, Ubatch, checked, one_token, require_encoded
from weft.llm.compute.graphs import Graphs
from weft.llm.compute.input_rows import InputRows
from weft.llm.compute.rollback import Change, OneChange
from weft.llm.compute.ubatches import split
from weft.llm.models.step import together_sizes
from weft.llm.planning.plan import ContextPlan

__all__ = ["Decoding"]

_LAST = np.iinfo(np.int32).max


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

    def checked(self, tokens: Batch, n_batch: int) -> Ubatch:
        """The tokens of a batch as arrays. Raises ContextError for what cannot be computed."""
        known, config, cache = self._input_rows, self._config, self.cache
        batch = checked(tokens, config, cache, n_batch, known)
        if config.n_encoder:
            require_encoded(batch, cache, config.n_vocab)
        if known.lags and not batch.is_rows and config.rope_sections:
            batch.planes = known.planes(batch.tokens, batch.positions, batch.first, cache)
        self._require_share(batch)
        self._require_window(batch)
        return batch

    def is_one_ubatch(self, batch: Ubatch) -> bool:
        """Whether a batch of tokens can be computed at once, as the cache is now."""
        known = not batch.is_rows and batch.tokens.max() < self._config.n_vocab
        fits = len(batch) <= self._options.n_ubatch
        fits = fits and batch.outputs.sum() <= self._options.n_outputs
        return bool(known and fits and not self.cache.has_shift)

    def decode(self, tokens: Batch, n_batch: int) -> NDArray[np.float32]:
        """The rows of a batch of at most `n_batch` tokens; see `Context.decode`."""
        known, config, cache = self._input_rows, self._config, self.cache
        n_ubatch, n_outputs = self._options.n_ubatch, self._options.n_outputs
        batch = self.checked(tokens, n_batch)
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
                f"{len(batch)} tokens must be computed at once, but `n_ubatch` is "
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

    def decode_one(self, batch: Batch) -> NDArray[np.float32] | None:
        """The row of a batch of a single token; None: the batch needs `decode`."""
        one = one_token(batch)
        if one is None:
            return None
        token, position, seq = one
        cache, config = self.cache, self._config
        cell = next_cell(cache, seq) if 0 <= seq < cache.n_seq_max else -1
        if position is None:
            position = cache.pos_max(seq) + 1 if cell >= 0 else 0
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
            raise ContextFull(
                f"sequence {over[0]} would have {cells[over[0]]} tokens, but each of "
                f"{self.cache.n_seq_max} has {n_ctx_seq} cells of the {n_ctx}; make "
                "`n_ctx` larger, remove tokens first, or leave kv_unified on"
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
                    "with `swa_full` on"
                )
