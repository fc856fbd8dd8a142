"""The events that a parser of answers reports."""

from __future__ import annotations

from weft.records import dataclass

__all__ = ["Call", "Content", "Event", "Reasoning"]


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call; `index` counts the calls of an answer from 0."""

    index: int
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


Event = Content | Reasoning | Call
