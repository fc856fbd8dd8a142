"""Numbers and times of a text while it is written, in the form of llama.cpp's server.

The field `timings_per_token` asks for them; a page then shows tokens per second as they come.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from weft.llm.engine import Ticket

__all__ = ["Clock"]


class Clock:
    """The times of one text. It starts when the text is submitted, so the time of the prompt has
    the time in the queue in it."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._start = perf_counter()
        self._first: float | None = None
        self._n_first = 0

    def now(self) -> dict[str, Any]:
        """The object `timings` for the tokens so far, in milliseconds and tokens per second. The
        speed of writing is that of the tokens behind the first event, which ends the prompt."""
        now, ticket = perf_counter(), self._ticket
        n_drawn = ticket.growth.n_drawn
        if self._first is None:
            self._first, self._n_first = now, n_drawn
        n_read = len(ticket.request.prompt) - ticket.n_reused
        n_new = n_drawn - self._n_first
        read, written = self._first - self._start, now - self._first
        return {
            "cache_n": ticket.n_reused,
            "prompt_n": n_read,
            "prompt_ms": round(read * 1e3, 3),
            "prompt_per_second": round(n_read / read, 3) if read else 0.0,
            "predicted_n": n_drawn,
            "predicted_ms": round(written * 1e3, 3),
            "predicted_per_second": round(n_new / written, 3) if n_new else 0.0,
        }
