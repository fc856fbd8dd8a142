"""Perplexity of windows that overlap, as `llama-perplexity --ppl-stride` computes it.

A window of `n_ctx` tokens moves by `stride` tokens, and the last `stride` tokens of each are
scored, so that every scored token has `n_ctx - stride` tokens before it. Windows begin with the
text's own tokens, without BOS in the place of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.compute.perplexity import Perplexity, Totals, chunks_nll, require_scorable, together

__all__ = ["n_windows", "score_strided"]


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
    return _scored(context, tokens, n_ctx, stride, n if n_chunks is None else min(n, n_chunks))


def _scored(
    context: Context, tokens: Sequence[int], n_ctx: int, stride: int, n: int
) -> Iterator[Perplexity]:
    totals = Totals()
    for part in together(context, n_ctx, n):
        starts = range(part.start * stride, part.stop * stride, stride)
        chunks = np.array([tokens[at : at + n_ctx] for at in starts], np.int64)
        for nll in chunks_nll(context, chunks, n_ctx - stride - 1, None):
            yield totals.add(nll)
