"""`DiffusionWriter` writes texts by diffusion: each step computes whole texts, without a cache, and
writes some of their masks (`sampling/diffusion.py`).

What is settled, up to the first mask, goes to the reader. A text that has ended there, by an end
token or a stop string, takes no further steps. Cells of the context are used during a step alone,
so that texts take turns: each step has as many of them as fit, those that waited longest.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bounds import DIFFUSION_TOKENS
from weft.errors import ContextError, ContextFull
from weft.llm.compute.context import Context
from weft.llm.compute.steps import Step
from weft.llm.config_parts import DiffusionConfig
from weft.llm.engine.batches import StepBatch
from weft.llm.engine.request import Reason, Request, Ticket
from weft.llm.engine.slots import Slot
from weft.llm.engine.writer import Writer
from weft.llm.sampling.diffusion import LENGTH, Canvas, n_computed, require_diffusion
from weft.llm.tokenizers.tokenizer import Tokenizer


class DiffusionWriter(Writer):
    """Writes many texts by diffusion, some masks of several in every step."""

    def __init__(self, context: Context, tokenizer: Tokenizer, **options: Any) -> None:
        """Takes the arguments of `Writer`. Raises ContextError for a vocabulary without a
        mask."""
        super().__init__(context, tokenizer, **options)
        config, mask = context.model.config.diffusion, tokenizer.vocab.special.get("mask")
        if mask is None or not 0 <= mask < context.model.config.n_vocab:
            raise ContextError(
                "the vocabulary names no mask, which texts by diffusion begin with; give its id as "
                "the metadata tokenizer.ggml.mask_token_id"
            )
        assert config is not None
        self._usual: DiffusionConfig = config
        self._mask = mask
        self._most = min(context.n_ubatch, context.n_batch, context.n_ctx_seq)
        """Maximum number of tokens of a step."""
        self.max_text = min(self.max_text, self._most)
        self._canvases: dict[Slot, Canvas] = {}
        self._n_steps = 0

    def check(self, request: Request) -> None:
        """Raises ContextError for a request that can never be served."""
        n, most = len(request.prompt), self.context.n_ubatch
        if most < n <= self.context.n_ctx_seq:
            raise ContextFull(
                f"the prompt has {n} tokens, and this model, which reads a whole text at once (by "
                f"diffusion), has `n_ubatch` {most}; shorten the prompt or leave `n_ubatch` out"
            )
        super().check(request)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(request, name) is not None:
                raise ContextError(
                    "are of models that write token by token, and this one writes in any order (by "
                    "diffusion); leave them out", argument=name,
                )  # fmt: skip
        if request.n_keep is not None:
            raise ContextError(
                "this model writes in any order (by diffusion), so that its texts cannot go on "
                "when the context is full; leave out `context_shift`"
            )
        require_diffusion(request.sampling)
        n_steps, n_rows = n_computed(request.sampling, self._usual, self._length(request))
        if n_rows > self.context.n_outputs:
            raise ContextError(
                f"each step of this text reads {n_rows} rows of logits, and the context has "
                f"{self.context.n_outputs}; make `max_tokens` smaller, or write in blocks with "
                "diffusion_block_length"
            )
        twice = 2 if request.sampling.diffusion_cfg_scale else 1
        n = twice * n_steps * (len(request.prompt) + self._length(request))
        if n > DIFFUSION_TOKENS:
            raise ContextError(
                f"the {n_steps} steps of this text compute {n:,} tokens, and may compute "
                f"{DIFFUSION_TOKENS:,}; make diffusion_steps or `max_tokens` smaller"
            )

    def schedule(self, overlapping: bool = False) -> StepBatch:
        """Gives slots to waiting texts, and packs those that had no step for the longest time."""
        batch = StepBatch(start=perf_counter())
        self._take_turns()
        self._n_steps += 1
        for slot in sorted(self._slots.running, key=lambda slot: slot.turn):
            canvas = self._canvas(slot)
            if not len(canvas.wanted):  # nothing is asked for
                self._end(slot, "length")
                continue
            n, n_rows = len(batch.tokens) + len(canvas.ids), len(batch.wanted) + len(canvas.wanted)
            if n <= self._most and n_rows <= self.context.n_outputs:
                self._add(batch, slot, canvas)
        return batch

    def run(self, batch: StepBatch, step: Step | None = None) -> NDArray[np.float32]:
        """Computes a batch, and the texts with guidance a second time, without their prompts."""
        rows = self._decoded(batch)
        guided, at, places = StepBatch(), 0, []
        for slot, _ in batch.parts:
            canvas, scale = self._canvases[slot], _scale(slot)
            if scale:
                self._add(guided, slot, canvas, prompt=False)
                places.append((slice(at, at + len(canvas.wanted)), scale))
            at += len(canvas.wanted)
        if places:
            others, at = self._decoded(guided), 0
            for place, scale in places:
                own = others[at : at + place.stop - place.start]
                rows[place] = own + (1.0 + scale) * (rows[place] - own)
                at += len(own)
        return rows

    def postprocess(self, batch: StepBatch, rows: NDArray[np.float32]) -> None:
        """Writes masks of every text in a batch, and tells what is settled."""
        at = 0
        for slot, _ in batch.parts:
            canvas, text = self._canvases[slot], slot.text
            own = rows[at : at + len(canvas.wanted)]
            at += len(own)
            assert text is not None
            text.n_read, text.prompt_done = canvas.start, True
            try:
                canvas.write(own)
                self._tell_settled(slot, text, canvas)
            except Exception as error:
                self._end(slot, "error", error)

    def _tell_settled(self, slot: Slot, text: Ticket, canvas: Canvas) -> None:
        """Tells the tokens that are settled since the step before, and ends a text behind them."""
        growth, piece = text.growth, ""
        for token in canvas.answer[growth.n_drawn : canvas.n_settled].tolist():
            piece += growth.append(token)
            self.stats.count_token(text.times)
            if growth.finish_reason:
                break
        if not growth.finish_reason and not len(canvas.wanted):
            asked = text.request.max_tokens
            whole = len(canvas.answer) >= (LENGTH if asked is None else asked)
            piece += growth.finish("length" if whole else "context")
        if piece:
            self._give(text, piece)
        if growth.finish_reason:
            self._end(slot, growth.finish_reason)

    def _length(self, request: Request) -> int:
        """Number of tokens of an answer: as many as asked for, or as there is room."""
        asked = LENGTH if request.max_tokens is None else request.max_tokens
        return min(asked, max(self.max_text - len(request.prompt), 0))

    def _canvas(self, slot: Slot) -> Canvas:
        canvas, text = self._canvases.get(slot), slot.text
        if canvas is None:
            assert text is not None
            request = text.request
            canvas = self._canvases[slot] = Canvas(
                request.prompt, self._length(request), request.sampling, mask=self._mask,
                usual=self._usual, ends=text.growth.ends, min_tokens=request.min_tokens,
            )  # fmt: skip
        return canvas

    def _add(self, batch: StepBatch, slot: Slot, canvas: Canvas, *, prompt: bool = True) -> None:
        """Adds a text to a batch, with masks in place of its prompt if that is left out."""
        n = len(canvas.ids)
        wants = np.zeros(n, np.bool_)
        wants[canvas.rows] = True
        shown = 0 if prompt else canvas.start
        batch.tokens += [self._mask] * shown + canvas.ids[shown:].tolist()
        batch.positions += range(n)
        batch.seqs += [(slot.seq,)] * n
        batch.outputs += wants.tolist()
        batch.wanted += [(slot, at) for at in canvas.wanted.tolist()]
        batch.parts.append((slot, n))
        if slot.text is not None and not slot.text.prompt_done:
            batch.n_prompt += canvas.start
        slot.turn = self._n_steps

    def _decoded(self, batch: StepBatch) -> NDArray[np.float32]:
        self._slots.make_room_for(batch.parts)
        try:
            return self.context.decode(batch)
        finally:
            for slot, _ in batch.parts:
                self.context.cache.seq_rm(slot.seq)

    def _alone(self, slot: Slot, n: int) -> StepBatch:
        part = StepBatch()
        self._add(part, slot, self._canvas(slot))
        return part

    def _overlaps(self) -> bool:
        return False

    def _end(self, slot: Slot, reason: Reason, error: Exception | None = None) -> None:
        self._canvases.pop(slot, None)
        super()._end(slot, reason, error)


def _scale(slot: Slot) -> float:
    """The scale of the guidance of a text; 0: it has none."""
    return 0.0 if slot.text is None else slot.text.request.sampling.diffusion_cfg_scale
