"""The events that a parser of answers reports."""

from __future__ import annotations

from weft.records import dataclass

__all__ = ["Call", "CallBegun", "CallPiece", "Content", "Event", "Reasoning"]


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


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The call `index` has begun. It ends with a `Call`, or is cut where the answer ends."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the arguments of the call that has begun. All pieces are the arguments of its
    `Call`; the pieces of a call that is cut are never a whole JSON object."""

    index: int
    text: str


Event = Content | Reasoning | Call | CallBegun | CallPiece
