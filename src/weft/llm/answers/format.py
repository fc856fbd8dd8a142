"""`AnswerFormat`: the way in which a model writes its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from weft.errors import ChatError
from weft.llm.answers.detect import find_content, find_markers, find_thought
from weft.llm.answers.grammar import BeforeCalls, call_grammar
from weft.llm.answers.harmony import HarmonyParser, is_harmony
from weft.llm.answers.in_words import with_results_of_users, with_tools_in_words
from weft.llm.answers.markers import HERMES, CallMarkers, first_mark
from weft.llm.answers.parser import AnswerParser
from weft.llm.answers.probes import NAMES, Probe
from weft.llm.chat.template import ChatTemplate
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass


def calls_as_content(
    messages: Sequence[Mapping[str, Any]], markers: CallMarkers
) -> list[dict[str, Any]]:
    """The messages, with the calls of assistants behind their content, in the form of `markers`.
    Messages that are malformed stay as they are."""
    made: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        texts = [_text(call, markers) for call in calls] if isinstance(calls, list) else []
        if not texts or None in texts:
            made.append(dict(message) if isinstance(message, Mapping) else message)
            continue
        separator = markers.separator or "\n"
        section = markers.section + separator.join(map(str, texts)) + markers.end
        said = message.get("content")
        before = f"{said}\n" if isinstance(said, str) and said else ""
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        made.append({**rest, "content": before + section})
    return made


def with_ids_of_names(
    messages: Sequence[Mapping[str, Any]], *, goes_on: bool
) -> list[dict[str, Any]]:
    """The messages with ids as Kimi K2 has them, `functions.NAME:NUMBER`, for calls and their
    results. Numbers start again with each message, or go on through all of them (`goes_on`)."""
    made: list[dict[str, Any]] = []
    ids: dict[str, str] = {}
    n = 0
    for message in messages:
        new = dict(message) if isinstance(message, Mapping) else message
        calls = new.get("tool_calls") if isinstance(new, dict) else None
        if isinstance(calls, list):
            n = n if goes_on else 0
            new["tool_calls"] = [_named(call, n + i, ids) for i, call in enumerate(calls)]
            n += len(calls)
        if isinstance(new, dict) and isinstance(new.get("tool_call_id"), str):
            new["tool_call_id"] = ids.get(new["tool_call_id"], new["tool_call_id"])
        made.append(new)
    return made


def _named(call: Any, number: int, ids: dict[str, str]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        return call
    made = f"functions.{name}:{number}"
    if isinstance(call.get("id"), str):
        ids[call["id"]] = made
    return {**call, "id": made}


def _text(call: Any, markers: CallMarkers) -> str | None:
    """One call; None: it is malformed, or its form is not one that this writes."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    name: Any = function.get("name")
    arguments: Any = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    is_object = isinstance(arguments, dict) or markers.kind == "object"  # others may be cut calls
    if not isinstance(name, str) or not is_object:
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    if markers.kind == "object":
        parts = {markers.name: name, markers.arguments: arguments}
        text = json.dumps(parts, ensure_ascii=False)
    elif markers.kind == "named":
        text = f"{name}{markers.after_name}{written}"
    elif markers.kind == "python":
        pairs = (f"{key}={json.dumps(v, ensure_ascii=False)}" for key, v in arguments.items())
        text = f"{name}({', '.join(pairs)})"
    else:
        return None
    return markers.open + text + markers.close


_EXAMPLE = {"name": "NAME", "arguments": {"KEY": "VALUE"}}
"""The call that shows a model the form of calls."""
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
"""Functions in the form of the OpenAI API, `{"type": "function", "function": {"name": NAME,
"parameters": SCHEMA}}`, or the inner objects alone."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The marks of calls, reasoning and content. `of` renders the template several times, so keep
    the result."""

    markers: CallMarkers | None
    """The texts around calls; None: the model writes no calls."""
    thought: tuple[str, str] | None
    """The texts around reasoning; None: the model writes none."""
    content: tuple[str, str] = ("", "")
    """The texts around content; empty: there are none."""
    between: str = ""
    """The text between content and calls that belongs to neither."""
    harmony: bool = False
    """True if answers are messages with headers; see `HarmonyParser`."""
    thought_end: str = ""
    """The end of a prompt after which no reasoning can follow; empty: there is none."""
    writes_calls: bool = True
    """True if the template writes the calls of an assistant's message."""

    @staticmethod
    def of(template: ChatTemplate) -> AnswerFormat:
        """Detects the format from the model's template. Raises ChatError if it is broken."""
        probe = Probe(template)
        markers, between = find_markers(probe)
        thought = find_thought(probe)
        content = find_content(probe, thought)
        if markers is not None and content[1] and markers.section.startswith(content[1]):
            markers = replace(markers, section=markers.section[len(content[1]) :])
        if markers is not None and markers.open and probe.head.rstrip().endswith(markers.open):
            content = markers.open + content[0], content[1]  # both begin with it
        shut = thought[1] if thought and not probe.head.rstrip().endswith(thought[1]) else ""
        harmony = any(is_harmony(source) for source in template.sources.values())
        writes = template.reads("tool_calls")
        if not template.knows_tools:  # DeepSeek's drop the calls of some messages
            writes = writes and NAMES[0] in (probe.called(1, "") or "")
            if markers is None or _text(_EXAMPLE, markers) is None:
                markers, writes = HERMES, False
        return AnswerFormat(markers, thought, content, between, harmony, shut, writes)

    def parser(
        self, tools: Tools | None = None, prompt: str = "", *, pieces: bool = False
    ) -> AnswerParser | HarmonyParser:
        """A parser of one answer. `tools` are the request's tools; without tools no text is a
        call. `prompt` is the rendered prompt, which may have begun the reasoning. `pieces`: the
        answer is held to calls, so they are reported as they come."""
        if self.harmony:
            return HarmonyParser(bool(tools), prompt, pieces=pieces)
        parser = AnswerParser(
            self.markers if tools else None,
            self.thought,
            _schemas(tools or ()),
            content=(self.content[0], self.content[1], self.between if tools else ""),
            thinking=self.is_thinking(prompt),
            thought_over=bool(self.thought_end) and prompt.rstrip().endswith(self.thought_end),
            pieces=pieces,
        )
        if self.is_calling(prompt) and self.markers:
            parser.push(self.markers.open)
        return parser

    def said(
        self, messages: Messages, template: ChatTemplate, tools: Tools | None = None
    ) -> Messages:
        """The messages for `template`: with calls as content if it writes none, and with ids of the
        form that the model knows. For a template without tools, `tools` are words of the system
        message, and results are messages of the user unless the template has its own form."""
        markers = self.markers or CallMarkers("object")
        if not template.knows_tools:
            if tools:
                call = _text(_EXAMPLE, markers) or ""
                form = markers.section + call + first_mark(markers.end)
                messages = with_tools_in_words(messages, tools, form)
            if markers == HERMES:
                messages = with_results_of_users(messages)
        if not self.writes_calls:
            return calls_as_content(messages, markers)
        if not markers.has_ids_of_names:
            return messages
        return with_ids_of_names(messages, goes_on=template.reads("id"))

    def is_thinking(self, prompt: str) -> bool:
        """True if an answer to the rendered `prompt` begins within the reasoning."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought[0].strip())

    @property
    def no_thought(self) -> str:
        """The text that ends reasoning that a prompt has begun, so that it is empty."""
        return f"\n{self.thought[1]}\n\n" if self.thought else ""

    def before(self, prompt: str, begun: str) -> str:
        """The text for `parser` in place of `prompt`, if the prompt ends with `begun`, the first
        part of the answer: where that part has begun reasoning and not ended it, its mark."""
        if not begun:
            return prompt
        opening, closing = self.thought or ("", "")
        before = prompt[: len(prompt) - len(begun)]
        inside = opening and self.is_thinking(before) and closing not in begun
        if opening and opening.strip() in begun:
            inside = closing not in begun.rpartition(opening.strip())[2]
        return opening if inside else ""

    def is_calling(self, prompt: str) -> bool:
        """True if the rendered `prompt` ends with the text that begins calls and content alike."""
        open_ = self.markers.open if self.markers else ""
        return bool(open_) and self.content[0].startswith(open_) and prompt.endswith(open_)

    def hides_marks(self, tokenizer: Tokenizer) -> bool:
        """True if the marks around reasoning or content are control tokens, which a text has only
        if it is written with them."""
        for mark in (*(self.thought or ()), *self.content):
            ids = tokenizer.encode(mark, add_special=False, parse_special=True)
            if mark.strip() not in tokenizer.decode(ids):
                return True
        return self.harmony

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts that belong to the format and not to content."""
        m = self.markers
        parts = (*(self.thought or ()), *self.content, self.between)
        if m is not None:
            parts += (m.section, m.open, m.after_name, m.close, m.separator, m.end)
        return tuple(part for part in parts if part)

    def grammar(
        self,
        tokenizer: Tokenizer,
        tools: Tools,
        *,
        name: str | None = None,
        parallel: bool = True,
        prompt: str = "",
        reasons: bool = False,
        instead: Mapping[str, Any] | None = None,
    ) -> str | None:
        """A grammar, for `SamplingParams.grammar`, of answers that call one of `tools`, or the tool
        `name`; with `parallel`, of several calls.

        Reasoning that `prompt` has begun may come first; with `reasons`, also reasoning that the
        answer begins. JSON of the schema `instead` may stand in place of the calls. None: the
        format of calls is not known. Raises ChatError if no tool is called `name`."""
        if self.markers is None:
            return None
        thinking = self.is_thinking(prompt)
        over = bool(self.thought_end) and prompt.rstrip().endswith(self.thought_end)
        schemas = _schemas(tools)
        if name is not None and name not in schemas:
            raise ChatError(f"tool_choice names the tool {name!r}; there are {', '.join(schemas)}")
        before = BeforeCalls(
            self.thought if thinking or (reasons and not over) else None,
            thinking,
            self.is_calling(prompt),
            "".join(self.content) if all(self.content) else "",
        )
        return call_grammar(
            self.markers,
            tokenizer,
            schemas if name is None else {name: schemas[name]},
            before,
            parallel=parallel and not self.harmony,
            instead=instead,
        )


def _schemas(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schemas of the arguments of tools, by the names of their functions."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters") or {"type": "object"}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
