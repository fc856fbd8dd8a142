"""`Writing`: how the texts of an `LLM` grow, one at a time or several together, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import Progress
from weft.llm.context import Context
from weft.llm.draft import Draft, Stats
from weft.llm.together import Text, write_together
from weft.llm.turns import Turns

__all__ = ["Writing"]


class Writing:
    """Writes with one context. A thread that wants to write waits for the texts of other threads;
    within a thread a new text ends the one before."""

    def __init__(self, context: Context, n_keep: int, bos: int | None) -> None:
        """`n_keep`: first tokens that stay when a full context is shifted, as does `bos`, the token
        that begins every text."""
        self._context = context
        self._bos = bos
        self._n_keep = n_keep
        self._turns = Turns()
        self.stats = Stats()
        """Of the last call of any thread."""

    def one(
        self, ids: list[int], draft: Draft, *, cache_prompt: bool, progress: Progress | None
    ) -> Iterator[str]:
        """The pieces of the text behind the prompt `ids`."""
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=len(ids), logprobs=draft.logprobs)
            context = self._context
            start = perf_counter()
            if not cache_prompt:
                context.cache.clear()
            stats.n_cached = context.reuse_prefix(0, ids)
            logits = self._compute(ids, stats.n_cached, progress)
            stats.prompt_seconds = perf_counter() - start
            n_past = len(ids)
            while True:
                text = draft.push(logits)
                stats.n_generated, stats.finish_reason = draft.n_drawn, draft.finish_reason
                if text:
                    yield text
                    self._require_turn(turn)
                if draft.finish_reason:
                    return
                start = perf_counter()
                if n_past == context.n_ctx:
                    n_past -= context.drop_oldest(0, self._n_kept(ids))
                logits = context.decode((draft.token,), (n_past,))[0]
                stats.generation_seconds += perf_counter() - start
                n_past += 1
        finally:
            self._turns.leave(turn)

    def several(self, texts: Sequence[Text]) -> Iterator[tuple[int, str]]:
        """The pieces of all texts as they come, each with the number of its text."""
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=sum(len(t.prompt) for t in texts))
            self._context.cache.clear()
            steps = write_together(self._context, texts)
            while True:
                start = perf_counter()
                pieces = next(steps, None)
                stats.generation_seconds += perf_counter() - start
                stats.n_generated = sum(t.draft.n_drawn for t in texts)
                if pieces is None:
                    break
                for number, text in pieces:
                    if text:
                        yield number, text
                        self._require_turn(turn)
            if texts:
                stats.finish_reason = texts[-1].draft.finish_reason
            stats.logprobs = [row for t in texts for row in t.draft.logprobs]
        finally:
            if self._turns.holds(turn):
                self._context.cache.clear()
            self._turns.leave(turn)

    def end(self) -> None:
        """Waits for the texts of other threads and ends that of this one."""
        self._turns.leave(self._turns.take())

    def _require_turn(self, turn: object) -> None:
        if not self._turns.holds(turn):
            raise ContextError(
                "another text of this LLM has taken the context over; finish one before starting "
                "the next, or open the model twice"
            )

    def _n_kept(self, ids: Sequence[int]) -> int:
        """First tokens that stay when the context is shifted."""
        return max(self._n_keep, int(ids[0] == self._bos))

    def _compute(
        self, ids: Sequence[int], start: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits behind `ids`, of which `start` are in the cache; a step at a time, so that what
        is done is kept when it is interrupted."""
        context, n = self._context, len(ids)
        step = context.n_step
        rows = np.empty((0, 0), np.float32)
        for at in range(start, n, step):
            part = ids[at : at + step]
            wanted = np.arange(at, at + len(part)) == n - 1
            rows = context.decode(part, range(at, at + len(part)), outputs=wanted)
            if progress is not None:
                progress(at + len(part) - start, n - start)
        last: NDArray[np.float32] = rows[0]
        return last
