"""Perplexity by llama.cpp's method, so that figures can be compared.

The tokens of a text are cut into chunks of `n_ctx`. Each is computed by itself, and its second half
is scored, so that at least half a context precedes every scored token. Chunks that are shorter than
a ubatch are computed together, each as a sequence. If the model expects BOS, it replaces the first
token of each chunk. The perplexity is exp of the mean negative log-likelihood (nats); its error is
the standard error of that mean, propagated through exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.embed import sequences_for
from weft.llm.config import ModelConfig
from weft.records import dataclass

__all__ = ["Perplexity", "chunks_at_once", "score_chunks"]

_ROWS = 32
"""Rows of logits that are exponentiated together: 16 MiB for a vocabulary of 128k tokens."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The estimate from all chunks scored so far."""

    value: float
    """The perplexity."""
    error: float
    """One standard error of `value`."""
    n_chunks: int
    n_scored: int
    """Number of scored tokens."""
    nll: float
    """Mean negative log-likelihood of a token, in nats."""


def chunks_at_once(config: ModelConfig, n_ctx: int, n_ubatch: int, n_chunks: int) -> int:
    """The number of the `n_chunks` chunks of `n_ctx` tokens that are best computed together.

    A ubatch holds them all. The context must have cells for them all."""
    return sequences_for(config, min(n_chunks, n_ubatch // n_ctx))


def score_chunks(
    context: Context,
    tokens: Sequence[int],
    n_ctx: int,
    *,
    bos: int | None = None,
    n_chunks: int | None = None,
) -> Iterator[Perplexity]:
    """Yields the estimate after each chunk of `n_ctx` of `tokens`; an incomplete last chunk is not
    scored.

    `context` must hold `n_ctx` tokens and compute logits; its cache is emptied. As many chunks are
    computed together as it has sequences and cells for. `bos` replaces the first token of each
    chunk. At most `n_chunks` are scored (None: all).

    Raises ContextError at once if the context is too small or the text is shorter than two chunks,
    the minimum in llama.cpp too."""
    if context.model.config.n_encoder:
        raise ContextError(
            "perplexity is of texts that go on; this model has an encoder and a decoder, which "
            "answer a text with another"
        )
    if context.embeddings:
        raise ContextError("perplexity needs logits, but this model or context gives embeddings")
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
    total, squares, count, chunk = 0.0, 0.0, 0, 0
    most = max(1, min(context.cache.n_seq_max, context.n_ctx // n_ctx))
    while chunk < n_chunks:
        n = min(most, n_chunks - chunk)
        part = np.array(tokens[chunk * n_ctx : (chunk + n) * n_ctx], np.int64).reshape(n, n_ctx)
        for nll in chunks_nll(context, part, n_ctx // 2, bos):
            total += float(nll.sum())
            squares += float((nll * nll).sum())
            count += len(nll)
            chunk += 1
            yield _estimate(total, squares, count, chunk)


def _estimate(total: float, squares: float, count: int, n_chunks: int) -> Perplexity:
    mean = total / count
    variance = squares / count - mean * mean
    value = math.exp(min(mean, 700.0))
    error = value * math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0
    return Perplexity(value, error, n_chunks, count, mean)


def chunks_nll(
    context: Context, chunks: NDArray[np.int64], first: int, bos: int | None
) -> NDArray[np.float64]:
    """-log p, in nats, of the tokens behind index `first` of each of `chunks` [n, n_ctx], given
    those before them in their chunk: [n, n_scored]. Each chunk is a sequence."""
    n, n_ctx = chunks.shape
    fed = chunks.copy()
    if bos is not None:
        fed[:, 0] = bos
    tokens, following = fed.ravel(), np.roll(chunks, -1, axis=1).ravel()
    seqs, positions = np.divmod(np.arange(n * n_ctx), n_ctx)
    wanted = (positions >= first) & (positions < n_ctx - 1)
    context.cache.clear()
    scores = []
    step = min(context.n_ubatch, context.n_batch)
    try:
        for start in range(0, n * n_ctx, step):
            part = slice(start, start + step)
            members = [(int(seq),) for seq in seqs[part]]
            rows = context.decode(tokens[part], positions[part], seqs=members, outputs=wanted[part])
            scores.append(_nll(rows, following[part][wanted[part]]))
    finally:
        context.cache.clear()
    return np.concatenate(scores).reshape(n, -1)


def _nll(rows: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-log softmax(rows)[targets], from [n_rows, n_vocab] and [n_rows] to [n_rows]."""
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
