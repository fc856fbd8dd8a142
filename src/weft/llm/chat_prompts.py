"""`ChatPrompts`: from the messages of a conversation to the token ids that a model continues."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.errors import ContextError
from weft.llm.chat.template import ChatTemplate, Message, prompt_tokens
from weft.llm.model import Model
from weft.llm.multimodal import Senses
from weft.llm.senses.messages import mark_media
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["ChatPrompts"]


class ChatPrompts:
    """Makes prompts with the template of a model, and with its towers."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        template: str | ChatTemplate | None,
        senses: Senses | None,
    ) -> None:
        """`template` stands in for the model's own, which is read when it is first needed."""
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._senses = senses
        self._warned = False

    @property
    def template(self) -> ChatTemplate:
        """The template that turns messages into text."""
        if not isinstance(self._template, ChatTemplate):
            own = ChatTemplate.from_gguf(self._model.file, self._tokenizer)
            if self._template is not None:
                own = ChatTemplate(self._template, bos=own.bos, eos=own.eos)
            self._template = own
        return self._template

    @property
    def senses(self) -> Senses:
        """What makes prompts with images and sounds. Raises ContextError if there are no towers."""
        if self._senses is None:
            raise ContextError(
                f"{self._model.file.path.name} was opened without a tower for images or sound; "
                "give its file as `mmproj`"
            )
        return self._senses

    def ids(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> list[int]:
        """The token ids of messages; see `LLM.chat_prompt`. Warns once if there is no template."""
        template = self.template
        if template.is_fallback and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._model.file.path.name} has no chat template; ChatML is used, which it may "
                "not know",
                stacklevel=4,
            )
        marked = mark_media(messages)
        text = template.render(marked.messages, tools=tools, **(variables or {}))
        if not marked.media:
            return prompt_tokens(self._tokenizer, text)
        return self.senses.prompt(marked.pieces(text), marked.media)
