"""The updates of a watched cache as data for the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def cache_data(context: Any) -> dict[str, Any] | None:
    """The page's data of the updates of a `Context`; None if its cache is not watched.

    `n` is the number of all updates, `events` has the last of them: the fields of `CacheEvent`, and
    `text` and `cost` in words. `counters` counts other events of the context."""
    n = getattr(context, "n_cache_events", 0)
    if not n:
        return None
    return {
        "n": n,
        "size": context.cache.size,
        "n_seq_max": context.cache.n_seq_max,
        "counters": asdict(context.counters),
        "events": [asdict(e) | {"text": e.text, "cost": e.cost} for e in context.cache_events],
    }
