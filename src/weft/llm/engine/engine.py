"""`Engine`: one thread that steps all texts together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.errors import AbortedError, BusyError, ContextError
from weft.llm.context import Context
from weft.llm.engine.batching import Step, pack
from weft.llm.engine.request import Delta, Done, Event, Read, Reason, Request, Ticket
from weft.llm.engine.slots import Slot, Slots, Text
from weft.llm.engine.stats import EngineStats
from weft.llm.sampling import Sampler, token_logprobs
from weft.llm.tokenizer import Tokenizer

__all__ = ["Engine"]

T = TypeVar("T")

PROMPT_SHARE = 128
"""Prompt tokens in a step in which texts are being written: they wait no longer than that takes."""


class Engine:
    """Generates many texts at once over one context. Every method may be called from any thread.

    A text is the same whatever runs beside it, up to the order in which floats are added."""

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        *,
        max_queue: int = 64,
        max_text: int | None = None,
        prompt_share: int = PROMPT_SHARE,
    ) -> None:
        """`context` belongs to the engine from now on; it has a sequence for each text that runs
        at the same time (`n_seq_max`) and gives as many rows at once (`n_outputs`).

        `max_queue`: requests that may wait beside them. `max_text`: most tokens of one text, its
        prompt included (default: all that the context holds). `prompt_share`: most prompt
        tokens of a step that also writes. Raises ContextError for a context of embeddings."""
        if context.embeddings:
            raise ContextError("texts need logits; create the context with embeddings=False")
        n_seq = context.cache.n_seq_max
        if n_seq > min(context.n_ubatch, context.n_batch, context.n_outputs):
            raise ContextError(
                f"{n_seq} texts at once, but n_ubatch is {context.n_ubatch}, n_batch "
                f"{context.n_batch} and n_outputs {context.n_outputs}; make them larger"
            )
        self.context = context
        self.tokenizer = tokenizer
        self.max_queue = max_queue
        known = (max_text, context.model.config.n_positions, context.n_ctx)
        self.max_text = min(n for n in known if n)
        """Most tokens of one text, its prompt included."""
        self.stats = EngineStats()
        self._share = prompt_share
        self._slots = Slots(context, self.max_text)
        self._waiting: deque[Ticket] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._n_running = 0
        self._closing = False
        self._deadline = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="weft-engine", daemon=True)
        self._thread.start()

    # ---- for callers ----

    def submit(
        self, request: Request, on_event: Callable[[Event], None], after: Ticket | None = None
    ) -> Ticket:
        """Puts a request in line; `on_event` gets its events, in the engine's thread.

        `after`: a request with the same prompt, whose cells this one waits for and shares. Raises
        ContextError for a prompt that cannot fit, TokenizerError for an empty stop string,
        BusyError when the queue is full or the engine is closing."""
        self.check(request)
        sampler = Sampler(request.sampling, self.tokenizer)
        if request.penalize_prompt:
            sampler.start(request.prompt)
        ticket = Ticket(request, sampler, on_event, after)
        ticket.wake = self._wake
        with self._changed:
            self._require_place()
            self.stats.accepted += 1
            self._waiting.append(ticket)
            self._changed.notify()
        return ticket

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Calls `work` in the engine's thread between two steps. Raises BusyError as `submit`."""
        future: Future[T] = Future()
        with self._changed:
            self._require_place()
            self._jobs.append((work, future))
            self._changed.notify()
        return future

    def generate(self, request: Request) -> Iterator[Event]:
        """The events of a request; leaving the loop cancels it. Raises as `submit`."""
        events: SimpleQueue[Event] = SimpleQueue()
        ticket = self.submit(request, events.put)
        try:
            while True:
                event = events.get()
                yield event
                if isinstance(event, Done):
                    return
        finally:
            ticket.cancel()

    def check(self, request: Request) -> None:
        """Raises ContextError for a request that can never be served."""
        n, size = len(request.prompt), self.max_text
        if n > size:
            raise ContextError(
                f"the prompt has {n} tokens, but the context holds {size}; shorten the prompt or "
                "make n_ctx larger"
            )
        n_vocab = self.context.model.config.n_vocab
        named = (*request.prompt, *(request.sampling.logit_bias or ()))
        if min(named) < 0 or max(named) >= n_vocab:
            raise ContextError(f"token ids are 0..{n_vocab - 1}, got {min(named)}..{max(named)}")

    @property
    def n_running(self) -> int:
        """Texts that have a slot."""
        return self._n_running

    @property
    def n_waiting(self) -> int:
        """Requests without one, and jobs."""
        return len(self._waiting) + len(self._jobs)

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return not self._closing and self._thread.is_alive()

    def close(self, grace: float = 0.0) -> None:
        """Takes no more requests, gives those at hand `grace` seconds, cancels the rest and ends
        the thread."""
        with self._changed:
            ends = monotonic() + grace
            self._deadline = min(self._deadline, ends) if self._closing else ends
            self._closing = True
            self._changed.notify()
        if not grace:
            self.context.abort()
        self._thread.join()

    # ---- the thread ----

    def _loop(self) -> None:
        try:
            while self._wait():
                job = self._jobs.popleft() if self._jobs else None
                if job is not None:
                    _run_job(*job)
                self._drop_cancelled()
                self._admit()
                if self._n_running:
                    self._step()
        finally:
            with self._changed:
                self._closing = True
            self._cancel_all()

    def _wait(self) -> bool:
        """Waits for work; False when it is time to end."""
        with self._changed:
            while not (self._waiting or self._jobs or self._n_running):
                if self._closing:
                    return False
                self._changed.wait()
            return not self._closing or monotonic() < self._deadline

    def _step(self) -> None:
        """Computes one batch and hands every text its token."""
        start = perf_counter()
        step = pack(self._slots.running, self.context.n_step, self._share)
        n_prompt = sum(n for slot, n in step.parts if not _text(slot).n_generated)
        before = self.stats.generated_tokens
        try:
            rows = self._decode(step)
        except Exception as error:
            self._isolate(step, error)
        else:
            self._hand_out(step, rows)
        drawn = self.stats.generated_tokens - before
        self.stats.count_step(perf_counter() - start, n_prompt, drawn)

    def _decode(self, step: Step) -> NDArray[np.float32]:
        self._slots.make_room(len(step.tokens))
        return self.context.decode(
            step.tokens, step.positions, seqs=step.seqs, outputs=step.outputs
        )

    def _hand_out(self, step: Step, rows: NDArray[np.float32]) -> None:
        for slot, n in step.parts:
            slot.n_done += n
        for (slot, at), row in zip(step.rows, rows, strict=True):
            if slot.text is None:  # a row before this one ended it
                continue
            try:
                if at < len(slot.tokens):
                    top = slot.text.ticket.request.prompt_logprobs or 0
                    slot.text.read.append(token_logprobs(row, slot.tokens[at], top))
                else:
                    self._advance(slot, row)
            except Exception as error:
                self._end(slot, "error", error)

    def _isolate(self, step: Step, error: Exception) -> None:
        """After a batch failed: each text by itself, so that only those end that cannot go on."""
        if isinstance(error, AbortedError):  # `close`: all of them end
            return
        for slot, n in step.parts:
            self._slots.recover()
            alone = Step()
            alone.add(slot, n)
            try:
                rows = self._decode(alone)
            except Exception as own:
                own.__context__ = error
                self._end(slot, "error", own)
            else:
                self._hand_out(alone, rows)

    def _advance(self, slot: Slot, row: NDArray[np.float32]) -> None:
        """Draws a token, gives its text out, and ends the text where it ends."""
        text = _text(slot)
        request = text.ticket.request
        if slot.scores:
            text.ticket.on_event(Read(tuple(text.read)))
        text.ticket.prompt_done = True
        if request.max_tokens == 0:
            return self._end(slot, "length")
        sampler = text.ticket.sampler
        token = sampler.sample(row)
        text.n_generated += 1
        self.stats.generated_tokens += 1
        if not request.ignore_eos and token in self.tokenizer.vocab.eog:
            return self._finish(slot, "stop")
        sampler.accept(token)
        if request.logprobs is not None:
            text.pending.append(token_logprobs(row, token, request.logprobs))
        piece, stopped = text.stops.push(text.stream.push(token))
        if piece:
            self._give(text, piece)
        if stopped:
            return self._end(slot, "stop")
        slot.tokens.append(token)
        if sampler.done:
            self._finish(slot, "stop")
        elif text.n_generated == request.max_tokens or not self._may_grow(slot):
            self._finish(slot, "length")

    def _may_grow(self, slot: Slot) -> bool:
        return len(slot.tokens) <= self.max_text and self._slots.may_grow(slot)

    def _finish(self, slot: Slot, reason: Reason) -> None:
        """Ends a text without a stop string: what was held back belongs to it."""
        text = _text(slot)
        rest, stopped = text.stops.push(text.stream.flush())
        rest += "" if stopped else text.stops.flush()
        if rest or text.pending:
            self._give(text, rest)
        self._end(slot, "stop" if stopped else reason)

    def _give(self, text: Text, piece: str) -> None:
        tokens, text.pending = tuple(text.pending), []
        text.ticket.on_event(Delta(piece, tokens))

    def _end(self, slot: Slot, reason: Reason, error: Exception | None = None) -> None:
        text = _text(slot)
        self._slots.release(slot, keep=reason in ("stop", "length"))
        self._n_running -= 1
        done = Done(reason, len(text.ticket.request.prompt), text.n_reused, text.n_generated, error)
        self._tell(text.ticket, done)

    def _tell(self, ticket: Ticket, done: Done) -> None:
        ticket.prompt_done = True  # nobody waits for it any more
        self.stats.ended[done.reason] += 1
        try:
            ticket.on_event(done)
        except Exception:  # the reader's own failure, e.g. its event loop is gone
            self.stats.ended["unread"] += 1

    def _admit(self) -> None:
        """Starts waiting requests, first come first served."""
        with self._changed:
            waiting = list(self._waiting)
        for ticket in waiting:
            if ticket.after is not None and not ticket.after.prompt_done:
                continue
            try:
                text = self._slots.admit(ticket, self.tokenizer)
            except Exception as error:
                self._remove(ticket)
                self._tell(ticket, Done("error", len(ticket.request.prompt), 0, 0, error))
                continue
            if text is None:
                break
            self._n_running += 1
            self._remove(ticket)
            self.stats.reused_tokens += text.n_reused

    def _drop_cancelled(self) -> None:
        for slot in self._slots.running:
            if _text(slot).ticket.cancelled:
                self._end(slot, "cancelled")
        for ticket in [t for t in tuple(self._waiting) if t.cancelled]:
            self._remove(ticket)
            self._tell(ticket, Done("cancelled", len(ticket.request.prompt), 0, 0))

    def _cancel_all(self) -> None:
        for slot in self._slots.running:
            self._end(slot, "cancelled")
        while self._waiting:
            ticket = self._waiting.popleft()
            self._tell(ticket, Done("cancelled", len(ticket.request.prompt), 0, 0))
        while self._jobs:
            self._jobs.popleft()[1].set_exception(BusyError("the engine has been closed"))

    def _remove(self, ticket: Ticket) -> None:
        with self._changed:
            self._waiting.remove(ticket)

    def _require_place(self) -> None:
        if self._closing:
            raise BusyError("the engine is closing; try another one")
        at_hand = self._n_running + self.n_waiting
        if at_hand >= len(self._slots.all) + self.max_queue:
            self.stats.refused += 1
            raise BusyError(f"{at_hand} requests are running or waiting; try again later")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()


def _text(slot: Slot) -> Text:
    assert slot.text is not None
    return slot.text


def _run_job(work: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
