"""Splits the answers of models into content, reasoning and tool calls.

`AnswerFormat.of(template)` detects how a model writes a call by rendering its chat template;
`format.parser(tools, prompt)` reads one answer as it grows; `format.grammar(...)` constrains an
answer to calls.

    format.py       the format of a model: its parser, its grammar, and calls of earlier turns
    detect.py       the marks of calls, reasoning and content, by made-up messages of probes.py
    markers.py      the marks of calls, and families whose templates do not show them
    parser.py       reads an answer as it grows; harmony.py reads answers of gpt-oss
    calls.py        reads one call, and json_text.py and values.py its arguments
    grammar.py      grammars of calls
"""

from weft.llm.answers.format import AnswerFormat
from weft.llm.answers.parser import (
    AnswerParser,
    Call,
    CallBegun,
    CallPiece,
    Content,
    Event,
    Reasoning,
)

__all__ = ["AnswerFormat", "AnswerParser", "Call", "CallBegun", "CallPiece", "Content", "Event",
           "Reasoning"]  # fmt: skip
