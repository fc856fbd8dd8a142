"""`PrefixCache`: texts and checkpoints in host memory, within a number of bytes.

Both are found by their tokens: a checkpoint by the hash of all tokens before it, so that every text
that begins with them can use it, whichever text it came from.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict

import numpy as np
from numpy.typing import NDArray

from weft.llm.cache.snapshots import LEAST, Checkpoint, KeptText

Tokens = NDArray[np.int32]


class PrefixCache:
    """Texts and checkpoints beside a context; the least recently used ones are evicted first."""

    def __init__(self, most_bytes: int, most_checkpoints: int) -> None:
        self.most_bytes = most_bytes
        self.most_checkpoints = most_checkpoints
        self.nbytes = 0
        self.n_evicted = 0
        """Texts and checkpoints evicted since the start."""
        self._checkpoints: OrderedDict[bytes, Checkpoint] = OrderedDict()
        self._texts: OrderedDict[bytes, KeptText] = OrderedDict()
        self._used: dict[bytes, int] = {}  # when each was last used
        self._lengths: Counter[int] = Counter()  # of the checkpoints
        self._clock = 0

    @property
    def n_checkpoints(self) -> int:
        """Number of checkpoints."""
        return len(self._checkpoints)

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self._texts)

    def clear(self) -> None:
        """Forgets everything."""
        for table in (self._checkpoints, self._texts, self._used, self._lengths):
            table.clear()
        self.nbytes = 0

    # ---- checkpoints ----

    def checkpoints(self, key: bytes, tokens: Tokens) -> list[Checkpoint]:
        """The checkpoints to which a text with these tokens can go back, the longest last. `key` is
        that of `KeptText`."""
        hash_, at, found = _hash(key), 0, []
        for n in sorted(self._lengths):
            if n > len(tokens):
                break
            hash_.update(tokens[at:n].tobytes())
            at = n
            checkpoint = self._checkpoints.get(hash_.digest())
            if checkpoint is not None:
                found.append(checkpoint)
        return found

    def has_checkpoint(self, key: bytes, tokens: Tokens) -> bool:
        """True if there is one after all of these tokens; it counts as used."""
        return self._touch(self._checkpoints, _name(key, tokens))

    def add_checkpoint(self, key: bytes, tokens: Tokens, checkpoint: Checkpoint) -> None:
        """Keeps the state after `tokens`, unless it has no room."""
        name = _name(key, tokens)
        if self._touch(self._checkpoints, name) or not self.most_checkpoints:
            return
        if checkpoint.nbytes > self.most_bytes:
            return
        while len(self._checkpoints) >= self.most_checkpoints:
            self._evict(next(iter(self._checkpoints)))
        self._checkpoints[name] = checkpoint
        self._lengths[checkpoint.n] += 1
        self._added(name, checkpoint.nbytes)

    # ---- texts ----

    def longest(self, key: bytes, tokens: Tokens) -> tuple[KeptText | None, int]:
        """The text that has the longest beginning in common with `tokens`, and its length."""
        best, most = None, 0
        for text in self._texts.values():
            n = common_length(text.tokens, tokens) if text.key == key else 0
            if n > most:
                best, most = text, n
        return best, most

    def covers(self, key: bytes, tokens: Tokens) -> bool:
        """True if a text begins with these tokens; it counts as used."""
        text, n = self.longest(key, tokens)
        if text is None or n < len(tokens):
            return False
        return self._touch(self._texts, _text_name(text))

    def add_text(self, text: KeptText) -> None:
        """Keeps a text, unless it has no room, in place of those of which it has nearly all."""
        if text.nbytes > self.most_bytes:
            return
        for name, other in list(self._texts.items()):
            if other.key == text.key and holds(text.tokens, other.tokens):
                self._remove(name)
        name = _text_name(text)
        self._texts[name] = text
        self._added(name, text.nbytes)

    # ---- room ----

    def _touch(self, table: OrderedDict[bytes, KeptText] | OrderedDict[bytes, Checkpoint],
               name: bytes) -> bool:  # fmt: skip
        if name not in table:
            return False
        table.move_to_end(name)
        self._clock += 1
        self._used[name] = self._clock
        return True

    def _added(self, name: bytes, nbytes: int) -> None:
        self._clock += 1
        self._used[name] = self._clock
        self.nbytes += nbytes
        while self.nbytes > self.most_bytes:
            oldest = [next(iter(t)) for t in (self._checkpoints, self._texts) if t]
            self._evict(min(oldest, key=lambda one: self._used[one]))

    def _evict(self, name: bytes) -> None:
        self.n_evicted += 1
        self._remove(name)

    def _remove(self, name: bytes) -> None:
        del self._used[name]
        checkpoint = self._checkpoints.pop(name, None)
        if checkpoint is not None:
            self.nbytes -= checkpoint.nbytes
            self._lengths[checkpoint.n] -= 1
            if not self._lengths[checkpoint.n]:
                del self._lengths[checkpoint.n]
        else:
            self.nbytes -= self._texts.pop(name).nbytes


def common_length(a: Tokens, b: Tokens) -> int:
    """The number of tokens with which both begin."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def holds(tokens: Tokens, others: Tokens) -> bool:
    """True if a text has so many tokens of another one that the other need not be kept."""
    return len(others) <= len(tokens) and len(others) - common_length(tokens, others) < LEAST


def _text_name(text: KeptText) -> bytes:
    return b"text" + _name(text.key, text.tokens)


def _hash(key: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(len(key).to_bytes(4, "little") + key, digest_size=16)


def _name(key: bytes, tokens: Tokens) -> bytes:
    hash_ = _hash(key)
    hash_.update(np.ascontiguousarray(tokens, np.int32).tobytes())
    return hash_.digest()
