"""`LLM`: a GGUF file on disk to generated text.

    llm = LLM("model.gguf")
    for piece in llm.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)
    print(llm.chat([{"role": "user", "content": "Hello"}]))

Several sequences with a cache of one's own keeping are the work of `Context`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import Progress, TensorCallback
from weft.frontends.gguf import open_gguf
from weft.llm.chat import ChatTemplate, Message, prompt_tokens
from weft.llm.config import Pooling
from weft.llm.context import Context
from weft.llm.draft import Draft, FinishReason, Stats
from weft.llm.embed import MOST, embed_texts, sequences_for, unit_rows
from weft.llm.generate_options import GenerateOptions
from weft.llm.hub import local_path
from weft.llm.model import Model
from weft.llm.options import PlanArguments
from weft.llm.perplexity import Perplexity, chunks_at_once, score_chunks
from weft.llm.sampling import Sampler, SamplingOptions, SamplingParams
from weft.llm.side import SideContexts
from weft.llm.stop_strings import StopStrings
from weft.llm.together import Text, write_together
from weft.llm.tokenizer import Tokenizer
from weft.llm.turns import Turns

__all__ = ["LLM", "FinishReason", "Stats"]

DEFAULT_N_CTX = 4096
"""Cells of the cache when the caller does not say; less where the model was trained for less."""


class LLM:
    """A model with a tokenizer and one context.

    Threads may share it: one text is written at a time, and calls of other threads wait until it is
    finished, in the order that they came. Within a thread a new `generate` ends the one before.
    `stats` are those of the last call of any thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        context_shift: bool = False,
        n_keep: int = 0,
        chat_template: str | ChatTemplate | None = None,
        progress: Progress | None = None,
        eval_callback: TensorCallback | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        """Opens a GGUF file, or a model by name (`hf:owner/name:quant`, see `weft.llm.hub`).
        Weights in host memory are used in place, mapped from the file, or repacked for the kernels,
        see `Context`.

        `n_ctx`: tokens of prompt and text together (default: what the model was trained for, at
        most 4096). `context_shift`: a text goes on when the context is full, the older half of what
        follows the first `n_keep` tokens (and the token that begins every text) being dropped; see
        `Context.drop_oldest`. `chat_template`: instead of the model's own, Jinja text. `n_seq_max`:
        how many texts of a list are written at the same time. `eval_callback`: sees tensors as
        they are computed, see `Context.set_eval_callback`. `devices`: names or backends, highest
        priority first (default: cpu). See `Context` for the other options.

        Raises FormatError for a file that is missing, no GGUF or of an unknown architecture,
        TokenizerError for an unknown tokenizer, ScheduleError for a placement that cannot be,
        OutOfMemoryError with needed and available bytes
        before anything is loaded."""
        file = open_gguf(local_path(path))
        self.model = Model(file)
        self.tokenizer = Tokenizer.from_gguf(file)
        if n_ctx is None and options.get("plan") is None:
            n_ctx = min(self.model.config.n_ctx_train, DEFAULT_N_CTX)
        if options.get("n_ubatch") is None and not self.model.config.causal:
            options["n_ubatch"] = n_ctx  # a text is computed at once
        side = cast("dict[str, Any]", {**options})
        if self.model.architecture.embeds:
            if options.get("plan") is None:
                options.setdefault("n_seq_max", sequences_for(self.model.config, MOST))
        else:
            options.setdefault("n_outputs", options.get("n_seq_max") or 1)
        self.context = Context(
            self.model, n_ctx, progress=progress, eval_callback=eval_callback, **options
        )
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
        self._chat_template = chat_template
        self._warned = False
        self._turns = Turns()
        self._side = SideContexts(self.context, side)

    @property
    def chat_template(self) -> ChatTemplate:
        """How messages become text: the model's own template unless another was given."""
        if not isinstance(self._chat_template, ChatTemplate):
            own = ChatTemplate.from_gguf(self.model.file, self.tokenizer)
            if self._chat_template is not None:
                own = ChatTemplate(self._chat_template, bos=own.bos, eos=own.eos)
            self._chat_template = own
        return self._chat_template

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, special=special)

    @overload
    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> Iterator[str]: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Unpack[GenerateOptions]
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[list[int]],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        parse_special: bool = False,
        ignore_eos: bool = False,
        special: bool = False,
        sampling: SamplingParams | None = None,
        logprobs: int | None = None,
        cache_prompt: bool = True,
        progress: Progress | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[str] | list[str]:
        """Continues `prompt` (text or token ids); yields the new text in pieces, whole characters.
        A list of prompts gives a list of texts, written together as far as the context has
        sequences (`n_seq_max`) and cells for them (a prompt and `max_tokens` each).

        The text ends with the model's end token, before the first of the `stop` strings, after
        `max_tokens` tokens, or when the context is full (but see `context_shift`, of single
        prompts); `stats.finish_reason` says which. `ignore_eos`: end tokens do not end it.
        `special`: control tokens that are drawn are text, except those that end it.
        `parse_special`: see `tokenize`. `sampling`, or single fields of `SamplingParams` by name
        (these win), say how tokens are drawn. `logprobs`: keep log-probabilities in
        `stats.logprobs`, with those of this many likeliest tokens. `cache_prompt`: what the prompt
        has in common with the text before, from its first token on, is not computed again (logits
        may then differ in their last bits). `progress(done, total)` is called with prompt tokens
        while they are computed.

        Raises ContextError at once for arguments out of range, a constraint that cannot be met, a
        prompt longer than the context, and a model that makes embeddings only. Ctrl-C raises
        KeyboardInterrupt; the object can be used again."""
        if self.context.embeddings:
            raise ContextError("this model makes embeddings, no text; use embed")
        params = SamplingParams.combine(sampling, options)
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        if max_tokens is not None and max_tokens < 1:
            raise ContextError(f"max_tokens is {max_tokens}; it must be 1 or more, or None")
        if logprobs is not None and logprobs < 0:
            raise ContextError(f"logprobs is {logprobs}; it must be 0 or more, or None")
        shifts = self._shifts and not _is_many(prompt)

        def draft(ids: Sequence[int]) -> Draft:
            sampler = Sampler(params, self.tokenizer)
            sampler.start(ids)
            return Draft(
                sampler,
                self.tokenizer,
                StopStrings(strings),
                ends=frozenset() if ignore_eos else self.tokenizer.vocab.eog,
                max_tokens=max_tokens,
                room=None if shifts else self.context.n_ctx - len(ids),
                logprobs=logprobs,
                special=special,
            )

        if not _is_many(prompt):
            ids = self._prompt(cast("str | Sequence[int]", prompt), parse_special)
            return self._generate(ids, draft(ids), cache_prompt, progress)
        prompts = [self._prompt(p, parse_special) for p in cast("list[str]", prompt)]
        n_ctx = self.context.n_ctx
        new = n_ctx if max_tokens is None else max_tokens
        return self._generate_all([Text(p, draft(p), min(n_ctx, len(p) + new)) for p in prompts])

    def _prompt(self, prompt: str | Sequence[int], parse_special: bool) -> list[int]:
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
                f"shorten the prompt or make n_ctx (-c) larger (the model was trained for "
                f"{self.model.config.n_ctx_train})"
            )
        return ids

    def _generate(
        self, ids: list[int], draft: Draft, cache_prompt: bool, progress: Progress | None
    ) -> Iterator[str]:
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=len(ids), logprobs=draft.logprobs)
            context = self.context
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
                    if not self._turns.holds(turn):
                        raise ContextError(
                            "another generate() on this LLM has taken the context over; finish one "
                            "before starting the next, or open the model twice"
                        )
                if draft.finish_reason:
                    return
                start = perf_counter()
                if n_past == context.n_ctx:
                    n_past -= context.drop_oldest(0, self._kept_tokens(ids))
                logits = context.decode((draft.token,), (n_past,))[0]
                stats.generation_seconds += perf_counter() - start
                n_past += 1
        finally:
            self._turns.leave(turn)

    def _kept_tokens(self, ids: Sequence[int]) -> int:
        """First tokens that stay when the context is shifted."""
        return max(self._n_keep, int(ids[0] == self.tokenizer.vocab.bos))

    def _compute(
        self, ids: Sequence[int], start: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits behind `ids`, of which `start` are in the cache; a step at a time, so that what
        is done is kept when it is interrupted."""
        context, n = self.context, len(ids)
        step = context.n_step
        rows = np.empty((0, 0), np.float32)
        for at in range(start, n, step):
            part = ids[at : at + step]
            wanted = np.arange(at, at + len(part)) == n - 1
            rows = context.decode(part, range(at, at + len(part)), outputs=wanted)
            if progress is not None:
                progress(at + len(part) - start, n - start)
        found: NDArray[np.float32] = rows[0]
        return found

    def _generate_all(self, texts: list[Text]) -> list[str]:
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=sum(len(t.prompt) for t in texts))
            start = perf_counter()
            write_together(self.context, texts)
            stats.generation_seconds = perf_counter() - start
            stats.n_generated = sum(t.draft.n_drawn for t in texts)
            stats.finish_reason = texts[-1].draft.finish_reason
            stats.logprobs = [row for t in texts for row in t.draft.logprobs]
            return [t.text for t in texts]
        finally:
            self._turns.leave(turn)

    @overload
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> str: ...

    @overload
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Iterator[str]: ...

    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str | Iterator[str]:
        """The model's answer to `messages`: a text, or its pieces with `stream`.

        `messages`: `{"role": "user", "content": "..."}` and so on, see `weft.llm.chat`. `tools`,
        `variables`: for the template, see `ChatTemplate.render`; what the model says of tools is
        part of the text, control tokens included. `options`: those of `generate`. Of a conversation
        only what is new is computed, unless `cache_prompt` is false.

        Raises ChatError for messages that the template refuses, and as `generate`. Warns once
        where the model has no template and ChatML is used."""
        prompt = self.chat_prompt(messages, tools=tools, variables=variables)
        stop = options.get("stop", ())
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        options["stop"] = strings + self.chat_template.stops
        options.setdefault("special", bool(tools))
        pieces = self.generate(prompt, **options)
        return pieces if stream else "".join(pieces)

    def chat_prompt(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens that `chat` continues. Control tokens that stand in messages count as such, as
        everywhere with chat templates."""
        template = self.chat_template
        if template.is_fallback and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.model.file.path.name} has no chat template; ChatML is used, which it may "
                "not know",
                stacklevel=3,
            )
        text = template.render(messages, tools=tools, **(variables or {}))
        return prompt_tokens(self.tokenizer, text)

    def embed(
        self,
        text: str | Sequence[int] | list[str] | list[list[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> NDArray[np.float32]:
        """The embedding of a text [n_embd], of a list of texts [n_texts, n_embd]; with pooling
        "none" of every token [n_tokens, n_embd], of one text only.

        `pooling`: see `Context.embed`; default: the model's, the mean where it has none.
        `normalize`: to length 1, so that a dot product is the cosine.

        Texts of a list are computed together as far as a ubatch holds them. A model that makes text
        needs a second context for it (its weights are shared), which is made with the first call
        and kept.

        Raises ContextError for a text without tokens or longer than the context, and for a list
        with pooling "none"."""
        pooling = pooling or ("mean" if self.model.config.pooling == "none" else None)
        texts = list(cast("list[str]", text)) if _is_many(text) else [cast(str, text)]
        if _is_many(text) and pooling == "none":
            raise ContextError('pooling "none" gives a row for each token; give texts one by one')
        prompts = [self._prompt(t, False) for t in texts]
        with self._side.embedding() as context:
            rows = np.stack(embed_texts(context, prompts, pooling))
        if normalize:
            rows = unit_rows(rows)
        return rows if _is_many(text) else np.asarray(rows[0])

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        n_ctx: int = 512,
        n_chunks: int | None = None,
        parse_special: bool = False,
    ) -> Perplexity:
        """How well the model predicts `text`, by llama.cpp's method: see `weft.llm.perplexity`.

        `n_ctx`: tokens of a chunk, `n_chunks`: at most so many. A second context is made for it
        (weights are shared) and kept. Raises ContextError for a text of less than two chunks."""
        ids = self.tokenize(text, parse_special=parse_special) if isinstance(text, str) else text
        vocab = self.tokenizer.vocab
        bos = vocab.bos if vocab.add_bos else None
        total = len(ids) // max(n_ctx, 1) if n_chunks is None else n_chunks
        n_seq = chunks_at_once(self.model.config, max(n_ctx, 1), self.context.n_ubatch, total)
        with self._side.scoring(n_ctx, n_seq) as context:
            *_, last = score_chunks(context, ids, n_ctx, bos=bos, n_chunks=n_chunks)
        return last


def _is_many(prompt: object) -> bool:
    """Whether it is a list of texts, or of lists of ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and isinstance(prompt[0], str | Sequence)
    )
