"""Ctrl-C that waits until a frame is whole, because half a frame would be the end of a link."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["HeldInterrupt"]


class HeldInterrupt:
    """Holds Ctrl-C back inside of a `with`, and raises KeyboardInterrupt at its end; a second one
    at once. Other handlers than Python's own stay as they are."""

    __slots__ = ("_came", "_holds")

    def __init__(self) -> None:
        self._came = self._holds = False

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._holds = True
                signal.signal(signal.SIGINT, self._hold)

    def _hold(self, *_: Any) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._came and (kind is None or not issubclass(kind, KeyboardInterrupt)):
                raise KeyboardInterrupt
