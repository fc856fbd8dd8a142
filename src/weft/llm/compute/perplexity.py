"""Perplexity by llama.cpp's method, so that figures can be compared.

The tokens of a text are cut into chunks of `n_ctx`. Each is computed by itself, and its second half
is scored: every token there has at least half a context before it. Chunks that are shorter than a
ubatch are computed together, each a sequence of its own. Where the model
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
from weft.llm.compute.context import Context
from weft.llm.compute.embed import sequences_for
from weft.llm.config import ModelConfig

__all__ = ["Perplexity", "chunks_at_once", "score_chunks"]

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


def chunks_at_once(config: ModelConfig, n_ctx: int, n_ubatch: int, n_chunks: int) -> int:
    """How many chunks of `n_ctx` tokens are worth computing together, of `n_chunks`: as many as a
    ubatch holds, and sequences cost little. A context for them has cells for them all."""
    return sequences_for(config, min(n_chunks, n_ubatch // n_ctx))


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
    is emptied. As many chunks are computed together as it has sequences and cells for. `bos`:
    replaces the first token of each chunk. `n_chunks`: at most so many.

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
    total, squares, count, done = 0.0, 0.0, 0, 0
    most = max(1, min(context.cache.n_seq_max, context.n_ctx // n_ctx))
    while done < n_chunks:
        n = min(most, n_chunks - done)
        some = np.array(tokens[done * n_ctx : (done + n) * n_ctx], np.int64).reshape(n, n_ctx)
        for nll in chunks_nll(context, some, n_ctx // 2, bos):
            total += float(nll.sum())
            squares += float((nll * nll).sum())
            count += len(nll)
            done += 1
            yield _estimate(total, squares, count, done)


def _estimate(total: float, squares: float, count: int, n_chunks: int) -> Perplexity:
    mean = total / count
    variance = squares / count - mean * mean
    value = math.exp(min(mean, 700.0))
    error = value * math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0
    return Perplexity(value, error, n_chunks, count, mean)


def chunks_nll(
    context: Context, chunks: NDArray[np.int64], first: int, bos: int | None
) -> NDArray[np.float64]:
    """-log p in nats of the tokens behind index `first` of each of `chunks` [n, n_ctx], given those
    before them in their chunk: [n, n_scored]. Each chunk is a sequence."""
    n, n_ctx = chunks.shape
    fed = chunks.copy()
    if bos is not None:
        fed[:, 0] = bos
    tokens, following = fed.ravel(), np.roll(chunks, -1, axis=1).ravel()
    seqs, positions = np.divmod(np.arange(n * n_ctx), n_ctx)
    wanted = (positions >= first) & (positions < n_ctx - 1)
    context.cache.clear()
    found = []
    step = min(context.n_ubatch, context.n_batch)
    try:
        for start in range(0, n * n_ctx, step):
            part = slice(start, start + step)
            members = [(int(seq),) for seq in seqs[part]]
            rows = context.decode(tokens[part], positions[part], seqs=members, outputs=wanted[part])
            found.append(_nll(rows, following[part][wanted[part]]))
    finally:
        context.cache.clear()
    return np.concatenate(found).reshape(n, -1)


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
