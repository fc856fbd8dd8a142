"""Embeddings, over a context of their own beside the one that writes texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm import Context
from weft.llm.compute.embed import embed_texts, text_groups, unit_rows

__all__ = ["Embedder"]


class Embedder:
    """Embeds token lists, as many at once as fit. Not thread-safe: it runs in the engine's
    thread."""

    def __init__(self, context: Context) -> None:
        """`context`: one with `embeddings=True`."""
        self.context = context
        self.pooling = context.model.config.pooling
        if self.pooling == "none":
            self.pooling = "mean"  # a generative model says nothing; the mean is what users expect

    @property
    def max_tokens(self) -> int:
        """Most tokens of one text."""
        n = self.context.model.config.n_positions or self.context.n_ctx
        return min(n, self.context.n_ubatch, self.context.n_outputs, self.context.n_ctx)

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """Neighbours that one call of `embed` computes at once, so that texts being written wait
        for no more than that."""
        return text_groups(self.context, texts)

    def embed(
        self, texts: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> list[NDArray[np.float32]]:
        """The embedding of each text [n_embd], of length 1. `dimensions`: the first so many
        numbers, brought to length 1 again."""
        rows = embed_texts(self.context, texts, self.pooling)
        return [unit_rows(row[:dimensions]) for row in rows]
