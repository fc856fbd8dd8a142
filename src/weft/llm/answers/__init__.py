"""Splits the answers of models into content, reasoning and tool calls.

`AnswerFormat.of(template)` detects how a model writes a call by rendering its chat template;
`format.parser(tools, prompt)` reads one answer as it grows; `format.grammar(...)` constrains an
answer to calls.

    format.py       the format of a model: its parser and its grammar
    probes.py       made-up conversations, rendered by a template
    detect.py       the marks of calls, by what these differ in
    thoughts.py     the marks of reasoning and content
    markers.py      what is known of calls, and families whose templates do not tell
    parser.py       reads an answer as it grows; harmony.py those of gpt-oss
    calls.py        reads one call; json_text.py, loose.py and values.py its arguments
    heard.py        what is known of a call before it is complete
    constrain.py    grammars of calls; arguments.py and terminals.py are their parts
    written.py      calls of earlier turns, as a template needs them
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
