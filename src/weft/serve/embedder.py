"""Embeddings, over a context of their own beside the one that writes texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm import Context

__all__ = ["Embedder"]


class Embedder:
    """Embeds token lists, one at a time. Not thread-safe: it runs in the engine's thread."""

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

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The embedding of a text [n_embd], of length 1."""
        row = self.context.embed(tokens, self.pooling).astype(np.float64)
        length = float(np.sqrt(row @ row))
        return (row / length if length else row).astype(np.float32)
