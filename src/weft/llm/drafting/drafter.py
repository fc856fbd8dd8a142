"""`Drafter` proposes tokens that may follow a text; a `Reader` reads the text first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drafter", "Reader", "StateReader"]


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, texts are the same; only their speed differs.

    A proposal is asked for in two calls, so that one that does not pay costs little: `look` says
    how much it would be worth, and `propose` makes it."""

    name: str
    trust: Sequence[float]
    """Prior acceptance probability of a token, for each class of proposals, before anything has
    been measured."""

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        """The class of the proposal that it would make for the text `tokens` (ids, at least one) of
        sequence `seq`, an index of `trust`, and the most tokens of it (0: it has none)."""
        ...

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most `most` ids that may follow. Called right after `look`, with the same text."""
        ...

    def forget(self, seq: int) -> None:
        """The text of sequence `seq` has ended."""
        ...


@runtime_checkable
class Reader(Drafter, Protocol):
    """A drafter with a model of its own, which must have read a text before it goes on with it.

    Reading takes time, so it is asked for by itself, and only where drafts may pay."""

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        """Number of `tokens` that it must read before it can propose what follows them."""
        ...

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        """Reads the text `tokens` of sequence `seq`, or what is new of it."""
        ...

    def drop(self, seq: int, start: int, n: int) -> None:
        """The `n` tokens of sequence `seq` from position `start` on have been dropped, because the
        context was full; those behind have moved there."""
        ...


@runtime_checkable
class StateReader(Reader, Protocol):
    """A reader that needs what the model computed of the tokens."""

    def take(self, seq: int, start: int, states: NDArray[np.float32]) -> None:
        """Takes what the output projection of the model read of the tokens of sequence `seq` from
        position `start` on, [n, n_embd]. Those of a draft are among them, right or wrong."""
        ...
