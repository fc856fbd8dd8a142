"""Bytes to and from a socket, with bounds on how long either may stand still."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from weft.errors import LinkError

_TICK = 0.5
"""Number of seconds after which a wait checks the clock again."""


class TimedOut(LinkError):
    """Nothing came in the time that the caller gave; the link is as good as before."""


class Incoming:
    """The bytes that come from a socket, through a buffer of `room` bytes."""

    def __init__(
        self, sock: socket.socket, room: int, silence: float, idle: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(room))
        self._begin = self._end = 0
        self.silence = silence
        self._idle = idle
        self._waits: float | None = -1.0
        self.received = 0
        self.heard = time.monotonic()
        self._silent = 0.0

    def need(self, n: int, until: float | None = None) -> memoryview:
        """The next `n` bytes, at most `room`; valid until the next call.

        Raises TimedOut, with nothing taken, at the time `until` of `time.monotonic`, and LinkError
        where the other side closed or has said nothing for too long."""
        if self._begin + n > len(self._buffer):
            kept = self._end - self._begin
            self._buffer[:kept] = self._buffer[self._begin : self._end].tobytes()
            self._begin, self._end = 0, kept
        while self._end - self._begin < n:
            self._more(until)
        self._begin += n
        taken = self._buffer[self._begin - n : self._begin]
        if self._begin == self._end:
            self._begin = self._end = 0
        return taken

    def _more(self, until: float | None) -> None:
        # Ticks are counted, not seconds: of a time in which this process itself was stopped,
        # one tick counts. They add up over waits that end by their time, too.
        began = time.monotonic()
        while True:
            left = _TICK if until is None else min(_TICK, until - time.monotonic())
            if left <= 0:
                raise TimedOut(f"nothing came in {time.monotonic() - began:.1f} s")
            if self._waits != left:
                self._sock.settimeout(left)
                self._waits = left
            try:
                n = self._sock.recv_into(self._buffer[self._end :])
            except TimeoutError:
                self._silent += left
                if self._silent > self.silence:
                    raise LinkError(
                        f"it has said nothing for {self._silent:.1f} s (the limit is "
                        f"{self.silence:g} s): its process is stopped, its machine is down or the "
                        "network between is cut"
                    ) from None
                self._idle()
                continue
            if n == 0:
                raise LinkError("it closed the connection, without a goodbye: its process ended")
            self._end += n
            self.received += n
            self.heard, self._silent = time.monotonic(), 0.0
            return


class Outgoing:
    """The bytes that go to a socket."""

    def __init__(self, sock: socket.socket, silence: float) -> None:
        self._sock = sock
        self.silence = silence
        sock.settimeout(_TICK)
        self.sent = 0

    def write(self, data: memoryview) -> None:
        """Sends all of `data`; raises LinkError where the other side takes nothing for too long."""
        at, silent = 0, 0.0
        while at < len(data):
            try:
                n = self._sock.send(data[at:])
            except TimeoutError:
                silent += _TICK
                if silent > self.silence:
                    raise LinkError(
                        f"it has taken nothing for {silent:.1f} s (the limit is "
                        f"{self.silence:g} s): its process is stopped, its machine is down or the "
                        "network between is cut"
                    ) from None
                continue
            at, silent = at + n, 0.0
            self.sent += n

    def close(self) -> None:
        """Gives back the socket."""
        self._sock.close()


def exactly(sock: socket.socket, n: int, until: float) -> bytes:
    """`n` bytes of a socket, no more, until a time of `time.monotonic` that bounds them all."""
    parts = bytearray()
    while len(parts) < n:
        left = until - time.monotonic()
        if left <= 0:
            raise TimedOut(f"the other side sent {len(parts)} of {n} bytes in time")
        sock.settimeout(left)
        try:
            part = sock.recv(n - len(parts))
        except TimeoutError:
            continue
        if not part:
            raise LinkError(f"the other side closed the connection after {len(parts)} bytes")
        parts += part
    return bytes(parts)
