"""`Writer` writes all texts. It has no threads: its owner calls `step`.

    writer.add(ticket)
    while writer.step():
        pass                      # new text has been passed to each ticket's on_event

A step has three parts. `schedule` gives slots to waiting texts and packs the next tokens of running
texts into a batch, `run` computes it, and `postprocess` draws a token for every text whose last
token was in it.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from weft.errors import AbortedError, ContextError
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.compute.batch import wrong_ids
from weft.llm.compute.context import Context
from weft.llm.compute.steps import Step
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine.admission import Admission
from weft.llm.engine.batches import DELAY, Flights, Pace, StepBatch, pack
from weft.llm.engine.prefixes import Prefixes
from weft.llm.engine.request import Delta, Done, Read, Reason, Request, Ticket
from weft.llm.engine.slots import Slot, Slots
from weft.llm.engine.stats import EngineStats
from weft.llm.engine.verification import Verification
from weft.llm.prompts import require_fits
from weft.llm.sampling import token_logprobs
from weft.llm.tokenizers.tokenizer import Tokenizer


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
        admission: Admission | None = None,
    ) -> None:
        """`context` needs a sequence for each text that runs at the same time (`n_seq_max`), and as
        many rows of logits (`n_outputs`).

        `max_text` is the maximum number of tokens of one text, its prompt included (default: all
        that the context holds). `prompt_share` is the maximum number of prompt tokens in a step in
        which texts are written too; None: as many as take about `prompt_delay` seconds (`Pace`).
        `drafting` proposes tokens, which are checked in the rows that `n_outputs` has beyond one
        for each text. `prefixes` says what is kept of texts that leave the cache, `admission` the
        order of texts and how long they may wait; None: the default."""
        self.context = context
        self.tokenizer = tokenizer
        limits = (max_text, context.model.config.n_positions, context.n_ctx)
        self.max_text = min(n for n in limits if n)
        """Maximum number of tokens of one text, its prompt included."""
        self.waiting = Admission() if admission is None else admission
        """Texts without a slot, in the order of their turns."""
        self.stats = EngineStats()
        self._share = prompt_share
        self._pace = Pace(prompt_delay, most=context.n_step)
        self.prefixes = Prefixes(context, prefixes or PrefixOptions(), tokenizer.vocab.eog)
        self._slots = Slots(context, self.max_text, self.prefixes)
        self._flights = Flights(context)
        self._ended = 0.0
        """End of the last step, in seconds."""
        self._verification: Verification | None = None
        if drafting is not None:
            self._verification = Verification(context, self._slots, drafting)

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
        """Maximum number of prompt tokens in the next step, if texts are written in it too."""
        return self._pace.chunk if self._share is None else self._share

    def check(self, request: Request) -> None:
        """Raises ContextError for a request that can never be served."""
        config = self.context.model.config
        first = config.n_encoder > 0  # the decoder's first token needs a cell
        require_fits(request.prompt, self.max_text - first, config.n_ctx_train)
        if config.n_encoder and request.prompt_logprobs is not None:
            raise ContextError("prompt_logprobs are of a decoder; an encoder reads this prompt")
        if config.diffusion is None and (options := request.sampling.of_diffusion):
            raise ContextError(
                "is of models that write by diffusion, and this one writes token by token; leave "
                "it out", argument=options[0],
            )  # fmt: skip
        images = self.context.input_rows
        ids = [id_ for id_ in request.prompt if id_ not in images]
        if len(ids) < len(request.prompt) and request.prompt_logprobs is not None:
            raise ContextError("prompt_logprobs are of tokens; leave them out beside an image")
        ids += request.sampling.logit_bias or ()
        if ids and not 0 <= min(ids) <= max(ids) < config.n_vocab:
            raise wrong_ids(config.n_vocab, min(ids), max(ids))
        self.context.model.scale_rows(request.adapters, request.control_vectors)

    def add(self, text: Ticket) -> None:
        """Queues a text; its request must have passed `check`."""
        n_unread = 1 if text.after is not None else self._slots.n_unread(text)
        self.waiting.add(text, n_unread, self._pace.cost)

    def step(self) -> bool:
        """Computes one batch and draws a token for every text in it; True if there is more to do.

        Where layers are on several machines, texts are in groups; see `Flights`."""
        overlapping = self._overlaps()
        if not overlapping:
            self.land()
        batch = self.schedule(overlapping)
        if overlapping:
            if batch.tokens:
                self._submit(batch)
            if self._flights.are_full or all(slot.in_flight for slot in self._slots.running):
                self._land_one()
        elif batch.tokens:
            self._compute(batch)
        return bool(self._slots.running or self.waiting)

    def schedule(self, overlapping: bool = False) -> StepBatch:
        """Gives slots to waiting texts, makes room, and packs the next tokens of running texts: of
        all, or if batches are `overlapping`, of the group whose turn it is. It may be empty."""
        start = perf_counter()
        self._take_turns()
        dropped = self._slots.shift()
        if self._verification is not None:
            for slot, at, n in dropped:
                self._verification.dropped(slot, at, n)
            self._verification.prepare()
        slots, n_most = self._slots.running, self.context.n_step
        if overlapping:
            slots = self._flights.next_group(slots)
            n_most = min(self.context.n_ubatch, self.context.n_batch)
        batch = pack(slots, n_most, self.prompt_chunk, delays=overlapping)
        batch.start = start
        return batch

    def _take_turns(self) -> None:
        """Ends cancelled texts, gives slots to waiting ones, and refuses those that are late."""
        self._drop_cancelled()
        self._admit()
        self._drop_late()  # not before: a step may take longer than a text may wait

    def run(self, batch: StepBatch, step: Step | None = None) -> NDArray[np.float32]:
        """Computes a batch, or waits for the step in flight that computes it. Returns its rows."""
        if step is not None:
            return step.collect()
        self._slots.make_room_for(batch.parts)
        rows = self.context.decode(batch)
        if self._verification is not None:
            self._verification.take(batch)
        return rows

    def postprocess(self, batch: StepBatch, rows: NDArray[np.float32]) -> None:
        """Draws a token for every text whose last token was in a batch, and checks its drafts."""
        for slot, n in batch.parts:
            slot.n_done += n
        for slot in batch.prompts:
            _text(slot).n_read = min(slot.n_done, len(_text(slot).request.prompt))
        self._slots.note_stops(batch.prompts)
        checks = self._verification.checks if self._verification is not None else {}
        for (slot, at), row in zip(batch.wanted, rows, strict=True):
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
        if checks and self._verification is not None:
            self._verification.settle(self.stats)

    def _compute(self, batch: StepBatch, step: Step | None = None) -> None:
        """Runs and postprocesses a batch, or the step that computes it, and learns from its time,
        which counts from the end of the step before on."""
        before = self.stats.generated_tokens
        n_prompt, n_texts, n_columns = batch.n_prompt, len(self._slots.running), len(batch.tokens)
        began, ended = perf_counter(), 0.0
        try:
            rows = self.run(batch, step)
        except AbortedError:
            raise
        except Exception as error:
            self._isolate(batch, error)
        else:
            ended = perf_counter()
            self.postprocess(batch, rows)
            if self._verification is not None and batch.prompts:
                self._verification.follow(batch)
        drawn = self.stats.generated_tokens - before
        now = perf_counter()
        seconds, self._ended = now - max(batch.start, self._ended), now
        self.stats.count_step(seconds, n_prompt, drawn)
        self._pace.learn(n_prompt, n_columns - n_prompt, seconds)
        if self._verification is not None and ended and not n_prompt:
            self._verification.learn(n_columns, n_texts, ended - began, seconds, drawn)

    def _isolate(self, batch: StepBatch, error: Exception) -> None:
        """Computes each text of a failed batch by itself, so that only those end that fail."""
        alone = len(batch.parts) == 1
        if self._verification is not None and self._verification.checks:
            self._verification.drop()
            alone = False  # it may go on without its draft
        for slot, n in batch.parts:
            if not self._slots.recover() and alone:
                self._end(slot, "error", error)
                return
            part = self._alone(slot, n)
            try:
                rows = self.run(part)
            except Exception as own:
                own.__context__ = error
                self._end(slot, "error", own)
            else:
                self.postprocess(part, rows)

    def _alone(self, slot: Slot, n: int) -> StepBatch:
        """The batch of a slot that had `n` tokens in a batch that failed."""
        part = StepBatch()
        part.add(slot, min(n, slot.n_left))
        return part

    # ---- batches in flight ----

    def _overlaps(self) -> bool:
        """Whether batches of groups of texts follow one another through the machines. Prompts alone
        are computed in ubatches that do."""
        running = self._slots.running
        if len(running) < 2 or self.context.most_in_flight < 2:
            return False
        if self._verification is not None and self._verification.may_draft():
            return False
        return any(slot.in_flight or slot.n_left == 1 for slot in running)

    def _submit(self, batch: StepBatch) -> None:
        """Begins to compute a batch beside others, or computes it after them."""
        try:
            self._slots.make_room_for(batch.parts)
            if self._flights.submit(batch):
                return
        except AbortedError:
            raise
        except Exception as error:
            self.land()
            self._isolate(batch, error)
            return
        self.land()
        self._compute(batch)

    def land(self) -> None:
        """Waits for the batches in flight and draws their tokens, so that the context can be
        used."""
        while self._flights:
            self._land_one()

    def _land_one(self) -> None:
        if self._flights:
            batch, step = self._flights.take()
            if not step.given_up:  # else its texts are packed again
                self._compute(batch, step)

    # ---- texts ----

    def cancel_all(self) -> None:
        """Ends every text as "cancelled"."""
        while self._flights:  # draws nothing from them
            batch, step = self._flights.take()
            try:
                step.collect()
            except Exception:  # the cache is as it was before the step
                continue
            for slot, n in batch.parts:
                slot.n_done += n
        for slot in list(self._slots.running):
            self._end(slot, "cancelled")
        for text in self.waiting:
            self.waiting.remove(text)
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

    def _drop_late(self) -> None:
        for text in self.waiting.late():
            self.waiting.remove(text)
            self.stats.late += 1
            seconds = self.waiting.options.max_wait
            why = f"the request has waited {seconds:g} s for its turn; try again later"
            self._tell(text, text.done("error", self.waiting.busy(why, len(self.waiting))))

    def _admit(self) -> None:
        for text in self.waiting if self._slots.has_idle else ():
            if text.after is not None and not text.after.prompt_done:
                continue
            if self._slots.waits_for(text) is not None:
                continue
            try:
                if not self._slots.admit(text):
                    break
            except Exception as error:
                self.waiting.remove(text)
                self._tell(text, text.done("error", error))
                continue
            self.waiting.start(text)
            self.stats.queue_seconds.add(text.times.started - text.times.asked)
            self.stats.reused_tokens += text.n_reused

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
        if self._verification is not None:
            self._verification.end(slot)
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
