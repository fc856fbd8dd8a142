"""Computes embeddings and ranks, with a context beside the one that writes texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm import Context
from weft.llm.compute.embed import embed_texts, rank_pairs, text_groups, unit_rows
from weft.llm.config import Pooling


class Embedder:
    """Embeds or ranks lists of tokens, as many at once as fit. It is not thread-safe; the engine's
    thread calls it."""

    def __init__(self, context: Context, *, pooling: Pooling | None = None) -> None:
        """`context` was created with `embeddings=True`; `pooling` is in place of the model's.

        Raises ContextError for a pooling that gives no vector of a text."""
        if pooling == "none" or (pooling == "rank" and not context.model.config.n_scores):
            raise ContextError(
                f"pooling is {pooling}, which gives no embedding of a text: it is mean, cls or last"
            )
        self.context = context
        self.pooling = pooling or context.model.config.pooling
        self.ranks = context.model.config.n_scores > 0
        """True if the model has a classifier; few files say in their pooling that it ranks."""
        if self.pooling == "none":
            self.pooling = "mean"  # files of generative models name none; users expect the mean

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of one text."""
        n = self.context.model.config.n_positions or self.context.n_ctx
        return min(n, self.context.n_ubatch, self.context.n_outputs, self.context.n_ctx)

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """Groups neighbouring texts that `embed` computes at once. One call for each group keeps
        texts that are being written from waiting longer than that."""
        return text_groups(self.context, texts)

    def embed(
        self, texts: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> list[NDArray[np.float32]]:
        """The embedding of each text [n_embd], scaled to length 1. With `dimensions`, only that
        number of first numbers is kept, before scaling."""
        rows = embed_texts(self.context, texts, self.pooling)
        return [unit_rows(row[:dimensions]) for row in rows]

    def rank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        """The score of each pair of a query and a document."""
        return rank_pairs(self.context, pairs)
