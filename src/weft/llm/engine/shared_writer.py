"""`SharedWriter` writes the texts of an `LLM`, one or several together; threads take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from weft.errors import ContextError
from weft.execute import Progress
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.compute.context import Context
from weft.llm.compute.extra_contexts import TurnLock
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine.growth import Stats
from weft.llm.engine.prefixes import Prefixes
from weft.llm.engine.request import Delta, Done, Event, Read, Request, Ticket
from weft.llm.engine.writer import Writer
from weft.llm.tokenizers.tokenizer import Tokenizer


def writer_for(context: Context, tokenizer: Tokenizer, **options: Any) -> Writer:
    """The writer of a context's model; `options` are the options of `Writer`."""
    if context.model.config.diffusion is None:
        return Writer(context, tokenizer, **options)
    from weft.llm.engine.diffusion import DiffusionWriter  # few models write so

    return DiffusionWriter(context, tokenizer, **options)


class SharedWriter:
    """A `Writer` that threads take turns with.

    A thread waits for the texts of other threads to end. Within a thread, a new text ends the one
    before."""

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        drafting: Drafting | None = None,
        prefixes: PrefixOptions | None = None,
    ) -> None:
        """`drafting` and `prefixes` are passed to `Writer`."""
        self._tokenizer = tokenizer
        self._writer = writer_for(
            context, tokenizer, prompt_share=context.n_batch, drafting=drafting, prefixes=prefixes
        )
        self._turns = TurnLock()
        self._ended = False
        self.stats = Stats()
        """Tokens and times of the last call of any thread."""

    def texts(
        self, requests: Sequence[Request], progress: Progress | None = None
    ) -> Iterator[tuple[int, Ticket, Event]]:
        """Yields the events of all texts as they come, each with the number of its text. `progress`
        is called while the prompt of a single text is computed.

        Raises the errors of `Ticket` at once, and yields no event of an error but raises it."""
        events: deque[tuple[int, Event]] = deque()
        texts = [self._ticket(request, i, events) for i, request in enumerate(requests)]
        return self._events(texts, events, progress)

    def end(self) -> None:
        """Waits for the texts of other threads, ends the unfinished text of this one, and writes
        what is kept to the folder, if there is one."""
        turn = self._turns.take()
        self._ended = True
        try:
            self._writer.cancel_all()
            self._writer.close()
        finally:
            self._turns.leave(turn)

    @property
    def prefixes(self) -> Prefixes:
        """The texts and checkpoints beside the cache."""
        return self._writer.prefixes

    def _ticket(self, request: Request, number: int, events: deque[tuple[int, Event]]) -> Ticket:
        self._writer.check(request)
        return Ticket(request, self._tokenizer, lambda event: events.append((number, event)))

    def _events(
        self, texts: Sequence[Ticket], events: deque[tuple[int, Event]], progress: Progress | None
    ) -> Iterator[tuple[int, Ticket, Event]]:
        turn = self._turns.take()
        try:
            self._writer.cancel_all()  # an unfinished text of this thread
            stats = self.stats = Stats(n_prompt=sum(len(t.request.prompt) for t in texts))
            stats.logprobs = texts[0].growth.logprobs if len(texts) == 1 else []
            for text in texts:
                self._writer.add(text)
            more = bool(texts)
            while more:
                more = self._step(stats, texts, progress)
                while events:
                    number, event = events.popleft()
                    if isinstance(event, Done):
                        self._finish(stats, texts, event)
                    elif isinstance(event, Read) or not event.text:
                        continue
                    yield number, texts[number], event
                    if more or isinstance(event, Delta):
                        self._require_turn(turn)
        finally:
            if self._turns.holds(turn):
                self._writer.cancel_all()
            self._turns.leave(turn)

    def _step(self, stats: Stats, texts: Sequence[Ticket], progress: Progress | None) -> bool:
        first, alone = texts[0], len(texts) == 1
        reads = alone and not first.prompt_done
        if not reads:
            self._writer.context.repack()  # once; no part of a token's time
        started = perf_counter()
        more = self._writer.step()
        seconds = perf_counter() - started
        if not reads:
            stats.generation_seconds += seconds
        else:
            stats.prompt_seconds += seconds
            stats.n_cached, stats.why_not_reused = first.n_reused, first.why_not_reused
            if progress is not None:
                n = first.n_reused
                progress(first.n_read - n, len(first.request.prompt) - n)
        stats.n_drafted = sum(t.growth.n_drafted for t in texts)
        stats.n_accepted = sum(t.growth.n_accepted for t in texts)
        stats.n_generated = first.growth.n_drawn if alone else sum(t.growth.n_drawn for t in texts)
        return more

    def _finish(self, stats: Stats, texts: Sequence[Ticket], done: Done) -> None:
        if done.error is not None:
            raise done.error
        stats.finish_reason = texts[-1].growth.finish_reason
        stats.why_not_reused = texts[-1].why_not_reused
        if len(texts) > 1:
            stats.n_cached = sum(t.n_reused for t in texts)
            stats.logprobs = [row for t in texts for row in t.growth.logprobs]

    def _require_turn(self, turn: object) -> None:
        if self._ended:
            raise ContextError("this LLM was closed before its text ended; open the model again")
        if not self._turns.holds(turn):
            raise ContextError(
                "another text of this LLM has taken the context over; finish one before starting "
                "the next, or open the model twice"
            )
