"""Limits of keys: requests in a minute, tokens in a day, requests at a time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from weft.keys.store import Key, KeyStore, today

MINUTE, DAY = 60.0, 86400
MOST_NOTED = 100_000
"""Maximum number of requests of a key that are remembered for its limit in a minute."""


class LimitError(Exception):
    """A request is beyond a limit of its key."""

    def __init__(self, name: str, message: str, seconds: float) -> None:
        """`name` is the name of the limit; after `seconds` the client may try again."""
        super().__init__(message)
        self.name = name
        self.seconds = max(1, ceil(seconds))


class Limits:
    """Counts requests of keys. For one thread.

    Requests in a minute are counted here, and forgotten when the process ends. Tokens of a day are
    those that the store has: a request that is under way counts when its texts end, so that a key
    may go beyond this limit by what it has under way."""

    def __init__(self, store: KeyStore | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._recent: dict[str, deque[float]] = {}
        self._running: Counter[str] = Counter()

    @contextmanager
    def request(self, key: Key) -> Iterator[None]:
        """Counts a request while the block runs. Raises LimitError if it is beyond a limit."""
        self._check_parallel(key)
        self.check_tokens(key)
        self._check_minute(key)
        self._running[key.name] += 1
        try:
            yield
        finally:
            self._running[key.name] -= 1
            if not self._running[key.name]:
                del self._running[key.name]

    def _check_parallel(self, key: Key) -> None:
        most = key.max_parallel
        if most is not None and self._running[key.name] >= most:
            raise LimitError(
                "max_parallel", f"this key may have {most} requests at a time (max_parallel); wait "
                "for one to end", 1,
            )  # fmt: skip

    def check_tokens(self, key: Key) -> None:
        """Raises LimitError if the key has used its tokens of today."""
        most = key.limit_tpd
        if most is None or self._store is None:
            return
        now = time.time()
        used = self._store.tokens_of_day(key.name, today(now))
        if used >= most:
            raise LimitError(
                "limit_tpd", f"this key has used {used} of its {most} tokens of today "
                "(limit_tpd); the next day begins at 0:00 UTC", DAY - now % DAY,
            )  # fmt: skip

    def _check_minute(self, key: Key) -> None:
        most = key.limit_rpm
        if most is None:
            return
        now = self._clock()
        recent = self._recent.setdefault(key.name, deque(maxlen=MOST_NOTED))
        while recent and recent[0] <= now - MINUTE:
            recent.popleft()
        if len(recent) >= min(most, MOST_NOTED):
            raise LimitError(
                "limit_rpm", f"this key may ask {most} times in a minute (limit_rpm)",
                recent[0] + MINUTE - now,
            )  # fmt: skip
        recent.append(now)
