"""`Writer` writes all texts. It has no threads: its owner calls `step`.

    writer.add(ticket)
    while writer.step():
        pass                      # new text has been passed to each ticket's on_event

A step has two halves. Prompts in: waiting texts get slots, and the next tokens of all running texts
are packed into a batch. Tokens out: the batch is computed, and every text whose last token was in
it draws the next one.
"""

from __future__ import annotations

from collections import deque
from time import monotonic, perf_counter

import numpy as np
from numpy.typing import NDArray

from weft.errors import AbortedError, ContextError
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.compute.batch import Batch as ContextBatch
from weft.llm.compute.context import Context
from weft.llm.compute.in_flight import Step
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine.batching import Batch, pack
from weft.llm.engine.checking import Checking
from weft.llm.engine.pace import DELAY, Pace
from weft.llm.engine.prefixes import Prefixes
from weft.llm.engine.request import Delta, Done, Read, Reason, Request, Ticket
from weft.llm.engine.slots import Slot, Slots
from weft.llm.engine.stats import EngineStats
from weft.llm.prompts import require_fits
from weft.llm.sampling import token_logprobs
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["Writer"]


class Writer:
    """Writes many texts over one context, a token of each in every step.

    A text does not depend on those that run beside it, up to the rounding of sums."""

    def __init__(
        self,
        context: Context,
        tokenizer: Tokenizer,
        *,
        max_text: int | None = None,
        prompt_share: int | None = None,
        prompt_delay: float = DELAY,
        drafting: Drafting | None = None,
        prefixes: PrefixOptions | None = None,
    ) -> None:
        """`context` needs a sequence for each text that runs at the same time (`n_seq_max`), and as
        many rows of logits (`n_outputs`).

        `max_text` is the most tokens of one text, its prompt included (default: all that the
        context holds). `prompt_share` is the most prompt tokens in a step in which texts are
        written too; None: as many as take about `prompt_delay` seconds (`Pace`). `drafting`
        proposes tokens, which are checked in the rows that `n_outputs` has beyond one for each
        text. `prefixes` says what is kept of texts that leave the cache; None: the default."""
        self.context = context
        self.tokenizer = tokenizer
        limits = (max_text, context.model.config.n_positions, context.n_ctx)
        self.max_text = min(n for n in limits if n)
        """Most tokens of one text, its prompt included."""
        self.waiting: deque[Ticket] = deque()
        """Texts without a slot, in order of arrival."""
        self.stats = EngineStats()
        self._share = prompt_share
        self._pace = Pace(prompt_delay, most=context.n_step)
        self.prefixes = Prefixes(context, prefixes or PrefixOptions(), tokenizer.vocab.eog)
        """What is kept of texts beside the cache."""
        self._slots = Slots(context, self.max_text, self.prefixes)
        self._flights: deque[tuple[Batch, Step, float]] = deque()
        """Steps that are being computed, with what is in them, and when they began."""
        self._n_submitted = 0
        self._landed = 0.0
        """When the last of them was over."""
        self._checking: Checking | None = None
        if drafting is not None:
            self._checking = Checking(context, self._slots, drafting)

    @property
    def n_slots(self) -> int:
        """Number of texts that can run at the same time."""
        return len(self._slots.all)

    def texts(self) -> tuple[Ticket | None, ...]:
        """The text of each slot; None: it is idle."""
        return tuple(slot.text for slot in self._slots.all)

    @property
    def n_running(self) -> int:
        """Number of texts that have a slot."""
        return len(self._slots.running)

    @property
    def prompt_chunk(self) -> int:
        """Most prompt tokens of the next step, if texts are written in it too."""
        return self._pace.chunk if self._share is None else self._share

    def check(self, request: Request) -> None:
        """Raises ContextError for a request that can never be served."""
        config = self.context.model.config
        first = config.n_encoder > 0  # the decoder's first token needs a cell
        require_fits(request.prompt, self.max_text - first, config.n_ctx_train)
        if config.n_encoder and request.prompt_logprobs is not None:
            raise ContextError("prompt_logprobs are of a decoder; an encoder reads this prompt")
        images = self.context.input_rows
        ids = [id_ for id_ in request.prompt if id_ not in images]
        if len(ids) < len(request.prompt) and request.prompt_logprobs is not None:
            raise ContextError("prompt_logprobs are of tokens; leave them out beside an image")
        ids += request.sampling.logit_bias or ()
        if ids and not 0 <= min(ids) <= max(ids) < config.n_vocab:
            raise ContextError(f"token ids are 0..{config.n_vocab - 1}, got {min(ids)}..{max(ids)}")
        self.context.model.scale_rows(request.adapters, request.control_vectors)

    def add(self, text: Ticket) -> None:
        """Queues a text; its request must have passed `check`."""
        self.waiting.append(text)

    def step(self) -> bool:
        """Computes one batch and draws a token for every text in it; True if there is more to do.

        Where layers are on several machines, texts are in groups: the batch of one group is
        submitted, and that of another, which was submitted before, is collected."""
        flies = self._flies()
        if not flies:
            self.land()
        start = perf_counter()
        self._drop_cancelled()
        # ---- prompts in ----
        self._admit()
        dropped = self._slots.shift()
        if self._checking is not None:
            for slot, at, n in dropped:
                self._checking.dropped(slot, at, n)
            self._checking.prepare()
        if flies:
            self._submit(start)
        else:
            batch = pack(self._slots.running, self.context.n_step, self.prompt_chunk)
            if batch.tokens:
                self._compute(batch, start)
        return bool(self._slots.running or self.waiting)

    # ---- tokens out ----

    def _compute(self, batch: Batch, start: float, step: Step | None = None) -> None:
        """Computes a batch, or waits for the step in which it is computed, and draws tokens. Its
        time counts from `start` on."""
        before = self.stats.generated_tokens
        n_prompt, n_texts = batch.n_prompt, len(self._slots.running)
        n_columns = len(batch.tokens)
        began, ended = perf_counter(), 0.0
        try:
            rows = self._decode(batch) if step is None else step.collect()
        except AbortedError:
            raise
        except Exception as error:
            self._isolate(batch, error)
        else:
            ended = perf_counter()
            self._hand_out(batch, rows)
            if self._checking is not None and batch.prompts:
                self._checking.follow(batch)
        drawn = self.stats.generated_tokens - before
        seconds = perf_counter() - start
        self.stats.count_step(seconds, n_prompt, drawn)
        self._pace.learn(n_prompt, n_columns - n_prompt, seconds)
        if self._checking is not None and ended and not n_prompt:
            self._checking.learn(n_columns, n_texts, ended - began, seconds, drawn)

    # ---- steps in flight ----

    def _flies(self) -> bool:
        """Whether steps of groups of texts follow one another through the machines. Prompts alone
        are computed in ubatches that do."""
        running = self._slots.running
        if len(running) < 2 or self.context.most_in_flight < 2:
            return False
        if self._checking is not None and self._checking.may_draft():
            return False
        return any(slot.in_flight or slot.n_left == 1 for slot in running)

    def _submit(self, start: float) -> None:
        """Submits a step of texts that are in none, and waits for the oldest step where no other
        can be submitted."""
        most, running = self.context.most_in_flight, self._slots.running
        ready = [slot for slot in running if not slot.in_flight]
        if ready and len(self._flights) < most:
            ready.sort(key=lambda slot: slot.turn)
            group, room = ready[: -(-len(running) // most)], self.context.n_ubatch
            batch = pack(group, min(room, self.context.n_batch), self.prompt_chunk, delays=True)
            if batch.tokens:
                self._begin(batch, start)
        if len(self._flights) == most or all(slot.in_flight for slot in running):
            self._land()

    def _begin(self, batch: Batch, start: float) -> None:
        try:
            self._slots.make_room_for(batch.parts)
            step = self.context.submit(
                ContextBatch(batch.tokens, batch.positions, batch.seqs, batch.outputs)
            )
        except AbortedError:
            raise
        except Exception as error:
            self.land()
            self._isolate(batch, error)
            return
        if step is None:
            self.land()
            self._compute(batch, start)
            return
        self._n_submitted += 1
        for slot, _ in batch.parts:
            slot.in_flight, slot.turn = True, self._n_submitted
        self._flights.append((batch, step, start))

    def land(self) -> None:
        """Waits for the steps in flight and draws their tokens, so that the context can be used."""
        while self._flights:
            self._land()

    def _land(self) -> None:
        if not self._flights:
            return
        batch, step, start = self._flights.popleft()
        for slot, _ in batch.parts:
            slot.in_flight = False
        if not step.given_up:  # else its texts are packed again
            self._compute(batch, max(start, self._landed), step)
            self._landed = perf_counter()

    def _drop_steps(self) -> None:
        """Waits for the steps in flight, and draws nothing."""
        while self._flights:
            batch, step, _ = self._flights.popleft()
            for slot, _ in batch.parts:
                slot.in_flight = False
            try:
                step.collect()
            except Exception:  # the cache is as it was before the step
                continue
            for slot, n in batch.parts:
                slot.n_done += n

    def cancel_all(self) -> None:
        """Ends every text as "cancelled"."""
        self._drop_steps()
        for slot in list(self._slots.running):
            self._end(slot, "cancelled")
        while self.waiting:
            text = self.waiting.popleft()
            self._tell(text, text.done("cancelled"))

    def close(self) -> None:
        """Writes the texts of the cache to the folder that keeps them, if there is one. All texts
        must have ended."""
        if self.prefixes.files is not None:
            self._slots.keep_all()
        self.prefixes.close()

    def _drop_cancelled(self) -> None:
        for slot in self._slots.cancelled():
            self._end(slot, "cancelled")
        for text in [t for t in self.waiting if t.cancelled]:
            self.waiting.remove(text)
            self._tell(text, text.done("cancelled"))

    def _admit(self) -> None:
        for text in tuple(self.waiting):
            if text.after is not None and not text.after.prompt_done:
                continue
            try:
                if not self._slots.admit(text):
                    break
            except Exception as error:
                self.waiting.remove(text)
                self._tell(text, text.done("error", error))
                continue
            self.waiting.remove(text)
            text.times.started = monotonic()
            self.stats.queue_seconds.add(text.times.started - text.times.asked)
            self.stats.reused_tokens += text.n_reused

    def _decode(self, batch: Batch) -> NDArray[np.float32]:
        self._slots.make_room_for(batch.parts)
        rows = self.context.decode(
            batch.tokens, batch.positions, seqs=batch.seqs, outputs=batch.outputs
        )
        if self._checking is not None:
            self._checking.take(batch)
        return rows

    def _hand_out(self, batch: Batch, rows: NDArray[np.float32]) -> None:
        for slot, n in batch.parts:
            slot.n_done += n
        for slot in batch.prompts:
            _text(slot).n_read = min(slot.n_done, len(_text(slot).request.prompt))
        self._slots.note_stops(batch.prompts)
        checks = self._checking.checks if self._checking is not None else {}
        for (slot, at), row in zip(batch.rows, rows, strict=True):
            text, check = slot.text, checks.get(slot)
            if text is None or (check and check.failed):  # ended, or after a wrong token of a draft
                continue
            try:
                if at < len(slot.tokens):
                    top = text.request.prompt_logprobs or 0
                    text.read.append(token_logprobs(row, slot.tokens[at], top))
                    continue
                self._draw(slot, text, row)
                if check is not None:
                    check.note(text.growth.token)
            except Exception as error:
                self._end(slot, "error", error)
        if checks and self._checking is not None:
            self._checking.settle(self.stats)

    def _isolate(self, batch: Batch, error: Exception) -> None:
        """Computes each text of a failed batch by itself, so that only those end that fail."""
        alone = len(batch.parts) == 1
        if self._checking is not None and self._checking.checks:
            self._checking.drop()
            alone = False  # it may go on without its draft
        for slot, n in batch.parts:
            if not self._slots.recover() and alone:
                self._end(slot, "error", error)
                return
            part = Batch()
            part.add(slot, min(n, slot.n_left))
            try:
                rows = self._decode(part)
            except Exception as own:
                own.__context__ = error
                self._end(slot, "error", own)
            else:
                self._hand_out(part, rows)

    def _draw(self, slot: Slot, text: Ticket, row: NDArray[np.float32]) -> None:
        """Draws the next token of a text from the logits of its last token."""
        if slot.scores:
            text.on_event(Read(tuple(text.read)))
        text.prompt_done = True
        if text.request.max_tokens == 0:
            return self._end(slot, "length")
        growth = text.growth
        piece = growth.push(row)
        self.stats.count_token(text.times)
        if not growth.finish_reason:
            slot.tokens.append(growth.token)
            if not self._slots.may_grow(slot):
                piece += growth.finish("context")
        if piece or (growth.finish_reason and growth.logprobs):
            self._give(text, piece)
        if growth.finish_reason:
            self._end(slot, growth.finish_reason)

    def _give(self, text: Ticket, piece: str) -> None:
        logprobs = text.growth.logprobs
        n = len(logprobs) - text.growth.ended_by_token
        tokens, text.n_told = tuple(logprobs[text.n_told : n]), n
        if piece or tokens:
            text.on_event(Delta(piece, tokens, len(text.growth.ids)))

    def _end(self, slot: Slot, reason: Reason, error: Exception | None = None) -> None:
        text = _text(slot)
        self._slots.release(slot, keep=reason != "error")
        if self._checking is not None:
            self._checking.end(slot)
        self._tell(text, text.done(reason, error))

    def _tell(self, text: Ticket, done: Done) -> None:
        text.prompt_done = True  # texts that wait for this prompt need not wait any longer
        self.stats.count_end(done)
        try:
            text.on_event(done)
        except Exception:  # the receiver failed, for example because its event loop has ended
            self.stats.ended["unread"] += 1


def _text(slot: Slot) -> Ticket:
    assert slot.text is not None
    return slot.text
