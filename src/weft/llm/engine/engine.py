"""`Engine`: a thread around a `Writer`, with a queue in front."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from weft.errors import AbortedError, BusyError, ContextError
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.compute.context import Context
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine.admission import Admission, QueueOptions
from weft.llm.engine.batches import DELAY
from weft.llm.engine.prefixes import Prefixes
from weft.llm.engine.request import Done, Event, Request, Ticket
from weft.llm.engine.shared_writer import writer_for
from weft.llm.engine.stats import EngineStats
from weft.llm.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


class Engine:
    """Generates many texts at once over one context. Every method may be called from any thread.

    A text does not depend on those that run beside it, up to the rounding of sums."""

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        *,
        queue: QueueOptions | None = None,
        max_text: int | None = None,
        prompt_share: int | None = None,
        prompt_delay: float = DELAY,
        drafting: Drafting | None = None,
        prefixes: PrefixOptions | None = None,
    ) -> None:
        """`context` is used by the engine alone from now on. It needs a sequence for each text that
        runs at the same time (`n_seq_max`), and as many rows of logits (`n_outputs`).

        `queue` says how many requests may wait, how long and in which order; None: the default.
        `max_text` is the most tokens of one text, its prompt included (default: all that the
        context holds). `prompt_share` is
        the most prompt tokens in a step in which texts are written too, which wait for them; None:
        as many as add about `prompt_delay` seconds (0.001 to 60) to the step, 16 at least and
        `n_ubatch` at most.
        `drafting` proposes tokens, which are checked in the rows that `n_outputs` has beyond one
        for each text. `prefixes` says what is kept of texts that leave the cache; None: the
        default. Raises ContextError for a value out of range, a context of embeddings, sizes that
        are too small, or a folder that cannot be used."""
        if context.embeddings:
            raise ContextError("texts need logits; create the context with embeddings=False")
        n_seq = context.cache.n_seq_max
        if n_seq > min(context.n_ubatch, context.n_batch, context.n_outputs):
            raise ContextError(
                f"{n_seq} texts at once, but `n_ubatch` is {context.n_ubatch}, `n_batch` "
                f"{context.n_batch} and n_outputs {context.n_outputs}; make them larger"
            )
        queue = QueueOptions() if queue is None else queue
        self._writer = writer_for(
            context, tokenizer, max_text=max_text, prompt_share=prompt_share,
            prompt_delay=prompt_delay, drafting=drafting, prefixes=prefixes,
            admission=Admission(queue, n_slots=n_seq),
        )  # fmt: skip
        self.context = context
        self.tokenizer = tokenizer
        self.max_queue = queue.max_queue
        self.max_text = self._writer.max_text
        self._arrived: deque[Ticket] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closing = False
        self._deadline = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="weft-engine", daemon=True)
        self._thread.start()

    # ---- for callers ----

    @property
    def stats(self) -> EngineStats:
        """The totals so far, as a copy."""
        return self._writer.stats.copy()

    def submit(
        self, request: Request, on_event: Callable[[Event], None], after: Ticket | None = None
    ) -> Ticket:
        """Queues a request. The engine's thread calls `on_event` with its events.

        `after` is a request with the same prompt: this one starts when that prompt has been
        computed, and shares its cells. Raises ContextError for a prompt that cannot fit,
        TokenizerError for an empty stop string, and BusyError if the queue is full, would take
        longer than `max_wait`, or the engine is closing."""
        self.check(request)
        ticket = Ticket(request, self.tokenizer, on_event, after)
        ticket.wake = self._wake
        with self._changed:
            self._require_place()
            self._require_short_wait()
            self._writer.stats.accepted += 1
            self._arrived.append(ticket)
            self._changed.notify()
        return ticket

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Calls `work` in the engine's thread, between two steps. Raises BusyError if the queue is
        full or the engine is closing."""
        future: Future[T] = Future()
        with self._changed:
            self._require_place()
            self._jobs.append((work, future))
            self._changed.notify()
        return future

    def generate(self, request: Request) -> Iterator[Event]:
        """Yields the events of a request; closing the iterator cancels it. Raises the errors of
        `submit`."""
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
        self._writer.check(request)

    @property
    def n_running(self) -> int:
        """Number of texts that have a slot."""
        return self._writer.n_running

    def texts(self) -> tuple[Ticket | None, ...]:
        """The text of each slot; None: it is idle. The engine's thread may change them at any
        time."""
        return self._writer.texts()

    @property
    def prompt_chunk(self) -> int:
        """Maximum number of prompt tokens in the next step, if texts are written in it too."""
        return self._writer.prompt_chunk

    @property
    def prefixes(self) -> Prefixes:
        """The texts and checkpoints beside the cache."""
        return self._writer.prefixes

    @property
    def n_waiting(self) -> int:
        """Number of requests without a slot, and of jobs."""
        return len(self._arrived) + len(self._writer.waiting) + len(self._jobs)

    @property
    def queue(self) -> Admission:
        """The texts that wait for a slot, of which any thread may read the numbers."""
        return self._writer.waiting

    @property
    def alive(self) -> bool:
        """True if the engine accepts requests."""
        return not self._closing and self._thread.is_alive()

    def close(self, grace: float = 0.0) -> None:
        """Refuses new requests, gives the others `grace` seconds, cancels those that remain, and
        ends the thread."""
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
                if self._jobs:
                    with suppress(AbortedError):
                        self._writer.land()
                    _run_job(*self._jobs.popleft())
                while self._arrived:
                    self._writer.add(self._arrived.popleft())
                with suppress(AbortedError):  # raised by `close`, after which all texts end
                    self._writer.step()
        finally:
            with self._changed:
                self._closing = True
            self._end_all()

    def _wait(self) -> bool:
        """Waits for work; False when it is time to end."""
        with self._changed:
            while not (self.n_waiting or self.n_running):
                if self._closing:
                    return False
                self._changed.wait()
            return not self._closing or monotonic() < self._deadline

    def _end_all(self) -> None:
        while self._arrived:
            self._writer.add(self._arrived.popleft())
        self._writer.cancel_all()
        while self._jobs:
            self._jobs.popleft()[1].set_exception(BusyError("the engine has been closed"))
        self._writer.close()

    def _require_place(self) -> None:
        if self._closing:
            raise BusyError("the engine is closing; try another one")
        n_waiting, queue = self.n_waiting, self._writer.waiting
        at_hand = self.n_running + n_waiting
        if at_hand >= self._writer.n_slots + self.max_queue:
            self._writer.stats.refused += 1
            why = f"{at_hand} requests are running or waiting; try again later"
            raise queue.busy(why, n_waiting)

    def _require_short_wait(self) -> None:
        n_waiting, queue = self.n_waiting, self._writer.waiting
        most = queue.options.max_wait
        expected = queue.expected(n_waiting) if most else 0.0
        if expected > most:
            self._writer.stats.refused += 1
            raise queue.busy(
                f"{n_waiting} requests wait, about {expected:.1f} s of work and more than the "
                f"{most:g} s that a request may wait; try again later", n_waiting,
            )  # fmt: skip

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()


def _run_job(work: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
