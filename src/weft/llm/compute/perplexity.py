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
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.embed import sequences_for
from weft.llm.config import ModelConfig
from weft.records import dataclass

_ROWS = 32
"""Rows of logits that are exponentiated together: 16 MiB for a vocabulary of 128k tokens."""


Computed = Literal["scored", "all", "none"]
"""The tokens whose logits are computed."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The estimate from all chunks scored so far."""

    value: float
    error: float
    """One standard error of `value`."""
    n_chunks: int
    n_scored: int
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
    return _scored(context, chunks_of(context, tokens, n_ctx, n_chunks), bos)


def require_in_order(config: ModelConfig) -> None:
    """Raises ContextError for a model that does not predict each token from those before it."""
    if config.diffusion is not None:
        raise ContextError(
            "probabilities of texts are of models that write token by token, and this one writes "
            "in any order (by diffusion)"
        )


def require_scorable(context: Context, n_ctx: int, n_chunks: int | None) -> None:
    """Raises ContextError if `context` cannot score chunks of `n_ctx` tokens."""
    require_in_order(context.model.config)
    if context.model.config.n_encoder:
        raise ContextError(
            "perplexity is of texts that go on; this model has an encoder and a decoder, which "
            "answer a text with another"
        )
    if context.embeddings:
        raise ContextError("perplexity needs logits, but this model or context gives embeddings")
    if not 4 <= n_ctx <= context.n_ctx:
        raise ContextError(
            f"chunks of {n_ctx} tokens, but they must be 4 to `n_ctx` {context.n_ctx}"
        )
    if n_chunks is not None and n_chunks < 1:
        raise ContextError(f"is {n_chunks}; it must be 1 or more", argument="n_chunks")


def chunks_of(
    context: Context, tokens: Sequence[int], n_ctx: int, n_chunks: int | None = None
) -> NDArray[np.int64]:
    """The whole chunks of `tokens`, [n_chunks, n_ctx], at most `n_chunks` (None: all).

    Raises ContextError if `context` cannot score them or there are fewer than two."""
    require_scorable(context, n_ctx, n_chunks)
    if len(tokens) < 2 * n_ctx:
        raise ContextError(
            f"the text has {len(tokens)} tokens, but {2 * n_ctx} are needed, two chunks of "
            f"{n_ctx}; give a longer text or make `n_ctx` smaller"
        )
    total = len(tokens) // n_ctx
    n = total if n_chunks is None else min(n_chunks, total)
    return np.array(tokens[: n * n_ctx], np.int64).reshape(n, n_ctx)


def together(context: Context, n_ctx: int, n_chunks: int) -> Iterator[slice]:
    """The chunks that are computed together, as ranges of `n_chunks`: as many as the context has
    sequences and cells for."""
    most = max(1, min(context.cache.n_seq_max, context.n_ctx // n_ctx))
    return (slice(at, min(at + most, n_chunks)) for at in range(0, n_chunks, most))


def _scored(context: Context, chunks: NDArray[np.int64], bos: int | None) -> Iterator[Perplexity]:
    totals, (n_chunks, n_ctx) = Totals(), chunks.shape
    for part in together(context, n_ctx, n_chunks):
        for nll in chunks_nll(context, chunks[part], n_ctx // 2, bos):
            yield totals.add(nll)


class Totals:
    """The sums of all chunks so far."""

    def __init__(self) -> None:
        self.total, self.squares, self.count, self.n_chunks = 0.0, 0.0, 0, 0

    def add(self, nll: NDArray[np.float64]) -> Perplexity:
        """Adds a chunk, the -log p [n] of its scored tokens; returns the estimate with it."""
        self.total += float(nll.sum())
        self.squares += float((nll * nll).sum())
        self.count += len(nll)
        self.n_chunks += 1
        mean = self.total / self.count
        variance = self.squares / self.count - mean * mean
        value = math.exp(min(mean, 700.0))
        few = variance <= 0 or self.count < 2
        error = 0.0 if few else value * math.sqrt(variance / (self.count - 1))
        return Perplexity(value, error, self.n_chunks, self.count, mean)


def chunks_nll(
    context: Context, chunks: NDArray[np.int64], first: int, bos: int | None
) -> NDArray[np.float64]:
    """-log p, in nats, of the tokens behind index `first` of each of `chunks` [n, n_ctx], given
    those before them in their chunk: [n, n_scored]. Each chunk is a sequence."""
    scores = [row_nll(rows, targets) for rows, targets in chunk_rows(context, chunks, first, bos)]
    return np.concatenate(scores).reshape(len(chunks), -1)


def chunk_rows(
    context: Context,
    chunks: NDArray[np.int64],
    first: int,
    bos: int | None,
    computed: Computed = "scored",
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The logits that predict the tokens behind index `first` of each of `chunks` [n, n_ctx], and
    those tokens, chunk after chunk: as many rows [n_rows, n_vocab] at a time as a step of the
    context computes. Each chunk is a sequence; the cache is emptied before and after.

    `computed` says which rows the context computes, for those who watch it: also those that are not
    scored, or none, and then nothing is yielded."""
    n, n_ctx = chunks.shape
    fed = chunks.copy()
    if bos is not None:
        fed[:, 0] = bos
    tokens, following = fed.ravel(), np.roll(chunks, -1, axis=1).ravel()
    seqs, positions = np.divmod(np.arange(n * n_ctx), n_ctx)
    wanted = (positions >= first) & (positions < n_ctx - 1)
    outputs = {"scored": wanted, "all": wanted | True, "none": wanted & False}[computed]
    context.cache.clear()
    try:
        for part in pieces(context, outputs):
            members = [(int(seq),) for seq in seqs[part]]
            rows = context.decode(
                tokens[part], positions[part], seqs=members, outputs=outputs[part]
            )
            if computed == "all":
                rows = rows[wanted[part]]
            if len(rows):
                yield rows, following[part][wanted[part]]
    finally:
        context.cache.clear()


def pieces(context: Context, wanted: NDArray[np.bool_]) -> Iterator[slice]:
    """Cuts the tokens of a batch for `Context.decode`, so that a call computes at most a ubatch of
    tokens and `n_outputs` of the `wanted` rows, and no more rows are in memory at once."""
    most, n_outputs = min(context.n_ubatch, context.n_batch), max(context.n_outputs, 1)
    start = 0
    while start < len(wanted):
        rows = np.cumsum(wanted[start : start + most])
        n = int(np.searchsorted(rows, n_outputs, "right"))
        yield slice(start, start + n)
        start += n


def row_nll(rows: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
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


# Perplexity of windows that overlap, as `llama-perplexity --ppl-stride` computes it.
#
# A window of `n_ctx` tokens moves by `stride` tokens, and the last `stride` tokens of each are
# scored, so that every scored token has `n_ctx - stride` tokens before it. Windows begin with the
# text's own tokens, without BOS in the place of the first.


def n_windows(n_tokens: int, n_ctx: int, stride: int) -> int:
    """The windows of a text of `n_tokens` tokens."""
    return max(0, -(-(n_tokens - n_ctx) // stride))


def score_strided(
    context: Context, tokens: Sequence[int], n_ctx: int, stride: int, *, n_chunks: int | None = None
) -> Iterator[Perplexity]:
    """Yields the estimate after each window of `tokens`, at most `n_chunks` (None: all).

    Raises ContextError at once if the context is too small, `stride` is not 1 to n_ctx - 1, or the
    text is not longer than a window, or shorter than two, as llama-perplexity asks."""
    require_scorable(context, n_ctx, n_chunks)
    if not 0 < stride < n_ctx:
        raise ContextError(f"is {stride}; it must be 1 to {n_ctx - 1}", argument="ppl_stride")
    if len(tokens) < 2 * n_ctx:
        raise ContextError(
            f"the text has {len(tokens)} tokens, but {2 * n_ctx} are needed, two windows of "
            f"{n_ctx}; give a longer text or make `n_ctx` smaller"
        )
    n = n_windows(len(tokens), n_ctx, stride)
    return _strided_scored(
        context, tokens, n_ctx, stride, n if n_chunks is None else min(n, n_chunks)
    )


def _strided_scored(
    context: Context, tokens: Sequence[int], n_ctx: int, stride: int, n: int
) -> Iterator[Perplexity]:
    totals = Totals()
    for part in together(context, n_ctx, n):
        starts = range(part.start * stride, part.stop * stride, stride)
        chunks = np.array([tokens[at : at + n_ctx] for at in starts], np.int64)
        for nll in chunks_nll(context, chunks, n_ctx - stride - 1, None):
            yield totals.add(nll)
