"""`NgramDrafter` proposes what followed the same tokens earlier in the text, its prompt included.

It needs no second model. It guesses well wherever a text repeats: edits of code, quotations,
tables, lists of similar lines.
"""

from __future__ import annotations

from collections.abc import Sequence

LONG = 4
"""Number of tokens that are looked up first."""
PLACES = 8
"""Maximum number of places of the same LONG tokens that are compared further back, the newest
first."""
FAR = 32
"""Number of equal tokens from which on a place is not compared further."""
_CLASSES = ((7, 32), (6, 16), (5, 9), (4, 6), (3, 4))
"""The class of a draft, and the least number of equal tokens that it takes."""


class NgramDrafter:
    """Looks up the last tokens of a text in the text before them.

    Of all places with the same last `LONG` tokens it takes the one with the most equal tokens in
    front; without any, the newest with the same two tokens, or the same one."""

    name = "ngram"
    trust: Sequence[float] = (0.2, 0.3, 0.5, 0.65, 0.75, 0.85, 0.93, 0.97)
    """Classes by the number of equal tokens: 1, 2, 3 (never), 4 to 5, 6 to 8, 9 to 15, 16 to 31,
    and more."""

    def __init__(self) -> None:
        self._texts: dict[int, _Places] = {}

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        """See `Drafter`. A proposal may be longer than what it repeats, which then goes round."""
        places = self._texts.get(seq)
        if places is None or not places.belongs_to(tokens):
            places = self._texts[seq] = _Places()
        return places.look(tokens)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        start, n = self._texts[seq].start, len(tokens)
        draft = list(tokens[start : start + most])
        while len(draft) < most:  # it repeats itself
            draft += draft[: most - len(draft)] if start + len(draft) == n else tokens[start:n]
        return draft[:most]

    def forget(self, seq: int) -> None:
        self._texts.pop(seq, None)


class _Places:
    """Positions of the tokens of a text that have a successor."""

    __slots__ = ("_last", "_long", "_n", "_one", "_two", "start")

    def __init__(self) -> None:
        self._one: dict[int, int] = {}
        self._two: dict[tuple[int, int], int] = {}
        self._long: dict[tuple[int, ...], list[int]] = {}
        self._n = 1  # the successor to enter next
        self._last: Sequence[int] = ()
        self.start = 0

    def belongs_to(self, tokens: Sequence[int]) -> bool:
        """True if `tokens` go on from the text before. A full context loses tokens in front."""
        n, last = self._n, self._last
        return len(tokens) >= n and list(tokens[n - 1 - len(last) : n - 1]) == last

    def look(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Finds the best place; see `Drafter.look`."""
        n = len(tokens)
        one, two, long = self._one, self._two, self._long
        for i in range(self._n, n):
            one[tokens[i - 1]] = i
            if i > 1:
                two[tokens[i - 2], tokens[i - 1]] = i
            if i >= LONG:
                key = tuple(tokens[i - LONG : i])
                found = long.get(key)
                if found is None:
                    long[key] = [i]
                else:
                    found.append(i)
                    if len(found) > 2 * PLACES:
                        del found[:PLACES]
        self._n, self._last = n, list(tokens[max(n - 1 - LONG, 0) : n - 1])
        places = long.get(tuple(tokens[n - LONG :])) if n > LONG else None
        if places is not None:
            n_same = self._best(tokens, places)
            return next(i for i, least in _CLASSES if n_same >= least), 1 << 30
        start = two.get((tokens[-2], tokens[-1]), 0) if n > 1 else 0
        if start:
            self.start = start
            return 1, 1 << 30
        self.start = one.get(tokens[-1], 0)
        return 0, 1 << 30 if self.start else 0

    def _best(self, tokens: Sequence[int], places: list[int]) -> int:
        """Chooses the place with the most equal tokens in front; returns their number."""
        n, most = len(tokens), 0
        for start in places[: -PLACES - 1 : -1]:
            same = LONG
            while same < FAR and same < start and tokens[start - same - 1] == tokens[n - same - 1]:
                same += 1
            if same > most:
                self.start, most = start, same
                if same == FAR:
                    break
        return most
