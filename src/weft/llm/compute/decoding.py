"""`Decoding`: computes a batch in ubatches, and takes its cells back if that fails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, ContextFull
from weft.llm.cache.pages import next_cell
from weft.llm.compute.batch import Batch, Ubatch, checked, one_token, require_encoded
from weft.llm.compute.graphs import Graphs
from weft.llm.compute.input_rows import InputRows
from weft.llm.compute.rollback import Change, NoChange, OneChange
from weft.llm.models.step import Together, together_sizes
from weft.llm.planning.plan import ContextPlan

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
        self._width = self._config.n_embd if plan.options.embeddings else self._config.n_logits
        self._together = together_sizes(plan.options.n_ubatch, self.cache.n_seq_max)
        self.states: NDArray[np.float32] | None = None
        """With the option `states`, what is kept of each token of the last call, [n, width], in
        their order."""

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
        self._require_whole(batch)
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
        states: NDArray[np.float32] | None = None
        change = NoChange(cache) if cache.lent else Change(cache, len(batch))
        try:
            for ubatch, logits in self._graphs.run_all(parts, change):
                if logits is not None:
                    rows[ubatch.rows[ubatch.outputs]] = logits
                if keeps and (own := self._graphs.states) is not None:
                    if states is None:
                        states = np.empty((len(batch), own.shape[1]), np.float32)
                    states[slice(None) if ubatch.at is None else ubatch.at] = own
            change.finish()
            self.states = states
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

    def _require_whole(self, batch: Ubatch) -> None:
        """Raises ContextError for tokens that leave gaps in blocks of compressed keys."""
        seqs = np.flatnonzero(batch.members.any(axis=1)) if self.cache.blocks else ()
        for seq in seqs:
            own = np.sort(batch.positions[batch.members[seq]])
            start = self.cache.pos_max(int(seq)) + 1
            if (own != start + np.arange(len(own))).any():
                raise ContextError(
                    f"positions of sequence {seq} must go on from {start} without gaps, because "
                    "the model's compressed keys stand for whole blocks of tokens"
                )


# Cuts the tokens of a call into ubatches.
#
# by row        rows of images apart from tokens, each image by itself
# by size       tokens in order of position, as many as fit
# by sequence   for recurrent states: one sequence at a time, in order
# equal         for recurrent states, if no token belongs to several sequences: the same number of
#               tokens of several sequences, if that makes a larger ubatch than one sequence


def split(
    batch: Ubatch,
    n_ubatch: int,
    n_outputs: int,
    *,
    by_sequence: bool,
    together: Together | None = None,
    inputs: InputRows | None = None,
) -> list[Ubatch]:
    """Cuts a batch into ubatches of at most `n_ubatch` tokens and `n_outputs` wanted rows.

    Ubatches are in order of position, because a token must not come before one that it sees; within
    a ubatch the order does not matter. Recurrent states need `by_sequence`: one sequence at a time,
    or several with the same number of tokens each if `together` has room for them. `inputs` has
    the rows of ids beyond the vocabulary; raises ContextError for an image larger than a ubatch."""
    if inputs is not None and not batch.is_rows and batch.tokens.max() >= inputs.n_vocab:
        parts = []
        for part in _by_row(batch, inputs, n_ubatch, n_outputs):
            if part.together:
                parts.append(part)
            else:
                parts += split(
                    part, n_ubatch, n_outputs, by_sequence=by_sequence, together=together
                )
        return parts
    if not by_sequence:
        return _by_size(batch, n_ubatch, n_outputs)
    if len(batch) == 1:
        return [batch]
    if together is not None and not batch.is_rows and (batch.members.sum(axis=0) == 1).all():
        return _equal(batch, n_ubatch, n_outputs, together)
    # a token of several sequences goes with the lowest one, whose own tokens follow it
    order = np.lexsort((batch.positions, batch.members.argmax(axis=0)))
    members = batch.members[:, order]
    cuts = np.flatnonzero((members[:, 1:] != members[:, :-1]).any(axis=0)) + 1
    parts = [batch.take(part) for part in np.split(order, cuts)]
    return [small for part in parts for small in _by_size(part, n_ubatch, n_outputs)]


def _by_row(batch: Ubatch, inputs: InputRows, n_ubatch: int, n_outputs: int) -> Iterator[Ubatch]:
    # one sequence after another; a token of several comes with the lowest one
    order = np.lexsort((batch.positions, batch.members.argmax(axis=0)))
    batch = batch.take(order)
    cuts = np.flatnonzero((batch.members[:, 1:] != batch.members[:, :-1]).any(axis=0)) + 1
    for numbers in np.split(np.arange(len(batch)), cuts):
        for start, end, run in inputs.spans(batch.tokens[numbers]):
            part = batch.take(numbers[start:end])
            if run is not None:
                part.ids, part.together = part.tokens, run.together
                part.tokens = inputs.rows(part.tokens)
                if run.together:
                    _require_whole(part, len(run.ids), n_ubatch, n_outputs)
            yield part


def _require_whole(part: Ubatch, n: int, n_ubatch: int, n_outputs: int) -> None:
    if len(part) < n:
        raise ContextError(
            f"{len(part)} of the {n} rows of an image, or tokens for an encoder, are in this call, "
            "but they must come together"
        )
    if n > n_ubatch or part.outputs.sum() > n_outputs:
        name, limit = ("n_ubatch", n_ubatch) if n > n_ubatch else ("n_outputs", n_outputs)
        raise ContextError(
            f"an image, or a prompt for an encoder, has {n} rows that are computed at once, but "
            f"{name} is {limit}; make it larger"
        )


def _by_size(batch: Ubatch, n_ubatch: int, n_outputs: int) -> list[Ubatch]:
    n = len(batch)
    if n <= n_ubatch and (n <= n_outputs or batch.outputs.sum() <= n_outputs):
        return [batch]
    order = np.argsort(batch.positions, kind="stable")
    parts, start = [], 0
    while start < n:
        part = order[start : start + n_ubatch]
        over = np.flatnonzero(np.cumsum(batch.outputs[part]) > n_outputs)
        part = part[: over[0]] if len(over) else part
        parts.append(batch.take(part))
        start += len(part)
    return parts


def _equal(batch: Ubatch, n_ubatch: int, n_outputs: int, room: Together) -> list[Ubatch]:
    n = len(batch)
    if n <= min(room.n_seqs, n_outputs) and batch.members.sum(axis=1).max() == 1:
        batch.n_seqs = n  # one token of each sequence
        return [batch]
    order = np.lexsort((batch.positions, batch.first))
    cuts = np.flatnonzero(np.diff(batch.first[order])) + 1
    queues = np.split(order, cuts)
    parts = []
    while queues:
        queues.sort(key=len, reverse=True)
        n_seqs, n_each = _most(queues, n_ubatch, room)
        numbers = np.stack([queue[:n_each] for queue in queues[:n_seqs]])
        numbers = _with_room(numbers, batch.outputs[numbers], n_outputs)
        n_seqs, n_each = numbers.shape
        part = batch.take(numbers.reshape(-1))
        part.n_seqs = n_seqs
        parts.append(part)
        queues[:n_seqs] = [queue[n_each:] for queue in queues[:n_seqs]]
        queues = [queue for queue in queues if len(queue)]
    return parts


def _most(queues: list[NDArray[np.intp]], n_ubatch: int, room: Together) -> tuple[int, int]:
    """The number of sequences, and of tokens of each, that make the largest ubatch. `queues` has
    the waiting tokens of each sequence, the longest first."""
    n_seqs, n_each = 1, min(len(queues[0]), n_ubatch)
    for n, queue in enumerate(queues[: room.n_seqs], 1):
        each = min(len(queue), room.n_each)
        if n > 1 and n * each > n_seqs * n_each:
            n_seqs, n_each = n, each
    return n_seqs, n_each


def _with_room(
    numbers: NDArray[np.intp], wanted: NDArray[np.bool_], n_outputs: int
) -> NDArray[np.intp]:
    """Cuts `numbers` [sequence, token] so that at most `n_outputs` rows are wanted: to the first
    tokens of each sequence, or to one token of the first sequences."""
    each = np.cumsum(wanted.sum(axis=0))
    if each[-1] <= n_outputs:
        return numbers
    if each[0] <= n_outputs:
        return numbers[:, : int(np.argmax(each > n_outputs))]
    first = np.cumsum(wanted[:, 0])
    return numbers[: int(np.argmax(first > n_outputs)), :1]
