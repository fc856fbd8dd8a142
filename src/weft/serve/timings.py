"""How long texts took, in the form of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from weft.llm.engine import Done, Ticket

__all__ = ["timings_of"]


def timings_of(tickets: Iterable[Ticket]) -> dict[str, Any]:
    """The numbers and times of texts so far; those of texts that run together are the longest."""
    prompt_n = cache_n = predicted_n = drafted = accepted = 0
    prompt_ms = predicted_ms = 0.0
    seen: set[tuple[int, ...]] = set()
    for ticket in tickets:
        done = ticket.done("stop")
        if ticket.request.prompt not in seen:  # texts of one prompt share its computation
            seen.add(ticket.request.prompt)
            cache_n += done.n_reused
            prompt_n += done.n_prompt - done.n_reused
            prompt_ms = max(prompt_ms, 1000 * done.prompt_seconds)
        predicted_n += done.n_generated
        predicted_ms = max(predicted_ms, 1000 * _writing(ticket, done))
        drafted += ticket.growth.n_drafted
        accepted += ticket.growth.n_accepted
    timings = {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _ratio(prompt_ms, prompt_n),
        "prompt_per_second": _ratio(1000 * prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _ratio(predicted_ms, predicted_n),
        "predicted_per_second": _ratio(1000 * predicted_n, predicted_ms),
    }
    return timings | ({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})


def _writing(ticket: Ticket, done: Done) -> float:
    """The seconds from the first token to the last, or until now."""
    times = ticket.times
    if not times.first:
        return 0.0
    return (times.last if times.ended else monotonic()) - times.first


def _ratio(a: float, b: float) -> float:
    return round(a / b, 3) if b else 0.0
