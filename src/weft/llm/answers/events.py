"""What a parser of answers reports."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Call", "Content", "Event", "Reasoning"]


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call of a tool; `index` counts the calls of an answer from 0."""

    index: int
    name: str
    arguments: str
    """A JSON object, in the model's own text."""


Event = Content | Reasoning | Call
