"""How much is decoded at a time, and for one request: files of a few kilobytes may have gigabytes
of pixels and samples in them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.bounds import DECODED_AT_ONCE, DECODED_OF_REQUEST, DECODING_SECONDS, DECODINGS_WAITING
from weft.errors import BusyError, ContextError

__all__ = ["decoding", "one_request"]

_LARGE = 1 << 21
"""Number of values after whose decoding memory is given back to the system."""
_spent: ContextVar[list[int] | None] = ContextVar("spent", default=None)


class _Room:
    """What is being decoded by all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n = 0
        self._n_waiting = 0

    @contextmanager
    def taken(self, n: int) -> Iterator[None]:
        """Waits for room for `n` values. Raises BusyError if too many wait, or for too long."""
        with self._changed:
            if not self._fits(n):
                self._wait(n)
            self._n += n
        try:
            yield
        finally:
            with self._changed:
                self._n -= n
                self._changed.notify_all()

    def _fits(self, n: int) -> bool:
        return not self._n or self._n + n <= DECODED_AT_ONCE

    def _wait(self, n: int) -> None:
        full = self._n_waiting >= DECODINGS_WAITING
        self._n_waiting += 1
        try:
            if full or not self._changed.wait_for(lambda: self._fits(n), DECODING_SECONDS):
                raise BusyError("too many images and sounds are being decoded; try again later")
        finally:
            self._n_waiting -= 1


_room = _Room()


@contextmanager
def decoding(n: int) -> Iterator[None]:
    """Decodes `n` pixels or samples in the block, when there is room for them.

    Raises ContextError if the request (see `one_request`) has too many of them, and BusyError if
    there is no room for a while."""
    spent = _spent.get()
    if spent is not None:
        spent[0] += n
        if spent[0] > DECODED_OF_REQUEST:
            raise ContextError(
                f"images and sounds have more than {DECODED_OF_REQUEST} pixels and samples "
                "together; give fewer, or smaller ones"
            )
    with _room.taken(n):
        yield
    if n >= _LARGE:
        _give_back()


@contextmanager
def one_request() -> Iterator[None]:
    """What is decoded in the block, by this thread, is of one request."""
    before = _spent.set([0])
    try:
        yield
    finally:
        _spent.reset(before)


_given_back = [0.0]


def _give_back() -> None:
    """Lets glibc return what decoders have freed: gigabytes after a few large images. Other C
    libraries return it by themselves."""
    now = time.monotonic()
    if now - _given_back[0] < 0.1:
        return
    _given_back[0] = now
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass
