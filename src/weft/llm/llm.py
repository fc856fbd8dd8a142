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

from weft.backends.base import Backend
from weft.backends.cpu import ThreadOptions
from weft.errors import ContextError
from weft.execute import Progress
from weft.frontends.gguf import open_gguf
from weft.llm.chat import ChatTemplate, Message
from weft.llm.config import Pooling
from weft.llm.context import Context
from weft.llm.draft import Draft, FinishReason, Stats
from weft.llm.generate_options import GenerateOptions
from weft.llm.hub import local_path
from weft.llm.kept import KeptTokens
from weft.llm.model import Model
from weft.llm.perplexity import Perplexity, score_chunks
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.side import SideContexts
from weft.llm.together import Text, write_together
from weft.llm.tokenizer import StopStrings, Tokenizer
from weft.llm.turns import Turns
from weft.schedule import Policy, Profile

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
        n_ubatch: int | None = None,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        threads: ThreadOptions | None = None,
        devices: Sequence[str | Backend] | None = None,
        n_gpu_layers: int | None = None,
        place: Mapping[str, str] | None = None,
        plan: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        fit: bool = False,
        memory: Mapping[str, int] | None = None,
        policy: Policy = "ggml",
        profile: Profile | str | os.PathLike[str] | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        flash: bool | None = None,
        activations: Literal["native", "f32", "bf16"] = "native",
        repack: bool | None = None,
        progress: Progress | None = None,
        rewrites: Sequence[str] | None = None,
        chat_template: str | ChatTemplate | None = None,
    ) -> None:
        """Opens a GGUF file, or a model by name (`hf:owner/name:quant`, see `weft.llm.hub`).
        Weights in host memory are used in place, mapped from the file, or repacked for the kernels,
        see `Context`.

        `n_ctx`: tokens of prompt and text together (default: what the model was trained for, at
        most 4096). `n_seq_max`: how many texts of a list are written at the same time. `devices`:
        names or backends, highest priority first (default: cpu). `chat_template`: instead of the
        model's own, Jinja text. See `Context` for the other options.

        Raises FormatError for a file that is missing, no GGUF or of an unknown architecture,
        TokenizerError for an unknown tokenizer, ScheduleError for a placement that cannot be,
        OutOfMemoryError with needed and available bytes
        before anything is loaded."""
        file = open_gguf(local_path(path))
        self.model = Model(file)
        self.tokenizer = Tokenizer.from_gguf(file)
        if n_ctx is None and plan is None:
            n_ctx = min(self.model.config.n_ctx_train, DEFAULT_N_CTX)
        embeds = self.model.architecture.embeds
        if n_ubatch is None and not self.model.config.causal:
            n_ubatch = n_ctx  # a text is computed at once
        options: dict[str, Any] = {
            "n_ubatch": n_ubatch,
            "type_k": type_k,
            "type_v": type_v,
            "flash": flash,
            "n_threads": n_threads,
            "n_threads_batch": n_threads_batch,
            "threads": threads,
            "devices": devices,
            "activations": activations,
            "n_gpu_layers": n_gpu_layers,
            "place": place,
            "plan": plan,
            "fit": fit,
            "memory": memory,
            "policy": policy,
            "profile": profile,
            "repack": repack,
            "progress": progress,
            "rewrites": rewrites,
        }
        self.context = Context(
            self.model,
            n_ctx,
            n_outputs=None if embeds else n_seq_max,
            n_seq_max=None if n_seq_max == 1 else n_seq_max,
            **options,
        )
        self.stats = Stats()
        self._chat_template = chat_template
        self._warned = False
        self._turns = Turns()
        self._kept = KeptTokens(self.context)
        self._side = SideContexts(self.context, options)

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
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        parse_special: bool = False,
        ignore_eos: bool = False,
        cache_prompt: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[str] | list[str]:
        """Continues `prompt` (text or token ids); yields the new text in pieces, whole characters.
        A list of prompts gives a list of texts, written together as far as the context has
        sequences (`n_seq_max`) and cells for them (a prompt and `max_tokens` each).

        The text ends with the model's end token, before the first of the `stop` strings, after
        `max_tokens` tokens, or when the context is full; `stats.finish_reason` says which.
        `ignore_eos`: end tokens do not end it. `parse_special`: see `tokenize`. `cache_prompt`:
        what the prompt has in common with the text before, from its first token on, is not computed
        again (logits may then differ in their last bits). `progress(done, total)` is called with
        prompt tokens while they are computed. The other arguments are those of `SamplingParams`.

        Raises ContextError at once for arguments out of range, a prompt longer than the context,
        and a model that makes embeddings only. Ctrl-C raises KeyboardInterrupt; the object can be
        used again."""
        if self.context.embeddings:
            raise ContextError("this model makes embeddings, no text; use embed")
        params = SamplingParams(temperature, top_k, top_p, min_p, seed)
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        if max_tokens is not None and max_tokens < 1:
            raise ContextError(f"max_tokens is {max_tokens}; it must be 1 or more, or None")

        def draft(ids: Sequence[int]) -> Draft:
            return Draft(
                Sampler(params),
                self.tokenizer,
                StopStrings(strings),
                ends=frozenset() if ignore_eos else self.tokenizer.vocab.eog,
                max_tokens=max_tokens,
                room=self.context.n_ctx - len(ids),
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
                f"shorten the prompt or make n_ctx larger (the model was trained for "
                f"{self.model.config.n_ctx_train})"
            )
        return ids

    def _generate(
        self, ids: list[int], draft: Draft, cache_prompt: bool, progress: Progress | None
    ) -> Iterator[str]:
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=len(ids))
            start = perf_counter()
            if cache_prompt:
                stats.n_cached = self._kept.reuse(ids)
            else:
                self._kept.clear()
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
                logits = self.context.decode((draft.token,), (n_past,))[0]
                stats.generation_seconds += perf_counter() - start
                self._kept.keep((draft.token,))
                n_past += 1
        finally:
            self._turns.leave(turn)

    def _compute(
        self, ids: Sequence[int], start: int, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits behind `ids`, of which `start` are in the cache; a ubatch at a time, so that what
        is done is kept when it is interrupted."""
        context, n = self.context, len(ids)
        step = min(context.n_ubatch, context.n_batch)
        rows = np.empty((0, 0), np.float32)
        for at in range(start, n, step):
            part = ids[at : at + step]
            wanted = np.arange(at, at + len(part)) == n - 1
            rows = context.decode(part, range(at, at + len(part)), outputs=wanted)
            self._kept.keep(part)
            if progress is not None:
                progress(at + len(part) - start, n - start)
        found: NDArray[np.float32] = rows[0]
        return found

    def _generate_all(self, texts: list[Text]) -> list[str]:
        turn = self._turns.take()
        try:
            stats = self.stats = Stats(n_prompt=sum(len(t.prompt) for t in texts))
            start = perf_counter()
            self._kept.clear()
            write_together(self.context, texts)
            stats.generation_seconds = perf_counter() - start
            stats.n_generated = sum(t.draft.n_drawn for t in texts)
            stats.finish_reason = texts[-1].draft.finish_reason
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
        `variables`: for the template, see `ChatTemplate.render`. `options`: those of `generate`. Of
        a conversation only what is new is computed, unless `cache_prompt` is false.

        Raises ChatError for messages that the template refuses, and as `generate`. Warns once
        where the model has no template and ChatML is used."""
        prompt = self.chat_prompt(messages, tools=tools, variables=variables)
        stop = options.get("stop", ())
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        options["stop"] = strings + self.chat_template.stops
        options.setdefault("cache_prompt", True)
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
        ids = self.tokenize(text, add_special=False, parse_special=True)
        vocab = self.tokenizer.vocab  # most templates write BOS themselves
        return [vocab.bos, *ids] if vocab.add_bos and vocab.bos not in ids[:1] else ids  # type: ignore[list-item]

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

        A model that makes text needs a second context for it, which is made with the first call and
        kept. Raises ContextError for a text without tokens or longer than the context, and for a
        list with pooling "none"."""
        pooling = pooling or ("mean" if self.model.config.pooling == "none" else None)
        texts = list(cast("list[str]", text)) if _is_many(text) else [cast(str, text)]
        if _is_many(text) and pooling == "none":
            raise ContextError('pooling "none" gives a row for each token; give texts one by one')
        prompts = [self._prompt(t, False) for t in texts]
        with self._side.embedding() as context:
            rows = np.stack([context.embed(ids, pooling) for ids in prompts])
        if normalize:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
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
        and kept. Raises ContextError for a text of less than two chunks."""
        ids = self.tokenize(text, parse_special=parse_special) if isinstance(text, str) else text
        vocab = self.tokenizer.vocab
        bos = vocab.bos if vocab.add_bos else None
        with self._side.scoring(n_ctx) as context:
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
