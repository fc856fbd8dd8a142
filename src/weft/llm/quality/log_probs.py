"""Logarithms of probabilities from logits, and the 16 bits that llama.cpp's files keep of each.

A row of a file is `n_packed(n_vocab)` uint16: an f32 step, the f32 least log p, and for each token
the number of steps above that (an odd vocabulary has one more, 0). Logits of more than 16 below the
largest are kept as 16 below. Steps and sums are rounded as llama-perplexity does: exponentials and
differences in f32, sums in f64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError

__all__ = ["Rows", "log_probs", "log_sums", "n_packed", "pack", "some_rows", "unpack"]

Rows = NDArray[np.float32]
"""f32 [n_rows, n_vocab]: logits, or natural logarithms of probabilities."""

DEPTH = 16.0
"""Difference to the largest logit beyond which logits are not told apart in a file."""

_STEPS = 65535
_NUMBERS = 1 << 18
"""Number of values in a block of rows that is processed at once: 1 MiB, which caches hold."""


def n_packed(n_vocab: int) -> int:
    """The uint16 of a row of a file."""
    return 2 * ((n_vocab + 1) // 2) + 4


def some_rows(n_rows: int, n_vocab: int) -> Iterator[slice]:
    """Cuts `n_rows` rows into blocks that fit into caches."""
    step = max(1, _NUMBERS // max(n_vocab, 1))
    return (slice(at, min(at + step, n_rows)) for at in range(0, n_rows, step))


def log_sums(logits: Rows) -> tuple[Rows, Rows]:
    """The largest logit of each row, and the log of the sum of exp(logit - largest), f32 [n, 1].

    Raises ContextError for infinite logits and such that are not numbers."""
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise ContextError("logits are infinite or not a number; the file may be damaged")
    sums = np.exp(logits - top).sum(axis=1, dtype=np.float64, keepdims=True)
    return top, np.log(sums).astype(np.float32)


def log_probs(logits: Rows) -> Rows:
    """log softmax of each row, f32. Raises ContextError as `log_sums`."""
    top, log_sum = log_sums(logits)
    return logits - (top + log_sum)


def pack(logits: Rows) -> NDArray[np.uint16]:
    """Rows as a file keeps them, uint16 [n_rows, n_packed(n_vocab)]. Raises as `log_sums`."""
    n_rows, n_vocab = logits.shape
    packed = np.zeros((n_rows, n_packed(n_vocab)), np.uint16)
    for part in some_rows(n_rows, n_vocab):
        some = logits[part]
        top, log_sum = log_sums(some)
        least = np.maximum(some.min(axis=1, keepdims=True), top - np.float32(DEPTH))
        step = (top - least) / np.float32(_STEPS)
        packed[part, :4] = np.hstack((step, least - top - log_sum)).view(np.uint16)
        per_step = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
        packed[part, 4 : 4 + n_vocab] = np.rint(per_step * np.maximum(some - least, 0))
    return packed


def unpack(packed: NDArray[np.uint16], n_vocab: int) -> Rows:
    """The logarithms of probabilities that `packed` rows of `n_vocab` tokens keep."""
    head = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    rows = packed[:, 4 : 4 + n_vocab].astype(np.float32)
    rows *= head[:, :1]
    rows += head[:, 1:]
    return rows
