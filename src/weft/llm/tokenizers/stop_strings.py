"""`StopStrings`: ends a stream of text before the first of some strings.

The strings are one automaton (Aho and Corasick 1975): a state is the longest end of the text that
begins a string. So a character takes a step or a few, however many strings there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import TokenizerError

__all__ = ["StopAutomaton", "StopStrings"]


class StopAutomaton:
    """Some strings, ready to be looked for in any number of texts at once."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        if "" in stop:
            raise TokenizerError("a stop string is empty; leave it out")
        self._next: list[dict[str, int]] = [{}]  # by state: the state behind each character
        self.depth = [0]
        """Characters of the text that a state stands for."""
        self.length = [0]
        """Characters of the longest string that ends in a state; 0: none does."""
        for string in stop:
            self._add(string)
        self._shorter = [0] * len(self._next)  # the longest state that ends this one
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            following = self._next[state].setdefault(char, len(self._next))
            if following == len(self._next):
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.length.append(0)
            state = following
        self.length[state] = len(string)

    def _link(self) -> None:
        """The shorter state of each, from the shortest on."""
        for state in sorted(range(len(self._next)), key=self.depth.__getitem__):
            for char, following in self._next[state].items():
                shorter = self.step(self._shorter[state], char) if state else 0
                self._shorter[following] = shorter
                self.length[following] = self.length[following] or self.length[shorter]

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def step(self, state: int, char: str) -> int:
        """The state behind `char`."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)


class StopStrings:
    """Ends a stream of text before the first of some strings, without ever giving a part of one."""

    def __init__(self, stop: Sequence[str] | StopAutomaton) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        self._automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What may be given out, and whether a stop string was met (nothing follows then).

        Of several that end in `text` the one that begins first counts."""
        automaton, state = self._automaton, self._state
        if not automaton:
            return text, False
        buffer = self._held + text
        first = len(buffer)
        for end, char in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, char)
            if automaton.length[state]:
                first = min(first, end - automaton.length[state])
        stopped = first < len(buffer)
        cut = first if stopped else len(buffer) - automaton.depth[state]
        self._state, self._held = (0, "") if stopped else (state, buffer[cut:])
        return buffer[:cut], stopped

    def flush(self) -> str:
        """What is held back when the stream ends without a stop string."""
        rest, self._state, self._held = self._held, 0, ""
        return rest
