"""`StopStrings` ends a stream of text before the first of several strings.

The strings form one automaton (Aho and Corasick 1975), whose state is the longest end of the text
that a string begins with. A character takes few steps, however many strings there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import TokenizerError

__all__ = ["StopAutomaton", "StopStrings"]


class StopAutomaton:
    """Finds several strings at once, in any number of texts."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        if "" in stop:
            raise TokenizerError("a stop string is empty; leave it out")
        self._next: list[dict[str, int]] = [{}]  # for each state, the next one by character
        self.depth = [0]
        """For each state, the number of characters that it stands for."""
        self.length = [0]
        """For each state, the length of the longest string that ends in it; 0: none does."""
        for string in stop:
            self._add(string)
        self._shorter = [0] * len(self._next)  # for each state, the longest state that ends it
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
        """Finds the shorter state of each state, in order of depth."""
        for state in sorted(range(len(self._next)), key=self.depth.__getitem__):
            for char, following in self._next[state].items():
                shorter = self.step(self._shorter[state], char) if state else 0
                self._shorter[following] = shorter
                self.length[following] = self.length[following] or self.length[shorter]

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def step(self, state: int, char: str) -> int:
        """The state after `char`."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)


class StopStrings:
    """Ends a stream of text before the first of several strings, and never lets out a part of
    one."""

    def __init__(self, stop: Sequence[str] | StopAutomaton) -> None:
        """Raises TokenizerError for an empty string, which would stop everything."""
        self._automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._state = 0
        self._held = ""
        self.met: str | None = None
        """The stop string that was met, or None."""

    def push(self, text: str) -> tuple[str, bool]:
        """Adds text to the stream. Returns the text that can be let out, and whether a stop string
        was met, after which nothing follows.

        If several strings end in `text`, the one that begins first counts."""
        automaton, state = self._automaton, self._state
        if not automaton:
            return text, False
        buffer = self._held + text
        first = last = len(buffer)
        for end, char in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, char)
            if automaton.length[state]:
                begin = end - automaton.length[state]
                first, last = (begin, end) if begin < first else (first, last)
        stopped = first < len(buffer)
        self.met = buffer[first:last] if stopped else None
        cut = first if stopped else len(buffer) - automaton.depth[state]
        self._state, self._held = (0, "") if stopped else (state, buffer[cut:])
        return buffer[:cut], stopped

    def flush(self) -> str:
        """The text held back, for a stream that ends without a stop string."""
        held, self._state, self._held = self._held, 0, ""
        return held
