"""Where texts are written, one or many at once, over one `Context`: continuous batching.

request.py    what is asked for, and the events that answer it
slots.py      sequences of the cache: who has one, what prefix it shares, how many cells it may take
batching.py   one step's batch: a token of every text, and a fair share of every prompt
stats.py      what is counted
writer.py     `Writer`: a step has two halves, prompts in and tokens out; it has no threads
engine.py     `Engine`: a thread around a writer, with a queue in front
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.engine.engine import Engine
    from weft.llm.engine.request import Delta, Done, Event, Read, Request, Ticket
    from weft.llm.engine.stats import EngineStats

__all__ = [
    "Delta",
    "Done",
    "Engine",
    "EngineStats",
    "Event",
    "Read",
    "Request",
    "Ticket",
]

_HOMES = {
    "weft.llm.engine.engine": ("Engine",),
    "weft.llm.engine.request": (
        "Delta",
        "Done",
        "Event",
        "Read",
        "Request",
        "Ticket",
    ),
    "weft.llm.engine.stats": ("EngineStats",),
}
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
