"""Contexts beside the one that writes text: another graph needs a context of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weft.llm.context import Context
from weft.llm.turns import Turns

__all__ = ["SideContexts"]


class SideContexts:
    """For embeddings and for the logits of every token; made when first needed, used by one thread
    at a time."""

    def __init__(self, context: Context, options: Mapping[str, Any]) -> None:
        """`context`: whose model and size they have; `options`: of `Context`, but for sizes."""
        self._main = context
        self._options = dict(options) | {"progress": None}
        self._turns = Turns()
        self._embedding: Context | None = context if context.embeddings else None
        self._scoring: Context | None = None

    @contextmanager
    def embedding(self) -> Iterator[Context]:
        """A context whose `embed` works."""
        turn = self._turns.take()
        try:
            if self._embedding is None:
                self._embedding = self._make(self._main.n_ctx, embeddings=True)
            yield self._embedding
        finally:
            self._turns.leave(turn)

    @contextmanager
    def scoring(self, n_ctx: int) -> Iterator[Context]:
        """A context that gives logits of many tokens at once, of at least `n_ctx` cells."""
        turn = self._turns.take()
        try:
            if self._scoring is None or self._scoring.n_ctx < n_ctx:
                self._scoring = None  # its memory goes first
                self._scoring = self._make(n_ctx)
            yield self._scoring
        finally:
            self._turns.leave(turn)

    def _make(self, n_ctx: int, **more: Any) -> Context:
        return Context(self._main.model, n_ctx, **self._options, **more)
