"""`LLM`: a GGUF file on disk to generated text.

    llm = LLM("model.gguf")
    for piece in llm.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)

One text at a time; several at once are the work of `Context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, Unpack

from weft.errors import ContextError
from weft.execute import Progress
from weft.frontends.gguf import open_gguf
from weft.llm.context import Context
from weft.llm.model import Model
from weft.llm.options import PlanArguments
from weft.llm.sampling import (
    Sampler,
    SamplingOptions,
    SamplingParams,
    TokenLogprobs,
    token_logprobs,
)
from weft.llm.tokenizer import StopStrings, Tokenizer

__all__ = ["LLM", "FinishReason", "Stats"]

DEFAULT_N_CTX = 4096
"""Cells of the cache when the caller does not say; less where the model was trained for less."""

FinishReason = Literal["", "stop", "length", "context"]
"""Why text ended: the model's own end, a stop string or a constraint that is met; `max_tokens`;
or a full context. Empty while it goes on or when it was interrupted."""


@dataclass(slots=True)
class Stats:
    """Tokens and time of the last generation; the caller's time between pieces does not count."""

    n_prompt: int = 0
    n_cached: int = 0
    """Tokens of the prompt that were still in the cache, and so not computed."""
    prompt_seconds: float = 0.0
    n_generated: int = 0
    """Tokens drawn, the one that ended the text included."""
    generation_seconds: float = 0.0
    """Time of all tokens but the first, which the prompt's logits gave."""
    finish_reason: FinishReason = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each drawn token, the one that ended the text included, where they were asked for."""

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of prompt processing."""
        n = self.n_prompt - self.n_cached
        return n / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation."""
        n = max(self.n_generated - 1, 0)
        return n / self.generation_seconds if self.generation_seconds else 0.0


class LLM:
    """A model with a tokenizer and one context. One text at a time: a new `generate` ends the
    previous one."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        context_shift: bool = False,
        n_keep: int = 0,
        progress: Progress | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Opens a GGUF file. Weights in host memory are used in place, mapped from the file, or
        repacked for the kernels, see `Context`.

        `n_ctx`: tokens of prompt and text together (default: what the model was trained for, at
        most 4096). `context_shift`: a text goes on when the context is full, the older half of what
        follows the first `n_keep` tokens (and the token that begins every text) being dropped; see
        `Context.drop_oldest`. `devices`: names or backends, highest priority first (default: cpu).
        See `Context` for the other options.

        Raises FormatError for a file that is missing, no GGUF or of an unknown architecture,
        TokenizerError for an unknown tokenizer, ScheduleError for a placement that cannot be,
        OutOfMemoryError with needed and available bytes
        before anything is loaded."""
        file = open_gguf(path)
        self.model = Model(file)
        self.tokenizer = Tokenizer.from_gguf(file)
        if n_ctx is None and options.get("plan") is None:
            n_ctx = min(self.model.config.n_ctx_train, DEFAULT_N_CTX)
        options.setdefault("n_outputs", 1)
        self.context = Context(self.model, n_ctx, progress=progress, **options)
        if context_shift:
            self.context.require_movable()
            if not 0 <= n_keep < self.context.n_ctx - 1:
                raise ContextError(
                    f"n_keep is {n_keep}; it must be 0 to {self.context.n_ctx - 2}, so that there "
                    "is something to drop"
                )
        self._shifts = context_shift
        self._n_keep = n_keep
        self.stats = Stats()
        self._generation = 0

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, special=special)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        parse_special: bool = False,
        ignore_eos: bool = False,
        sampling: SamplingParams | None = None,
        logprobs: int | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[str]:
        """Continues `prompt` (text or token ids); yields the new text in pieces, whole characters.

        The text ends with the model's end token, before the first of the `stop` strings, after
        `max_tokens` tokens, or when the context is full (but see `context_shift`);
        `stats.finish_reason` says which.
        `ignore_eos`: end tokens do not end it. `parse_special`: see `tokenize`. `sampling`, or
        single fields of `SamplingParams` by name (these win), say how tokens are drawn. `logprobs`:
        keep log-probabilities in `stats.logprobs`, with those of this many likeliest tokens.

        Raises ContextError at once for arguments out of range, a constraint that cannot be met and
        a prompt longer than the context. What the previous text has in common with the prompt at
        its beginning is not computed again. Ctrl-C raises KeyboardInterrupt; the object can be used
        again."""
        sampler = Sampler(SamplingParams.combine(sampling, options), self.tokenizer)
        stops = StopStrings((stop,) if isinstance(stop, str) else tuple(stop))
        if max_tokens is not None and max_tokens < 1:
            raise ContextError(f"max_tokens is {max_tokens}; it must be 1 or more, or None")
        if logprobs is not None and logprobs < 0:
            raise ContextError(f"logprobs is {logprobs}; it must be 0 or more, or None")
        ids = (
            self.tokenize(prompt, parse_special=parse_special)
            if isinstance(prompt, str)
            else list(prompt)
        )
        if not ids:
            raise ContextError("the prompt has no tokens; give some text")
        if len(ids) > self.context.n_ctx:
            raise ContextError(
                f"the prompt has {len(ids)} tokens, but the context holds {self.context.n_ctx}; "
                f"shorten the prompt or make n_ctx larger (the model was trained for "
                f"{self.model.config.n_ctx_train})"
            )
        sampler.start(ids)
        return self._generate(ids, sampler, stops, max_tokens, ignore_eos, logprobs)

    def _kept_tokens(self, ids: Sequence[int]) -> int:
        """First tokens that stay when the context is shifted."""
        return max(self._n_keep, int(ids[0] == self.tokenizer.vocab.bos))

    def _generate(
        self,
        ids: list[int],
        sampler: Sampler,
        stops: StopStrings,
        max_tokens: int | None,
        ignore_eos: bool,
        logprobs: int | None,
    ) -> Iterator[str]:
        self._generation += 1
        generation = self._generation
        ends = frozenset[int]() if ignore_eos else self.tokenizer.vocab.eog
        context, stream = self.context, self.tokenizer.stream()
        stats = self.stats = Stats(n_prompt=len(ids))

        start = perf_counter()
        stats.n_cached = n_cached = context.reuse_prefix(0, ids)
        logits = context.decode(ids[n_cached:])[0]
        stats.prompt_seconds = perf_counter() - start
        n_past = len(ids)
        while True:
            token = sampler.sample(logits)
            stats.n_generated += 1
            if logprobs is not None:
                stats.logprobs.append(token_logprobs(logits, token, logprobs))
            if token in ends:
                stats.finish_reason = "stop"
                break
            sampler.accept(token)
            text, stopped = stops.push(stream.push(token))
            if text:
                yield text
                if generation != self._generation:
                    raise ContextError(
                        "another generate() on this LLM has taken the context over; finish one "
                        "before starting the next, or open the model twice"
                    )
            if stopped:
                stats.finish_reason = "stop"
                return
            if sampler.done:
                stats.finish_reason = "stop"
                break
            if stats.n_generated == max_tokens:
                stats.finish_reason = "length"
                break
            if n_past == context.n_ctx and not self._shifts:
                stats.finish_reason = "context"
                break
            start = perf_counter()
            if n_past == context.n_ctx:
                n_past -= context.drop_oldest(0, self._kept_tokens(ids))
            logits = context.decode((token,), (n_past,))[0]
            stats.generation_seconds += perf_counter() - start
            n_past += 1
        text, stopped = stops.push(stream.flush())
        text += "" if stopped else stops.flush()
        if text:
            yield text
