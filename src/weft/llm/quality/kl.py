"""Saves the logits of a base model, and compares a model with them, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.perplexity import (
    Perplexity,
    Totals,
    chunk_rows,
    chunks_of,
    require_scorable,
    row_nll,
    together,
)
from weft.llm.quality.divergence import KLDivergence, KLStatistics
from weft.llm.quality.logits_file import LogitsFile, Rows, log_probs, some_rows, writing_logits

MOST_ROW_BYTES = 64 << 20
"""Maximum number of bytes of logits that a context for scoring holds at once."""


def n_outputs_for(n_vocab: int, n_ubatch: int) -> int:
    """The option `n_outputs` of a context that scores: as many rows as fit in `MOST_ROW_BYTES`, and
    at least one."""
    return max(1, min(n_ubatch, MOST_ROW_BYTES // (4 * max(n_vocab, 1))))


def save_logits(
    context: Context,
    tokens: Sequence[int],
    path: str | os.PathLike[str],
    n_ctx: int,
    *,
    bos: int | None = None,
    n_chunks: int | None = None,
) -> Iterator[Perplexity]:
    """Scores a text as `score_chunks` does and writes the probabilities of all tokens of the
    vocabulary to `path` (`logits_file.py`), which appears when the iteration ends.

    `file_bytes` says how large it will be. Raises ContextError as `score_chunks`, and FormatError
    if the file cannot be written."""
    chunks = chunks_of(context, tokens, n_ctx, n_chunks)
    n_vocab = context.model.config.n_vocab
    totals = Totals()
    with writing_logits(path, chunks, n_vocab) as file:
        for part in together(context, n_ctx, len(chunks)):
            scores = []
            for rows, targets in chunk_rows(context, chunks[part], n_ctx // 2, bos):
                file.add(rows)
                scores.append(row_nll(rows, targets))
            for nll in np.concatenate(scores).reshape(part.stop - part.start, -1):
                yield totals.add(nll)


def compare_with_file(
    context: Context, base: LogitsFile, *, bos: int | None = None, n_chunks: int | None = None
) -> Iterator[KLDivergence]:
    """Compares a model with the base model of a file, on the file's text; yields the figures after
    each chunk, and those after the last with percentiles.

    At most `n_chunks` chunks of the file are read (None: all). Raises ContextError if the model has
    another vocabulary or the context is too small, and FormatError for a damaged file."""
    base.require_vocab(context.model.config.n_vocab, context.model.file.path.name)
    chunks = base.chunks[:n_chunks]
    require_scorable(context, base.n_ctx, n_chunks)

    def pairs(part: slice) -> Iterator[_Scored]:
        for rows, targets in chunk_rows(context, chunks[part], base.n_ctx // 2, bos):
            for some in some_rows(*rows.shape):
                yield base.read(some.stop - some.start), rows[some], targets[some]

    return _compared(context, base.n_ctx, len(chunks), pairs)


def compare_with_model(
    context: Context,
    base: Context,
    tokens: Sequence[int],
    n_ctx: int,
    *,
    bos: int | None = None,
    n_chunks: int | None = None,
) -> Iterator[KLDivergence]:
    """Compares a model with a base model that runs beside it, on the chunks of a text; as
    `compare_with_file`, but nothing is rounded to 16 bits and no file is written.

    Both contexts must have the same `n_ubatch` and take the same number of chunks at once."""
    chunks = chunks_of(context, tokens, n_ctx, n_chunks)
    require_scorable(base, n_ctx, n_chunks)
    sizes = context.model.config.n_vocab, base.model.config.n_vocab
    if sizes[0] != sizes[1]:
        raise ContextError(
            f"{context.model.file.path.name} has a vocabulary of {sizes[0]} tokens, but "
            f"{base.model.file.path.name} has {sizes[1]}; only models with one can be compared"
        )

    def pairs(part: slice) -> Iterator[_Scored]:
        first = n_ctx // 2
        ours = chunk_rows(context, chunks[part], first, bos)
        theirs = chunk_rows(base, chunks[part], first, bos)
        for (rows, targets), (base_rows, _) in zip(ours, theirs, strict=True):
            yield log_probs(base_rows), rows, targets

    return _compared(context, n_ctx, len(chunks), pairs)


_Scored = tuple[Rows, Rows, NDArray[np.int64]]
"""Log-probabilities of the base model, logits of the model, and the tokens that follow."""


def _compared(
    context: Context, n_ctx: int, n_chunks: int, pairs: Callable[[slice], Iterator[_Scored]]
) -> Iterator[KLDivergence]:
    statistics, of_chunk = KLStatistics(), n_ctx - 1 - n_ctx // 2
    for part in together(context, n_ctx, n_chunks):
        for scored in pairs(part):
            base, rows, targets = scored
            while len(rows):
                n = of_chunk - statistics.n_tokens % of_chunk
                statistics.add(base[:n], rows[:n], targets[:n])
                base, rows, targets = base[n:], rows[n:], targets[n:]
                if statistics.n_tokens % of_chunk == 0:
                    last = statistics.n_tokens == of_chunk * n_chunks
                    yield statistics.result(spread=last)
