"""Who may use a context: one text at a time, first come, first served."""

from __future__ import annotations

from collections import deque
from threading import Condition, get_ident

__all__ = ["TurnLock"]


class TurnLock:
    """A lock for generators, which may end in any thread, or never.

    A thread that asks while another thread has the turn waits. A thread that asks while it has the
    turn itself takes it over from its own unfinished text: waiting would be for ever."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: deque[object] = deque()
        self._holder: object | None = None
        self._thread = 0

    def take(self) -> object:
        """Waits for the turn; returns what `holds` and `leave` want."""
        mine = object()
        with self._changed:
            if self._holder is None or self._thread != get_ident():
                self._waiting.append(mine)
                try:
                    while self._holder is not None or self._waiting[0] is not mine:
                        self._changed.wait()
                finally:  # Ctrl-C, too
                    self._waiting.remove(mine)
                    self._changed.notify_all()
            self._holder, self._thread = mine, get_ident()
        return mine

    def holds(self, turn: object) -> bool:
        """Whether nobody has taken it over."""
        return self._holder is turn

    def leave(self, turn: object) -> None:
        """Lets the next one in; does nothing when the turn was taken over."""
        with self._changed:
            if self._holder is turn:
                self._holder = None
                self._changed.notify_all()
