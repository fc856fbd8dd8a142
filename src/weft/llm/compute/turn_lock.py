"""`TurnLock` lets one text at a time use a context, in order of arrival."""

from __future__ import annotations

from collections import deque
from threading import Condition, get_ident

__all__ = ["TurnLock"]


class TurnLock:
    """A lock for generators, which may end in any thread, or never.

    A thread waits while another thread has the turn. If it has the turn itself, a new text takes it
    over from the unfinished one, since waiting for that would never end."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: deque[object] = deque()
        self._holder: object | None = None
        self._thread = 0

    def take(self) -> object:
        """Waits for the turn; returns the argument for `holds` and `leave`."""
        mine = object()
        with self._changed:
            if self._holder is None or self._thread != get_ident():
                self._waiting.append(mine)
                try:
                    while self._holder is not None or self._waiting[0] is not mine:
                        self._changed.wait()
                finally:  # also after Ctrl-C
                    self._waiting.remove(mine)
                    self._changed.notify_all()
            self._holder, self._thread = mine, get_ident()
        return mine

    def holds(self, turn: object) -> bool:
        """True if no other text has taken the turn over."""
        return self._holder is turn

    def leave(self, turn: object) -> None:
        """Ends the turn; does nothing if it was taken over."""
        with self._changed:
            if self._holder is turn:
                self._holder = None
                self._changed.notify_all()
