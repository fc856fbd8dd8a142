"""What a model writes, taken apart: content, reasoning and calls of tools.

`AnswerFormat.of(template)` finds out how a model writes a call by rendering its chat template;
`format.parser(tools, prompt)` reads one answer as it grows; `format.grammar(...)` holds an answer
to calls.
"""

from weft.llm.answers.events import Call, Content, Event, Reasoning
from weft.llm.answers.format import AnswerFormat
from weft.llm.answers.parser import AnswerParser

__all__ = ["AnswerFormat", "AnswerParser", "Call", "Content", "Event", "Reasoning"]
