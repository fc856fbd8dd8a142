"""Contexts beside the one that writes text, for graphs with other outputs; `TurnLock`, by which
threads take turns with a context."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Any

from weft.llm.compute.context import Context
from weft.llm.compute.embed import MOST, sequences_for


class ExtraContexts:
    """Contexts for embeddings and for the logits of every token.

    They are created when they are first needed and used by one thread at a time. They share the
    weights of the main context, repacked or not, and have a cache and compute memory of their
    own."""

    def __init__(self, context: Context) -> None:
        """`context` has the model, the options and the size."""
        self._main = context
        self._turns = TurnLock()
        self._embedding: Context | None = context if context.embeddings else None
        self._scoring: Context | None = None

    @contextmanager
    def embedding(self) -> Iterator[Context]:
        """Lends a context that computes embeddings."""
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
        """Lends a context that computes the logits of many tokens at once, for at least `n_seq`
        sequences with `n_ctx` cells each."""
        turn = self._turns.take()
        try:
            context, cells = self._scoring, n_ctx * n_seq
            if context is None or context.n_ctx < cells or context.cache.n_seq_max < n_seq:
                self._scoring = context = None  # frees its memory before the next takes any
                context = self._scoring = self._make(cells, n_outputs=None, n_seq_max=n_seq)
            yield context
        finally:
            self._turns.leave(turn)

    def _make(self, n_ctx: int, **more: Any) -> Context:
        main = self._main
        options: dict[str, Any] = {**main.options, "devices": main.devices_beside()}
        options |= {"beside": (), "states": False}
        if options.get("plan") is not None:  # a plan is for the main context's sizes only
            names = [backend.name for backend in main.plan.backends]
            homes = main.plan.homes.weights.items()
            options |= {"plan": None, "place": {name: names[b] for name, b in homes}}
            options["op_offload"] = main.plan.op_offload
        return Context(main.model, n_ctx, **(options | more))


class TurnLock:
    """A lock for generators, which may end in any thread, or never.

    A thread waits while another thread has the turn. If it has the turn itself, a new text takes it
    over from the unfinished one, since waiting for that would never end."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: deque[object] = deque()
        self._holder: object | None = None
        self._thread = 0

    def take(self) -> object:
        """Waits for the turn; returns the argument for `holds` and `leave`."""
        mine = object()
        with self._changed:
            if self._holder is None or self._thread != get_ident():
                self._waiting.append(mine)
                try:
                    while self._holder is not None or self._waiting[0] is not mine:
                        self._changed.wait()
                finally:  # also after Ctrl-C
                    self._waiting.remove(mine)
                    self._changed.notify_all()
            self._holder, self._thread = mine, get_ident()
        return mine

    def holds(self, turn: object) -> bool:
        """True if no other text has taken the turn over."""
        return self._holder is turn

    def leave(self, turn: object) -> None:
        """Ends the turn; does nothing if it was taken over."""
        with self._changed:
            if self._holder is turn:
                self._holder = None
                self._changed.notify_all()
