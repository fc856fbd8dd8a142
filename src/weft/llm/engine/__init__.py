"""Writes texts, one or many at once, over one `Context`: continuous batching.

request.py        requests, and the events that answer them
growth.py         one text as it grows: draws tokens and holds back text that is not certain
slots.py          sequences of the cache: their texts, shared prefixes and promised cells
batches.py        the batch of one step: a token of every text, a fair share of every prompt,
                  and how large that share is, so that texts do not wait long for it
prefixes.py       texts and checkpoints beside the cache
verification.py   drafts in the batch of a step
stats.py          counters and histograms of an engine
writer.py         `Writer`: each step reads prompts and then draws tokens; it has no threads
shared_writer.py  `SharedWriter`: a writer that the threads of an `LLM` take turns with
engine.py         `Engine`: a thread around a writer, with a queue in front
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.engine.engine import Engine
    from weft.llm.engine.request import Delta, Done, Event, Read, Request, Ticket, Times
    from weft.llm.engine.stats import EngineStats, Histogram

__all__ = ["Delta", "Done", "Engine", "EngineStats", "Event", "Histogram", "Read", "Request",
           "Ticket", "Times"]  # fmt: skip

_HOMES = {
    "weft.llm.engine.engine": ("Engine",),
    "weft.llm.engine.request": ("Delta", "Done", "Event", "Read", "Request", "Ticket", "Times"),
    "weft.llm.engine.stats": ("EngineStats", "Histogram"),
}
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
