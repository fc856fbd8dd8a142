"""Perplexity by llama.cpp's method, so that figures can be compared.

The tokens of a text are cut into chunks of `n_ctx`. Each is computed in an empty context, and its
second half is scored: every token there has at least half a context before it. Where the model
wants BOS, it replaces the first token of a chunk. The perplexity is exp of the mean negative
log-likelihood (nats), its error the standard error of that mean, carried through exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.context import Context

__all__ = ["Perplexity", "score_chunks"]

_ROWS = 32
"""Rows of logits that are exponentiated together: 16 MiB with 128k tokens."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """An estimate, of all chunks so far."""

    value: float
    error: float
    """One standard error of `value`."""
    n_chunks: int
    n_scored: int
    """Tokens that were scored."""
    nll: float
    """Mean negative log-likelihood of a token in nats."""


def score_chunks(
    context: Context,
    tokens: Sequence[int],
    n_ctx: int,
    *,
    bos: int | None = None,
    n_chunks: int | None = None,
) -> Iterator[Perplexity]:
    """The estimate after each chunk of `n_ctx` of `tokens`; a rest that is no chunk is left out.

    `context` holds `n_ctx` tokens and gives logits, of as many rows at once as it likes; its cache
    is emptied. `bos`: replaces the first token of each chunk. `n_chunks`: at most so many.

    Raises ContextError at once for a context that is too small and a text that is too short: two
    chunks are the least, as in llama.cpp."""
    if context.embeddings:
        raise ContextError("perplexity needs logits, but this context gives embeddings")
    if not 4 <= n_ctx <= context.n_ctx:
        raise ContextError(f"chunks of {n_ctx} tokens, but they must be 4 to n_ctx {context.n_ctx}")
    if n_chunks is not None and n_chunks < 1:
        raise ContextError(f"n_chunks is {n_chunks}; it must be 1 or more")
    if len(tokens) < 2 * n_ctx:
        raise ContextError(
            f"the text has {len(tokens)} tokens, but {2 * n_ctx} are needed, two chunks of "
            f"{n_ctx}; give a longer text or make n_ctx smaller"
        )
    total = len(tokens) // n_ctx
    return _scored(context, tokens, n_ctx, bos, total if n_chunks is None else min(n_chunks, total))


def _scored(
    context: Context, tokens: Sequence[int], n_ctx: int, bos: int | None, n_chunks: int
) -> Iterator[Perplexity]:
    total, squares, count = 0.0, 0.0, 0
    for number in range(n_chunks):
        chunk = np.array(tokens[number * n_ctx : (number + 1) * n_ctx], np.int64)
        nll = chunk_nll(context, chunk, n_ctx // 2, bos)
        total += float(nll.sum())
        squares += float((nll * nll).sum())
        count += len(nll)
        yield _estimate(total, squares, count, number + 1)


def _estimate(total: float, squares: float, count: int, n_chunks: int) -> Perplexity:
    mean = total / count
    variance = squares / count - mean * mean
    value = math.exp(min(mean, 700.0))
    error = value * math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0
    return Perplexity(value, error, n_chunks, count, mean)


def chunk_nll(
    context: Context, chunk: NDArray[np.int64], first: int, bos: int | None
) -> NDArray[np.float64]:
    """-log p in nats of the tokens behind index `first` of `chunk`, each given those before it."""
    fed = chunk.copy()
    if bos is not None:
        fed[0] = bos
    context.cache.clear()
    found = []
    step = min(context.n_ubatch, context.n_batch)
    try:
        for start in range(0, len(chunk), step):
            part = np.arange(start, min(start + step, len(chunk)))
            wanted = (part >= first) & (part < len(chunk) - 1)
            rows = context.decode(fed[part], part, outputs=wanted)
            found.append(_nll(rows, chunk[part[wanted] + 1]))
    finally:
        context.cache.clear()
    return np.concatenate(found)


def _nll(rows: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-log softmax(rows)[targets]: [n_rows, n_vocab] and [n_rows] -> [n_rows]."""
    nll = np.empty(len(rows))
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS]
        top = some.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            raise ContextError("logits are infinite or not a number; the file may be damaged")
        sums = np.exp(some - top).sum(axis=1, dtype=np.float64)
        scores = some[np.arange(len(some)), targets[at : at + _ROWS]] - top[:, 0]
        nll[at : at + _ROWS] = np.log(sums) - scores
    return nll
