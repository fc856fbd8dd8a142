"""`Stream`: copies from the memory of one worker straight to the memory of another."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from weft.errors import DeviceError
from weft.links.link import HeldInterrupt

GATHERED = 1 << 20
"""Bytes of arrays after which a frame goes out."""


class _End(Protocol):
    """The part of a `Machine` that a stream needs."""

    name: str

    @property
    def connection(self) -> object: ...
    def post(self, command: list[Any]) -> None: ...
    def leave(self) -> None: ...
    def flush(self) -> None: ...
    def leave_stream(self, stream: object) -> None: ...


class Stream:
    """Copies from the memory of one worker to the memory of another, in order."""

    def __init__(self, source: _End, target: _End, secret: str, number: int) -> None:
        self.source, self.target = source, target
        self._connections = source.connection, target.connection
        self._secret, self._number = secret, number
        self._lock = threading.Lock()
        self._sent = 0

    def copy(self, source: tuple[int, int], target: tuple[int, int], nbytes: int) -> None:
        """Copies from (block, offset) to (block, offset), behind the commands of both workers."""
        with self._lock:
            if self._connections != (self.source.connection, self.target.connection):
                raise DeviceError(f"{self.source.name} or {self.target.name} was lost meanwhile")
            n = self._sent = self._sent + 1
            with HeldInterrupt():
                try:
                    self.source.post(["send", self._secret, n, *source, nbytes])
                    self.target.post(["take", self._number, n, *target, nbytes])
                except BaseException:  # it may have but one half
                    self.target.leave_stream(self)
                    raise
            self.source.leave()
        if nbytes >= GATHERED or n % 256 == 0:  # so that the sender never waits for long
            self.source.flush()
            self.target.flush()
