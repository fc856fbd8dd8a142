"""Many texts at once over one `Context`: continuous batching.

request.py    what is asked for, and the events that answer it
draw.py       a row of logits to a token, with penalties, biases and log-probabilities
slots.py      sequences of the cache: who has one, what prefix it shares, how many cells it may take
batching.py   one step's batch: a token of every text, and a fair share of every prompt
stats.py      what is counted
engine.py     `Engine`: the thread that steps
"""

from weft.llm.engine.draw import DrawOptions
from weft.llm.engine.engine import Engine
from weft.llm.engine.request import Delta, Done, Event, Request, Ticket, TokenInfo
from weft.llm.engine.stats import EngineStats

__all__ = [
    "Delta",
    "Done",
    "DrawOptions",
    "Engine",
    "EngineStats",
    "Event",
    "Request",
    "Ticket",
    "TokenInfo",
]
