"""`TextModel`: what `LLM` and `AsyncLLM` share: an open model, and requests made from prompts and
conversations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, cast

from weft.errors import ArgumentError, ContextError, ErrorWarning, warn
from weft.execute import TensorCallback
from weft.llm.answers import AnswerFormat, AnswerParser
from weft.llm.answers.harmony import HarmonyParser
from weft.llm.cache.prefix_options import PrefixArguments, prefix_options
from weft.llm.chat.messages import Message
from weft.llm.chat.template import ChatTemplate, prompt_tokens
from weft.llm.compute.context import Context
from weft.llm.engine.request import Request
from weft.llm.generate_options import GenerateOptions, request_of, stop_strings
from weft.llm.model import Model
from weft.llm.opening import Loaded, ModelArguments, load_model, require_source
from weft.llm.planning.explain import (
    html_of,
    memory_lines,
    memory_rows,
    placement_lines,
    plan_for,
)
from weft.llm.planning.options import LLM_OPTIONS, LLMPlanArguments
from weft.llm.prompts import prompt_ids, require_fits
from weft.llm.senses.media import mark_media
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.notebook import in_notebook
from weft.options import plain_values, require_options

if TYPE_CHECKING:
    from weft.llm.multimodal import Hearing, Senses, Sight

Tools = Sequence[Mapping[str, Any]]
Asked = tuple[Request, AnswerParser | HarmonyParser | None]
"""A request, and what splits its answer; None: all of it is the text."""


class LLMArguments(LLMPlanArguments, PrefixArguments, ModelArguments, total=False):
    """The arguments of `LLM` besides the path; see `LLM_OPTIONS`."""

    n_ctx: int | None
    context_shift: bool
    n_keep: int
    chat_template: str | ChatTemplate | None
    eval_callback: TensorCallback | None


class TextModel:
    """A model with a tokenizer and one context."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        """Opens and loads the model; see `LLM`. `options` may have `repack_later` of `Context`."""
        name = type(self).__name__
        require_options(name, options, (*LLM_OPTIONS, "repack_later"), "help(weft.LLM)")
        options = plain_values(LLMArguments, options)
        self._prefixes, others = prefix_options(options)
        self._shifts = others.pop("context_shift", False)
        self._n_keep = others.pop("n_keep", 0)
        self._template = others.pop("chat_template", None)
        require_source(self._template)
        self._warned = False
        loaded = load_model(path, others)
        self._loaded: Loaded | None = loaded
        _warn_of_length(loaded.context, options.get("n_seq_max") or 1)
        if self._shifts:
            _require_shifts(loaded.context, self._n_keep)

    def _open(self) -> Loaded:
        if self._loaded is None:
            raise ContextError(f"this {type(self).__name__} is closed; open the model again")
        return self._loaded

    def explain(
        self, *, tokens: int | None = None, brief: bool = False, width: int | None = None
    ) -> str:
        """Describes where everything of the model is and why, as `weft explain` does: splits, the
        device of each op, why other devices refused it, and the bytes of every buffer.

        `tokens` selects the plan for batches of this number of tokens (None: the largest). `brief`
        leaves out the ops. Lines are broken at `width` characters (None: nowhere). Raises
        ContextError for a number of tokens that no batch has."""
        context = self.context
        senses, kept = self._open().senses, self._prefixes
        rows = memory_rows(context.plan, context.memory.scratch, kept)
        # only here, as most programs need none of it
        from weft.llm.planning.overview import overview, overview_lines

        about = overview(context.plan, rows, plan_for(context.plan, tokens))
        lines = [*overview_lines(about, width or 80), ""]
        lines += placement_lines(context.plan, tokens=tokens, width=width, nodes=not brief)
        towers = [] if senses is None else senses.about()
        memory = memory_lines(context.plan, context.memory.scratch, kept)
        for name, own in self.draft_contexts.items():
            memory += ["", f"{name} {own.model.file.path.name}"]
            memory += memory_lines(own.plan, own.memory.scratch)
        return "\n".join([*lines, "", *memory, *towers])

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: open the model in each process"
        )

    def __repr__(self) -> str:
        if self._loaded is None:
            return f"<{type(self).__name__}, closed>"
        context = self._loaded.context
        devices = ", ".join(backend.name for backend in context.plan.backends)
        where = f"{context.n_ctx} tokens of context on {devices}"
        return f"<{type(self).__name__} {self._loaded.opening.model.summary()}; {where}>"

    def _repr_html_(self) -> str:
        if self._loaded is None:
            return escape(repr(self))
        context = self._loaded.context
        html = html_of(context.plan, context.memory.scratch, context.program, repr(self))
        return in_notebook(self, html)

    @property
    def model(self) -> Model:
        """The contents of the file. Raises ContextError after `close`."""
        return self._open().opening.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Converts text to token ids and back. Raises ContextError after `close`."""
        return self._open().opening.tokenizer

    @property
    def context(self) -> Context:
        """The context that computes. Raises ContextError after `close`."""
        return self._open().context

    @property
    def draft_contexts(self) -> dict[str, Context]:
        """The contexts of models that draft, by what they are; empty without such models. Raises
        ContextError after `close`."""
        return self._open().draft_contexts

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that turns messages into text: the option `chat_template`, or the model's
        own."""
        opening = self._open().opening
        if not isinstance(self._template, ChatTemplate):
            self._template = opening.template(self._template)
        return self._template

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of `text`; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; see `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, special=special)

    def chat_prompt(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids that `chat` continues. Names of control tokens in messages are read as
        these tokens, as usual with chat templates."""
        return self._rendered(messages, tools, variables)[0]

    @property
    def senses(self) -> Senses:
        """Makes prompts with images and sounds. Raises ContextError for a model without
        `mmproj`."""
        senses = self._open().senses
        if senses is None:
            raise ContextError(
                f"{self.model.file.path.name} was opened without a tower for images or sound; "
                "give its file as `mmproj`"
            )
        return senses

    @property
    def sight(self) -> Sight:
        """Makes rows of images. Raises ContextError for a model without a tower for images."""
        from weft.llm.multimodal import Sight

        sight = self.senses.of("image")
        assert isinstance(sight, Sight)
        return sight

    @property
    def hearing(self) -> Hearing:
        """Makes rows of sounds. Raises ContextError for a model without a tower for sound."""
        from weft.llm.multimodal import Hearing

        hearing = self.senses.of("audio")
        assert isinstance(hearing, Hearing)
        return hearing

    # ---- requests ----

    @cached_property
    def _format(self) -> AnswerFormat:
        return AnswerFormat.of(self.chat_template)

    def _ids(self, prompt: object, parse_special: bool = False) -> list[int]:
        ids = prompt_ids(prompt, self.tokenizer, parse_special)
        require_fits(ids, self.context.n_ctx, self.model.config.n_ctx_train)
        return ids

    def _asked(self, prompt: object, options: GenerateOptions, *, alone: bool = True) -> Asked:
        """The request for a text after `prompt`; `alone`, it may shift the context."""
        if self.context.embeddings:
            raise ContextError("this model makes embeddings, no text; use `embed`")
        options = cast("GenerateOptions", plain_values(GenerateOptions, options))
        ids = self._ids(prompt, options.get("parse_special", False))
        n_keep = self._kept(ids) if self._shifts and alone else None
        return request_of(ids, options, n_keep=n_keep), None

    def _asked_chat(
        self,
        messages: Iterable[Message],
        tools: Tools | None,
        variables: Mapping[str, Any] | None,
        options: GenerateOptions,
        *,
        alone: bool = True,
    ) -> Asked:
        """The request for an answer to `messages`."""
        ids, text = self._rendered(messages, tools, variables)
        own = options.copy()
        own["stop"] = stop_strings(options) + self.chat_template.stops
        own.setdefault("special", bool(tools))
        request, _ = self._asked(ids, own, alone=alone)
        return request, self._format.parser(tools, text) if tools else None

    def _rendered(
        self, messages: Iterable[Message], tools: Tools | None, variables: Mapping[str, Any] | None
    ) -> tuple[list[int], str]:
        """The token ids and the text of a conversation."""
        if isinstance(messages, str | bytes | None):
            raise ArgumentError(
                'messages are a list, e.g. [{"role": "user", "content": "Hello"}]; '
                f"got {type(messages).__name__}"
            )
        template = self.chat_template
        if template.is_fallback and not self._warned:
            self._warned = True
            warn(
                f"{self.model.file.path.name} has no chat template; ChatML is used, which it may "
                "not know"
            )
        marked = mark_media(messages)
        written: Sequence[Message] = marked.messages
        if tools or any(map(_has_calls, written)):
            written = self._format.said(written, template, tools)
        known = tools if tools and template.knows_tools else None
        text = template.render(written, tools=known, **(variables or {}))
        if not marked.media:
            return prompt_tokens(self.tokenizer, text), text
        return self.senses.prompt(marked.pieces(text), marked.media), text

    def _kept(self, prompt: list[int]) -> int:
        """The number of first tokens that stay when the context is full, BOS included. At least two
        tokens must be left to drop."""
        whole = min(len(prompt), self.context.n_ctx - 2)
        n_keep = whole if self._n_keep == -1 else self._n_keep
        return max(n_keep, int(prompt[0] == self.tokenizer.vocab.bos))


_RESULTS = ("tool", "function")
"""Roles of messages that are results of calls."""


def _has_calls(message: Any) -> bool:
    """True if a message has calls of tools or the result of one."""
    is_message = isinstance(message, Mapping)
    return is_message and bool(message.get("tool_calls") or message.get("role") in _RESULTS)


def _warn_of_length(context: Context, n_seq_max: int) -> None:
    """Warns if texts may become longer than the texts that the model was trained with."""
    config, longest = context.model.config, context.n_ctx_seq
    if longest > config.n_ctx_train and not (n_seq_max > 1 and longest == context.n_ctx):
        error = ContextError(
            f"is {longest}, and {context.model.file.path.name} was trained for "
            f"{config.n_ctx_train} tokens: longer texts may become incoherent",
            argument="n_ctx",
        )
        warn(ErrorWarning(error))


def _require_shifts(context: Context, n_keep: int) -> None:
    """Raises ContextError if tokens behind the first `n_keep` cannot give way to new ones."""
    context.require_movable()
    if not -1 <= n_keep < context.n_ctx - 1:
        raise ContextError(
            f"is {n_keep}; it must be 0 to {context.n_ctx - 2}, so that there is something to "
            "drop, or -1 for the prompt",
            argument="n_keep",
        )
