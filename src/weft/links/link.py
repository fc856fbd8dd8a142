"""A link: frames of a header and arrays between two processes that know one key.

A frame is a prefix, a table and the arrays. All of them are sealed records (`sealed.py`): the
prefix is `kind, number of arrays, bytes of the header`; the table is the sizes of the arrays and
the header as JSON; arrays come in pieces of `PIECE` bytes. Kinds are data, ping, pong and bye.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from weft.errors import LinkError
from weft.links.sealed import TAG, Opener, Sealer
from weft.links.stream import Incoming, Outgoing, TimedOut
from weft.records import dataclass


class HeldInterrupt:
    """Holds Ctrl-C back inside of a `with`, because half a frame would be the end of a link, and
    raises KeyboardInterrupt at its end; a second one at once. Other handlers than Python's own stay
    as they are."""

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


Header = dict[str, Any]
"""A JSON object: numbers, texts, lists, dictionaries, true, false, null."""
Array = memoryview
Place = Callable[[Header, Sequence[int]], Sequence[Array]]
"""Gives the memory, one writable view of bytes per array, that a frame's arrays are put in."""

PIECE = 256 << 10
"""Number of bytes of an array that are sealed as one record."""
PROBE = 1 << 20
"""Maximum number of bytes of padding of a ping."""
_PREFIX = struct.Struct("<B3xII")
_DATA, _PING, _PONG, _BYE = range(4)
_TIMES = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a link; what is beyond is refused before memory is taken for it."""

    header: int = 16 << 20
    """Maximum number of bytes of a header."""
    arrays: int = 4096
    """Maximum number of arrays in a frame."""
    frame: int = 16 << 30
    """Maximum number of bytes of all arrays of a frame that go to memory which the caller gives."""
    allocated: int = 1 << 30
    """Maximum number of bytes of all arrays of a frame for which the link itself takes memory."""
    silence: float = 10.0
    """Number of seconds without a byte after which the other side counts as lost."""
    ping: float = 1.0
    """Number of seconds between two pings during a wait."""


class Link:
    """One end of a connection. `send` may be called from any thread, `receive` from one at a time.

    Heartbeats go out and are answered while a thread is in `receive`: a process that computes for
    long keeps a thread there."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        sealer: Sealer,
        opener: Opener,
        limits: Limits | None = None,
    ) -> None:
        self.peer = peer
        """The name of the other end in errors."""
        self.limits = limits or Limits()
        self.facts: dict[str, str] = {}
        """The facts that the other side stated when it connected."""
        self._sock = sock
        self._sealer, self._opener = sealer, opener
        self._sending = threading.Lock()
        self._scratch = memoryview(bytearray(2 * PIECE))
        self._filled = 0
        self._out = Outgoing(sock.dup(), self.limits.silence)
        self._in = Incoming(sock, 2 * PIECE, self.limits.silence, self._idle)
        self._why = ""
        self._closed = threading.Lock()
        self._pinged = 0.0
        self._rtts: deque[tuple[int, int]] = deque(maxlen=16)
        self._rates: deque[float] = deque(maxlen=16)
        self._probing: dict[int, int] = {}
        self.pings = 0
        """Number of answers to pings so far."""
        self.last_rtt = 0.0
        """Number of seconds until the last answer to a ping came."""
        self.probes: deque[tuple[int, float]] = deque(maxlen=16)
        """(bytes, seconds until the answer) of the last pings with padding."""

    def use_limits(self, limits: Limits) -> None:
        """Keeps to other limits from now on."""
        self.limits = limits
        self._in.silence = self._out.silence = limits.silence

    # ---- figures ----

    @property
    def bytes_sent(self) -> int:
        """Bytes that were given to the network, with what sealing adds."""
        return self._out.sent

    @property
    def bytes_received(self) -> int:
        """Bytes that came from the network."""
        return self._in.received

    @property
    def heard(self) -> float:
        """The time of `time.monotonic` at which the last bytes came."""
        return self._in.heard

    @property
    def rtt(self) -> float | None:
        """Seconds from a ping to its answer, the least of the last 16; None before the first."""
        return min(self._rtts)[0] / 1e9 if self._rtts else None

    @property
    def clock_offset_ns(self) -> int | None:
        """`time.perf_counter_ns` of the other side less ours, as the fastest ping tells it."""
        return min(self._rtts)[1] if self._rtts else None

    @property
    def rates(self) -> list[float]:
        """Bytes per second of the last large frames that came in."""
        return list(self._rates)

    @property
    def closed(self) -> bool:
        """Whether the link can be used no more."""
        return bool(self._why)

    # ---- out ----

    def send(self, header: Header, *arrays: Any) -> None:
        """Sends a frame: a header, and arrays as anything with contiguous bytes.

        Raises LinkError where the frame is beyond the limits, or the other side is gone."""
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        views = [memoryview(array).cast("B") for array in arrays]
        self._check(len(text), len(views), sum(v.nbytes for v in views), self.limits.frame)
        with HeldInterrupt(), self._sending:
            self._frame(_DATA, text, views)

    def ping(self, padding: int = 0) -> None:
        """Sends a ping; `rtt` has the time of the round trip once the answer has come.

        With `padding` bytes, at most PROBE, `probes` has the time instead."""
        now = time.perf_counter_ns()
        with HeldInterrupt(), self._sending:
            if padding:
                self._probing[now] = padding
            self._frame(_PING, _TIMES.pack(now, 0) + bytes(padding), [])

    def _frame(self, kind: int, text: bytes, views: list[memoryview]) -> None:
        if self._why:
            raise LinkError(self._why)
        try:
            self._seal(_PREFIX.pack(kind, len(views), len(text)))
            sizes = struct.pack(f"<{len(views)}Q", *(v.nbytes for v in views))
            for piece in _pieces(memoryview(sizes + text)):
                self._seal(piece)
            for view in views:
                for piece in _pieces(view):
                    self._seal(piece)
            self._flush()
        except (OSError, LinkError) as error:
            raise self._broken(error) from error
        except BaseException as error:  # half a frame is on its way
            self._broken(LinkError(f"sending was broken off: {error!r}"))
            raise

    def _seal(self, contents: memoryview | bytes) -> None:
        size = len(contents) + TAG
        if self._filled + size > len(self._scratch):
            self._flush()
        at, self._filled = self._filled, self._filled + size
        self._sealer.seal(contents, self._scratch[at : self._filled])

    def _flush(self) -> None:
        n, self._filled = self._filled, 0
        self._out.write(self._scratch[:n])

    # ---- in ----

    def receive(self, timeout: float | None = None) -> tuple[Header, list[Array]]:
        """The next frame, its arrays in memory of their own.

        Raises `TimedOut` where no frame begins within `timeout` seconds: another call may follow.
        Any other LinkError is the end of the link and names the other side."""
        return self.receive_into(self.own, timeout)

    def receive_into(
        self, place: Place, timeout: float | None = None
    ) -> tuple[Header, list[Array]]:
        """The next frame, its arrays in the memory that `place(header, sizes)` gives.

        A view longer than the array is filled in part. Raises as `receive` does, and what `place`
        raises, which ends the link."""
        if self._why:
            raise LinkError(self._why)
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                frame = self._next(place, until)
                if frame is not None:
                    return frame
        except TimedOut as error:
            raise TimedOut(f"{self.peer}: {error}") from None
        except (OSError, LinkError, ValueError, RecursionError) as error:
            raise self._broken(error) from error
        except BaseException as error:
            self._broken(LinkError(f"receiving was broken off: {error!r}"))
            raise

    def _next(self, place: Place, until: float | None) -> tuple[Header, list[Array]] | None:
        prefix = memoryview(bytearray(_PREFIX.size))
        self._opener.open(self._in.need(_PREFIX.size + TAG, until), prefix)
        kind, n_arrays, n_text = _PREFIX.unpack(prefix)
        self._check(n_text, n_arrays, 0, 0)
        if kind != _DATA:
            self._control(kind, n_arrays, n_text)
            return None
        table = self._read(memoryview(bytearray(8 * n_arrays + n_text)))
        sizes = struct.unpack_from(f"<{n_arrays}Q", table)
        self._check(n_text, n_arrays, sum(sizes), self.limits.frame)
        header = json.loads(bytes(table[8 * n_arrays :]))
        if not isinstance(header, dict):
            raise LinkError("its header is not a JSON object")
        views = [memoryview(view).cast("B") for view in place(header, sizes)]
        if len(views) != n_arrays or any(v.nbytes < n for v, n in zip(views, sizes, strict=True)):
            raise LinkError(f"it sent arrays of {list(sizes)} bytes, which are not the expected")
        began = time.perf_counter()
        arrays = [self._read(view[:n]) for view, n in zip(views, sizes, strict=True)]
        if (total := sum(sizes)) >= 4 * PIECE:
            self._rates.append(total / (time.perf_counter() - began))
        return header, arrays

    def _read(self, into: memoryview) -> memoryview:
        for piece in _pieces(into):
            self._opener.open(self._in.need(len(piece) + TAG), piece)
        return into

    def own(self, _: Header, sizes: Sequence[int]) -> list[Array]:
        """(for `receive_into`) memory that this call takes, within `Limits.allocated`."""
        if sum(sizes) > self.limits.allocated:
            raise LinkError(
                f"it sent {sum(sizes)} bytes of arrays, more than the {self.limits.allocated} that "
                "a frame may have"
            )
        return [np.empty(n, np.uint8).data for n in sizes]

    def _check(self, header: int, arrays: int, nbytes: int, most: int) -> None:
        for name, value, limit in (
            ("a header", header, self.limits.header),
            ("arrays", arrays, self.limits.arrays),
            ("bytes of arrays", nbytes, most),
        ):
            if value > limit:
                raise LinkError(
                    f"a frame between here and {self.peer} has {value} "
                    f"{'bytes of ' * (name == 'a header')}{name}; at most {limit} are allowed"
                )

    # ---- heartbeats and the end ----

    def _control(self, kind: int, n_arrays: int, n_text: int) -> None:
        if n_arrays or n_text > (_TIMES.size + PROBE if kind == _PING else 1024):
            raise LinkError(f"a control frame of {n_text} bytes with {n_arrays} arrays")
        text = bytes(self._read(memoryview(bytearray(n_text))))
        if kind == _BYE:
            reason = text.decode("utf-8", "replace")
            raise LinkError("it closed the connection" + (f": {reason}" if reason else ""))
        if kind not in (_PING, _PONG) or n_text < _TIMES.size:
            raise LinkError(f"a control frame of kind {kind} with {n_text} bytes")
        asked, theirs = _TIMES.unpack_from(text)
        now = time.perf_counter_ns()
        if kind == _PING:
            with self._sending:
                self._frame(_PONG, _TIMES.pack(asked, now), [])
        elif asked <= now:
            self._answered(asked, theirs, now)

    def _answered(self, asked: int, theirs: int, now: int) -> None:
        padding = self._probing.pop(asked, 0)
        if padding:
            self.probes.append((padding, (now - asked) / 1e9))
            return
        self._rtts.append((now - asked, theirs - (asked + now) // 2))
        self.last_rtt = (now - asked) / 1e9
        self.pings += 1

    def _idle(self) -> None:
        """Asks whether the other side is there, unless a frame is on its way to it."""
        now = time.monotonic()
        if now - self._pinged >= self.limits.ping and self._sending.acquire(blocking=False):
            try:
                self._pinged = now
                self._frame(_PING, _TIMES.pack(time.perf_counter_ns(), 0), [])
            finally:
                self._sending.release()

    def _broken(self, error: Exception) -> LinkError:
        why = str(error) if isinstance(error, LinkError) else f"{error}"
        if not self._why:
            self._why = why if self.peer in why else f"{self.peer}: {why}"
        self._shut()
        return LinkError(self._why)

    def close(self, reason: str = "") -> None:
        """Says goodbye and ends the link; a `receive` under way in another thread ends, too."""
        closed = f"{self.peer}: this link was closed here"
        if not self._why and self._sending.acquire(timeout=0.2):
            try:
                self._frame(_BYE, reason.encode()[:1024], [])
                self._why = self._why or closed
                self._leave()
            except (LinkError, OSError):
                pass
            finally:
                self._sending.release()
        self._why = self._why or closed
        self._shut()

    def _leave(self) -> None:
        """Ends this direction and drops what has come: with bytes unread, closing the socket would
        reset the connection, and the other side would lose the goodbye."""
        self._sock.shutdown(socket.SHUT_WR)
        self._sock.setblocking(False)
        while self._sock.recv(PIECE):
            pass

    def _shut(self) -> None:
        with self._closed:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._out.close()
            self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Link({self.peer}{', closed' * self.closed})"


def _pieces(view: memoryview) -> list[memoryview]:
    if len(view) <= PIECE:
        return [view] if len(view) else []
    return [view[at : at + PIECE] for at in range(0, len(view), PIECE)]
