"""Contexts beside the one that writes text: another graph needs a context of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weft.llm.compute.context import Context
from weft.llm.compute.embed import MOST, sequences_for
from weft.llm.compute.fallback import on_fallback
from weft.llm.engine.turn_lock import TurnLock

__all__ = ["ExtraContexts"]


class ExtraContexts:
    """For embeddings and for the logits of every token; made when first needed, used by one thread
    at a time. Weights are those of the main one, repacked or not: what they take is a cache and
    room to compute in."""

    def __init__(self, context: Context, options: Mapping[str, Any]) -> None:
        """`context`: whose model and size they have; `options`: of `Context`, but for sizes."""
        self._main = context
        self._options = dict(options) | {"progress": None}
        if self._options.get("plan") is not None:  # which is of the main one, and of its size
            names = [backend.name for backend in context.plan.backends]
            homes = context.plan.homes.weights.items()
            self._options |= {"plan": None, "place": {name: names[b] for name, b in homes}}
        self._turns = TurnLock()
        self._embedding: Context | None = context if context.embeddings else None
        self._scoring: Context | None = None

    @contextmanager
    def embedding(self) -> Iterator[Context]:
        """A context whose `embed` works."""
        turn = self._turns.take()
        try:
            if self._embedding is None:
                n_seq_max = sequences_for(self._main.model.config, MOST)
                self._embedding = self._make(
                    self._main.n_ctx, embeddings=True, n_outputs=None, n_seq_max=n_seq_max
                )
            yield self._embedding
        finally:
            self._turns.leave(turn)

    @contextmanager
    def scoring(self, n_ctx: int, n_seq: int) -> Iterator[Context]:
        """A context that gives logits of many tokens at once, of at least `n_seq` sequences with
        `n_ctx` cells each."""
        turn = self._turns.take()
        try:
            found, cells = self._scoring, n_ctx * n_seq
            if found is None or found.n_ctx < cells or found.cache.n_seq_max < n_seq:
                self._scoring = found = None  # its memory goes first
                found = self._scoring = self._make(cells, n_outputs=None, n_seq_max=n_seq)
            yield found
        finally:
            self._turns.leave(turn)

    def _make(self, n_ctx: int, **more: Any) -> Context:
        options = self._options
        if self._main.fell_back:  # what failed is not tried again
            options = dict(on_fallback(options) or options)
        more["devices"] = self._main.devices_beside()
        return Context(self._main.model, n_ctx, **(options | more))
