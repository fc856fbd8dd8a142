"""Splits the answers of models into content, reasoning and tool calls.

`AnswerFormat.of(template)` detects how a model writes a call by rendering its chat template;
`format.parser(tools, prompt)` reads one answer as it grows; `format.grammar(...)` constrains an
answer to calls.
"""

from weft.llm.answers.events import Call, CallBegun, CallPiece, Content, Event, Reasoning
from weft.llm.answers.format import AnswerFormat
from weft.llm.answers.parser import AnswerParser

__all__ = [
    "AnswerFormat",
    "AnswerParser",
    "Call",
    "CallBegun",
    "CallPiece",
    "Content",
    "Event",
    "Reasoning",
]
