"""How a model writes its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.llm.answers.constrain import call_grammar
from weft.llm.answers.detect import find_markers, find_thought
from weft.llm.answers.markers import CallMarkers
from weft.llm.answers.parser import AnswerParser
from weft.llm.chat.template import ChatTemplate
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["AnswerFormat"]

Tools = Sequence[Mapping[str, Any]]
"""Functions as the OpenAI API has them: `{"type": "function", "function": {"name": ...,
"parameters": SCHEMA}}`; the inner object alone will do."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The markers of calls and of reasoning. Making one renders the template several times; keep
    it."""

    markers: CallMarkers | None
    """None: this model writes no calls."""
    thought: tuple[str, str] | None
    """The texts around reasoning; None: it has none."""

    @staticmethod
    def of(template: ChatTemplate) -> AnswerFormat:
        """The format of the model that `template` belongs to; raises ChatError where the template
        is broken."""
        return AnswerFormat(find_markers(template), find_thought(template))

    def parser(self, tools: Tools | None = None, prompt: str = "") -> AnswerParser:
        """Reads one answer. `tools`: those of the request; without any, no text is a call.
        `prompt`: its rendered text, which may have begun the reasoning."""
        return AnswerParser(
            self.markers if tools else None,
            self.thought,
            _schemas(tools or ()),
            thinking=self.is_thinking(prompt),
        )

    def is_thinking(self, prompt: str) -> bool:
        """Whether an answer to the rendered `prompt` begins inside of reasoning."""
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
        """A grammar for `SamplingParams.grammar` whose texts are calls: of one of `tools`, or of
        the one called `name`; several of them where `parallel`. Reasoning that `prompt` has begun
        may come first. None where calls of this format cannot be held to a grammar; raises
        ChatError for a name that no tool has."""
        if self.markers is None:
            return None
        thought = self.thought[1] if self.thought and self.is_thinking(prompt) else None
        return call_grammar(self.markers, tokenizer, _schemas(tools), name, parallel, thought)


def _schemas(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schemas of arguments by the name of their function."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters") or {"type": "object"}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
