"""How a call is cut into ubatches.

by size       tokens in order of position, as many as there is room for
by sequence   recurrent states: one sequence at a time, in order
equal         recurrent states, no token of several sequences: as many tokens of each of several
              sequences, where that computes more at once than one sequence alone
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.llm.compute.batch import Ubatch

__all__ = ["Together", "split", "together_sizes"]


@dataclass(frozen=True, slots=True)
class Together:
    """What the graph for several sequences at once holds."""

    n_seqs: int
    """Most sequences."""
    n_each: int
    """Most tokens of each."""


def together_sizes(n_ubatch: int, n_seq_max: int) -> Together | None:
    """As many sequences as there can be, and their share of an ubatch, so that memory planned for
    the most of both is that of an ubatch. None: there is nothing to compute together."""
    n_seqs = min(n_seq_max, n_ubatch)
    return Together(n_seqs, n_ubatch // n_seqs) if n_seqs > 1 else None


def split(
    batch: Ubatch,
    n_ubatch: int,
    n_outputs: int,
    *,
    by_sequence: bool,
    together: Together | None = None,
) -> list[Ubatch]:
    """The ubatches. Tokens go in order of position, since those of a later ubatch are not in the
    cache yet; within one, order does not matter. `by_sequence`: one sequence at a time, in order,
    as recurrent states want it, or several with as many tokens each, as `together` has room."""
    if not by_sequence:
        return _by_size(batch, n_ubatch, n_outputs)
    if len(batch) == 1:
        return [batch]
    if together is not None and not batch.is_rows and (batch.members.sum(axis=0) == 1).all():
        return _equal(batch, n_ubatch, n_outputs, together)
    # Tokens of several sequences go with the lowest one, so before what is its own.
    order = np.lexsort((batch.positions, batch.members.argmax(axis=0)))
    members = batch.members[:, order]
    cuts = np.flatnonzero((members[:, 1:] != members[:, :-1]).any(axis=0)) + 1
    parts = [batch.take(part) for part in np.split(order, cuts)]
    return [small for part in parts for small in _by_size(part, n_ubatch, n_outputs)]


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
        batch.n_seqs = n  # a token of each
        return [batch]
    order = np.lexsort((batch.positions, batch.first))
    cuts = np.flatnonzero(np.diff(batch.first[order])) + 1
    left = np.split(order, cuts)
    parts = []
    while left:
        left.sort(key=len, reverse=True)
        n_seqs, n_each = _most(left, n_ubatch, room)
        numbers = np.stack([seq[:n_each] for seq in left[:n_seqs]])
        numbers = _with_room(numbers, batch.outputs[numbers], n_outputs)
        n_seqs, n_each = numbers.shape
        part = batch.take(numbers.reshape(-1))
        part.n_seqs = n_seqs
        parts.append(part)
        rest = [seq[n_each:] for seq in left[:n_seqs]]
        left = [seq for seq in rest if len(seq)] + left[n_seqs:]
    return parts


def _most(left: list[NDArray[np.intp]], n_ubatch: int, room: Together) -> tuple[int, int]:
    """Sequences (of those, the longest first) and tokens of each that make the largest ubatch."""
    n_seqs, n_each = 1, min(len(left[0]), n_ubatch)
    for n, seq in enumerate(left[: room.n_seqs], 1):
        each = min(len(seq), room.n_each)
        if n > 1 and n * each > n_seqs * n_each:
            n_seqs, n_each = n, each
    return n_seqs, n_each


def _with_room(
    numbers: NDArray[np.intp], wanted: NDArray[np.bool_], n_outputs: int
) -> NDArray[np.intp]:
    """The first tokens, or the first token of the first sequences, so that few enough rows of
    `numbers` [sequence, token] are wanted."""
    each = np.cumsum(wanted.sum(axis=0))
    if each[-1] <= n_outputs:
        return numbers
    if each[0] <= n_outputs:
        return numbers[:, : int(np.argmax(each > n_outputs))]
    first = np.cumsum(wanted[:, 0])
    return numbers[: int(np.argmax(first > n_outputs)), :1]
