"""What is known of a call before it is complete: its name, and the arguments so far."""

from __future__ import annotations

import json

from weft.llm.answers.markers import CallMarkers

__all__ = ["Heard"]


class Heard:
    """Takes the characters of a call in JSON while it is read."""

    def __init__(self, markers: CallMarkers) -> None:
        self.name: str | None = None
        """The name, once the arguments begin."""
        self.pieces: list[str] = []
        """The arguments since they were last taken, without the bracket that ends them."""
        self._keyed = markers.kind == "keyed"
        self._keys = markers.name, markers.arguments
        self._said: str | None = None
        self._key = ""
        self._word: list[str] = []
        self._depth = 0
        self._least = 1  # the depth around the arguments
        self._quoted = self._escaped = self._is_value = self._inside = False

    def arguments(self, char: str) -> None:
        """Takes a character of arguments that stand alone."""
        self._inside, self._least = True, 0
        self._take(char)

    def call(self, char: str) -> None:
        """Takes a character of an object with name and arguments."""
        self._take(char)

    def _take(self, char: str) -> None:
        if self._quoted:
            self._in_string(char)
        elif char == '"':
            self._quoted, self._word = True, []
        elif char in ":," and self._depth == 1:
            self._is_value = char == ":"
        elif char in "{[":
            self._depth += 1
            if self._depth == 2 and char == "{" and self.name is None:
                self._begin()
        elif char in "}]":
            self._depth -= 1
            if self._depth == self._least:
                self._inside = False
        if self._inside:
            self.pieces.append(char)

    def _in_string(self, char: str) -> None:
        ends = char == '"' and not self._escaped
        self._escaped = char == "\\" and not self._escaped
        if not ends:
            self._word.append(char)
            return
        self._quoted = False
        if self._depth != 1 or self._inside:
            return
        try:
            text = str(json.loads(f'"{"".join(self._word)}"'))
        except ValueError:
            text = ""
        if not self._is_value:
            self._key = text
        elif self._key == self._keys[0]:
            self._said = text

    def _begin(self) -> None:
        """The arguments begin, if this is their key and the name is known."""
        if self._keyed:
            self._said = self._key
        elif self._key not in (self._keys[1], "arguments", "parameters"):
            return
        if self._said is not None:
            self.name, self._inside = self._said, True
