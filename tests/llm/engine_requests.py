"""Requests of an engine, and waiting for their texts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from weft.llm import SamplingParams
from weft.llm.engine import Delta, Done, Engine, Event, Request

__all__ = ["GREEDY", "finish", "request", "side_by_side"]

GREEDY = SamplingParams(temperature=0)


def request(prompt: list[int], n: int | None = 6, **options: object) -> Request:
    """A request of `n` greedy tokens."""
    return Request(
        tuple(prompt),
        **{"max_tokens": n, "sampling": GREEDY, "ignore_eos": True} | options,  # type: ignore[arg-type]
    )


def finish(events: Iterator[Event]) -> tuple[str, Done]:
    """The text of a request and its end."""
    text = ""
    for event in events:
        if isinstance(event, Done):
            return text, event
        text += event.text
    raise AssertionError


def side_by_side(engine: Engine, requests: list[Request]) -> list[tuple[str, Done]]:
    """Texts and ends of requests that an engine runs at the same time."""
    texts, ends = [""] * len(requests), [Done("error", 0, 0, 0)] * len(requests)
    left = threading.Semaphore(0)

    def take(i: int, event: Event) -> None:
        if isinstance(event, Delta):
            texts[i] += event.text
        else:
            ends[i] = event
            left.release()

    for i, one in enumerate(requests):
        engine.submit(one, lambda event, i=i: take(i, event))  # type: ignore[misc]
    for _ in requests:
        assert left.acquire(timeout=60)
    return list(zip(texts, ends, strict=True))
