"""`AnswerFormat`: the way in which a model writes its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.llm.answers.constrain import call_grammar
from weft.llm.answers.detect import find_markers, find_thought
from weft.llm.answers.markers import CallMarkers
from weft.llm.answers.parser import AnswerParser
from weft.llm.chat.template import ChatTemplate
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

__all__ = ["AnswerFormat"]

Tools = Sequence[Mapping[str, Any]]
"""Functions in the form of the OpenAI API, `{"type": "function", "function": {"name": NAME,
"parameters": SCHEMA}}`, or the inner objects alone."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The markers of calls and of reasoning. `of` renders the template several times, so keep the
    result."""

    markers: CallMarkers | None
    """The texts around calls; None: the model writes no calls."""
    thought: tuple[str, str] | None
    """The texts around reasoning; None: the model writes none."""

    @staticmethod
    def of(template: ChatTemplate) -> AnswerFormat:
        """Detects the format from the model's template. Raises ChatError if it is broken."""
        return AnswerFormat(find_markers(template), find_thought(template))

    def parser(self, tools: Tools | None = None, prompt: str = "") -> AnswerParser:
        """A parser of one answer. `tools` are those of the request; without tools no text is a
        call. `prompt` is the rendered prompt, which may have begun the reasoning."""
        return AnswerParser(
            self.markers if tools else None,
            self.thought,
            _schemas(tools or ()),
            thinking=self.is_thinking(prompt),
        )

    def is_thinking(self, prompt: str) -> bool:
        """True if an answer to the rendered `prompt` begins within the reasoning."""
        return self.thought is not None and prompt.rstrip().endswith(self.thought[0])

    def grammar(
        self,
        tokenizer: Tokenizer,
        tools: Tools,
        *,
        name: str | None = None,
        parallel: bool = True,
        prompt: str = "",
    ) -> str | None:
        """A grammar, for `SamplingParams.grammar`, of answers that call one of `tools`, or the tool
        `name`; with `parallel`, of several calls.

        Reasoning that `prompt` has begun may come first. None: no grammar can describe calls in
        this format. Raises ChatError if no tool is called `name`."""
        if self.markers is None:
            return None
        thought = self.thought[1] if self.thought and self.is_thinking(prompt) else None
        return call_grammar(self.markers, tokenizer, _schemas(tools), name, parallel, thought)


def _schemas(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schemas of the arguments of tools, by the names of their functions."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters") or {"type": "object"}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
