"""`AnswerFormat`: the way in which a model writes its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.llm.answers.detect import find_content, find_markers, find_thought
from weft.llm.answers.grammar import call_grammar
from weft.llm.answers.harmony import HarmonyParser, is_harmony
from weft.llm.answers.history import calls_as_content, with_ids_of_names
from weft.llm.answers.markers import CallMarkers
from weft.llm.answers.parser import AnswerParser
from weft.llm.answers.probes import Probe
from weft.llm.chat.template import ChatTemplate
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

__all__ = ["AnswerFormat"]

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
    """What a prompt ends with that leaves no room for reasoning; empty: nothing tells."""

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
        return AnswerFormat(markers, thought, content, between, harmony, shut)

    def parser(
        self, tools: Tools | None = None, prompt: str = "", *, pieces: bool = False
    ) -> AnswerParser | HarmonyParser:
        """A parser of one answer. `tools` are those of the request; without tools no text is a
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

    def said(self, messages: Messages, template: ChatTemplate) -> Messages:
        """The messages for `template`: with calls as content if it writes none and their form is
        known, and with ids of the form that the model knows."""
        if self.markers is None:
            return messages
        if template.reads("tool_calls"):
            if not self.markers.has_ids_of_names:
                return messages
            return with_ids_of_names(messages, goes_on=template.reads("id"))
        return calls_as_content(messages, self.markers)

    def is_thinking(self, prompt: str) -> bool:
        """True if an answer to the rendered `prompt` begins within the reasoning."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought[0].strip())

    @property
    def no_thought(self) -> str:
        """What closes reasoning that a prompt has begun, so that there is none."""
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
    ) -> str | None:
        """A grammar, for `SamplingParams.grammar`, of answers that call one of `tools`, or the tool
        `name`; with `parallel`, of several calls.

        Reasoning that `prompt` has begun may come first; with `reasons`, also reasoning that the
        answer begins. None: the format of calls is not known. Raises ChatError if no tool is called
        `name`."""
        if self.markers is None:
            return None
        thinking = self.is_thinking(prompt)
        over = bool(self.thought_end) and prompt.rstrip().endswith(self.thought_end)
        return call_grammar(
            self.markers,
            tokenizer,
            _schemas(tools),
            name=name,
            parallel=parallel and not self.harmony,
            thought=self.thought if thinking or (reasons and not over) else None,
            thinking=thinking,
            opened=self.is_calling(prompt),
            empty="".join(self.content) if all(self.content) else "",
        )


def _schemas(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schemas of the arguments of tools, by the names of their functions."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters") or {"type": "object"}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
