"""Cuts the tokens of a call into ubatches.

by row        rows of images apart from tokens, each image by itself
by size       tokens in order of position, as many as fit
by sequence   for recurrent states: one sequence at a time, in order
equal         for recurrent states, if no token belongs to several sequences: the same number of
              tokens of several sequences, if that makes a larger ubatch than one sequence
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.input_rows import InputRows
from weft.llm.models.step import Together

__all__ = ["split"]


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
