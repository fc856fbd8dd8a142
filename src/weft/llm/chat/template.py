"""Chat templates render a list of messages as the text that a model was trained on.

The template is the model's own, from GGUF metadata: `tokenizer.chat_template`, and variants in
`tokenizer.chat_template.NAME` (`tool_use` is used if there are tools, as in transformers). For a
model without a template, ChatML is used, and `ChatTemplate.is_fallback` is true.

    messages = [{"role": "user", "content": "Hello"}]
    ChatTemplate.from_gguf(file).render(messages)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weft.errors import ChatError
from weft.frontends.gguf import GGUFFile
from weft.llm.chat.arguments import with_short_ids
from weft.llm.chat.messages import (
    Message,
    Traits,
    in_parts,
    merged_systems,
    plain_message,
    probed,
    with_known_roles,
    with_reasoning,
)
from weft.llm.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from weft.llm.chat.jinja import JinjaTemplate

KEY = "tokenizer.chat_template"

CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""A template that writes each message between `<|im_start|>role` and `<|im_end|>`."""

NO_REASONING = {"enable_thinking": False, "thinking": False}
"""The variables by which templates leave out reasoning."""

OWN_VARIABLES = frozenset(
    (
        "messages",
        "tools",
        "template",
        "add_generation_prompt",
        "documents",
        "bos_token",
        "eos_token",
    )
)
"""Variables of templates that are made from the conversation, so that users do not set them."""

CHATML_STOPS = ("<|im_end|>", "<|im_start|>")
"""Strings that end an answer to ChatML if the vocabulary has no such tokens."""


class ChatTemplate:
    """The templates of a model, by name; the first is the default."""

    def __init__(
        self,
        templates: Mapping[str, str] | str | None = None,
        *,
        bos: str = "",
        eos: str = "",
        where: str = "the chat template",
    ) -> None:
        """`templates` is the source of one template, or of several by name ("default" first); None:
        ChatML. An empty source is none: it would write nothing of a message. `bos` and `eos` are
        the texts of these tokens, which templates write. `where` names the template in errors.
        Templates are compiled when they are first used."""
        if isinstance(templates, str):
            templates = {"default": templates}
        written = {name: text for name, text in (templates or {}).items() if text.strip()}
        self.is_fallback = not written
        """True if the model has no template and ChatML is used instead."""
        self.sources: dict[str, str] = written or {"default": CHATML}
        """The sources of the templates, by name."""
        self.bos, self.eos = bos, eos
        self._where = where
        self._compiled: dict[str, JinjaTemplate] = {}
        self._traits: dict[str, Traits] = {}

    @staticmethod
    def from_gguf(file: GGUFFile, tokenizer: Tokenizer | None = None) -> ChatTemplate:
        """Reads the templates of a model file. Raises FormatError for a key of the wrong type and
        TokenizerError if the file has no tokenizer."""
        tokenizer = Tokenizer.from_gguf(file) if tokenizer is None else tokenizer
        sources = {}
        if KEY in file.metadata:
            sources["default"] = file.get_str(KEY)
        for key in file.metadata:
            if key.startswith(f"{KEY}."):
                sources[key[len(KEY) + 1 :]] = file.get_str(key)

        def text(id_: int | None) -> str:
            return "" if id_ is None else tokenizer.piece(id_, special=True).decode(errors="ignore")

        vocab = tokenizer.vocab
        where = f"the chat template of {file.path.name}"
        return ChatTemplate(sources, bos=text(vocab.bos), eos=text(vocab.eos), where=where)

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer, besides the model's end tokens."""
        return CHATML_STOPS if CHATML in self.sources.values() else ()

    @property
    def knows_tools(self) -> bool:
        """True if the template supports tools. Raises ChatError if it is broken."""
        return _takes_tools(self._template(self._choose([{}])))

    def reads(self, name: str) -> bool:
        """True if the template for tools, or the only one, mentions a variable or a key `name`.
        Raises ChatError if it is broken."""
        return self._template(self._choose([{}])).reads(name)

    def render(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """Renders `messages` as text.

        `tools` are functions that the model may call, as JSON schemas. With
        `add_generation_prompt`, the text ends where the model's answer begins. `template` is a name
        in `sources` (default: `tool_use` if there are tools, else the first). `variables` are
        further variables of the template, such as `enable_thinking=False`.

        Raises ChatError for malformed messages, for messages that the template refuses (an unknown
        role, or two users in a row, for example), for tools or calls if the template does not
        support them, for a broken template and for an unknown name."""
        given = list(messages)
        plain = [plain_message(number, message) for number, message in enumerate(given)]
        if not plain:
            raise ChatError("there are no messages; give at least one, of role user")
        chosen = template or self._choose(tools)
        compiled = self._template(chosen)
        traits = self._traits_of(chosen, compiled)
        plain = with_known_roles(plain, compiled)
        if not traits.system:
            plain = merged_systems(plain)
        plain = [with_reasoning(message, compiled) for message in plain]
        name = "ChatML, which stands in for a template," if self.is_fallback else self._where
        if tools and not _takes_tools(compiled):
            raise ChatError(
                f"{name} knows no tools; leave them out, describe them in a system message, "
                "or take a model that was trained for them"
            )
        if any(m.get("tool_calls") for m in plain) and not compiled.reads("tool_calls"):
            raise ChatError(f"{name} knows no tool_calls of an assistant; say them as content")
        usual = self._usual(plain) | {
            "tools": [dict(tool) for tool in tools] if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools and not compiled.reads("tools"):  # SmolLM3; FireFunction takes them as text
            usual["xml_tools"] = usual["tools"]
            usual["functions"] = json.dumps(usual["tools"], ensure_ascii=False, indent=4)
            usual["datetime"] = datetime.now().strftime("%b %d %Y %H:%M:%S")
        if compiled.reads("append") or compiled.reads("pop"):
            usual = deepcopy(usual)  # the template may change lists that it is given

        def rendered(messages: list[dict[str, Any]]) -> str:
            if traits.parts:
                messages = in_parts(messages, given)
            return compiled.render(usual | {"messages": messages} | variables)

        try:
            return rendered(usual["messages"])
        except ChatError:
            other = with_short_ids(plain)
            if other is None and any(m["role"] == "system" for m in plain[1:]):
                other = merged_systems(plain, 1)  # some take a system message only as the first
            if other is None:
                raise
            return rendered(other)

    def _usual(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The variables of a template that asks for an answer."""
        return {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": self.bos,
            "eos_token": self.eos,
        }

    def _traits_of(self, name: str, compiled: JinjaTemplate) -> Traits:
        traits = self._traits.get(name)
        if traits is None:
            traits = probed(lambda messages: compiled.render(self._usual(messages)))
            self._traits[name] = traits
        return traits

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and "tool_use" in self.sources:
            return "tool_use"
        return next(iter(self.sources))

    def _template(self, name: str) -> JinjaTemplate:
        template = self._compiled.get(name)
        if template is None:
            from weft.llm.chat.jinja import JinjaTemplate  # jinja2 takes a while to import

            if name not in self.sources:
                raise ChatError(
                    f"{self._where} has no variant {name!r}; there are {', '.join(self.sources)}"
                )
            where = self._where if name == "default" else f"{self._where} ({name})"
            template = self._compiled[name] = JinjaTemplate(self.sources[name], where)
        return template


def _takes_tools(template: JinjaTemplate) -> bool:
    return any(map(template.reads, ("tools", "functions", "xml_tools")))


def prompt_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encodes a rendered conversation. Names of control tokens are read as these tokens. If the
    model expects BOS, it comes first, once, whether or not the template has written it."""
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    bos = tokenizer.vocab.bos
    if bos is None or not tokenizer.vocab.add_bos or ids[:1] == [bos]:
        return ids
    return [bos, *ids]


def render_begun(
    template: ChatTemplate, messages: Sequence[Message], begun: str, **options: Any
) -> str:
    """The text of `messages` and of an answer that begins with `begun`, where the model goes on.

    The template writes the answer as one of earlier turns, so what it puts before an answer (an
    empty reasoning, for example) is there. If it does not write an answer at the end, `begun`
    follows the text that asks for one. `options` and errors are the same as for
    `ChatTemplate.render`."""
    mark = f"<begun-{secrets.token_hex(8)}>"  # no text of a user can be one
    answer = {"role": "assistant", "content": mark}
    whole = template.render([*messages, answer], add_generation_prompt=False, **options)
    before, found, _ = whole.rpartition(mark)
    if not found:
        before = template.render(messages, **options)
    return before + begun
