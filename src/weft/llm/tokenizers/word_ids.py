"""`WordIds`: the token ids of words, which occur again and again in texts."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["WordIds"]

_MOST_WORDS = 1 << 16
_LONGEST = 64  # characters; longer words hardly occur twice


class WordIds(dict[str, list[int]]):
    """A cache of the ids of words; an unknown word is encoded when it is looked up."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _LONGEST:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids
