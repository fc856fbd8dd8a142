"""Limits the number of connections, and the time that each may take.

uvicorn waits without limit for the head and the body of a request, and asyncio accepts connections
until there are no more file descriptors. Here the number is limited, and a connection that has not
sent a complete request is closed to make room for others.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.bounds import CHUNK_BYTES, CHUNKS
from weft.serve.errors import error_body
from weft.serve.log import logger

_MOST_HEAD = 1 << 16
"""Maximum size in bytes of the head of a request, as in uvicorn."""
SPARE_FILES = 8
"""Number of file descriptors that stay free, besides those open when the server starts."""


def most_connections(wanted: int) -> int:
    """The number `wanted`, or fewer if this process may not open that number of further files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    try:
        n_open = len(os.listdir("/dev/fd"))
    except OSError:
        n_open = 16
    return max(min(wanted, files - n_open - SPARE_FILES), 1)


class _RefusedError(Exception):
    """A request that no application sees, or sees no more of."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Framing(h11.Connection):
    """The parser of a connection, which refuses large heads, bodies that take long to parse, and
    requests that say twice where they end."""

    _n_chunks = _n_bytes = 0

    def next_event(self) -> Any:
        """The next event. Raises _RefusedError."""
        in_head = self.their_state is h11.IDLE
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if in_head and error.error_status_hint == 431:
                message = f"the head of the request has more than {_MOST_HEAD} bytes"
                raise _RefusedError(message, 431) from None
            raise
        if isinstance(event, h11.Request):
            self._n_chunks = self._n_bytes = 0
            n_head = len(event.target) + sum(len(k) + len(v) for k, v in event.headers)
            if n_head > _MOST_HEAD:  # in one piece; h11 bounds those that are not whole
                raise _RefusedError(
                    f"the head of the request has {n_head} bytes; it may have {_MOST_HEAD}", 431
                )
            names = {name for name, _ in event.headers}
            if {b"transfer-encoding", b"content-length"} <= names:
                raise _RefusedError(
                    "the request has both Transfer-Encoding and Content-Length; leave one out"
                )
        elif isinstance(event, h11.Data):
            self._n_bytes += len(event.data)
            self._n_chunks += event.chunk_start
            if self._n_chunks > CHUNKS + self._n_bytes // CHUNK_BYTES:
                raise _RefusedError(
                    f"the body has {self._n_chunks} chunks for {self._n_bytes} bytes; it may have "
                    f"{CHUNKS}, and one more for every {CHUNK_BYTES} bytes"
                )
        return event


class Connection(H11Protocol):
    """A connection with time limits for the client."""

    head_seconds: float
    """Time limit for the head of a request, from the start or from the end of the last answer."""
    body_seconds: float
    """Time limit for the body of a request, and for a client that does not read its answer."""
    refused: Callable[[int], None]
    """Gets the status of an answer to what no application sees."""
    phase = ""
    """The present phase: waiting for the `head` of a request or its `body`, or for the `answer`."""
    _timer: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True if the client has no complete request under way, so that closing loses nothing."""
        return self.phase != "answer"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to wait for a request."""
        super().connection_made(transport)
        self.conn = _Framing(h11.SERVER, max_incomplete_event_size=_MOST_HEAD)
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers. A request without an answer has the status of a client that left."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.scope["state"].setdefault("sent", 499)
        self._enter("closed")
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handles data from the client."""
        super().data_received(data)
        self._note()

    def handle_events(self) -> None:
        """Handles what has come; refuses what `_Framing` refuses, and closes the connection."""
        if self.transport.is_closing():
            return
        try:
            super().handle_events()
        except _RefusedError as error:
            logger.warning("a request was refused: %s", error)
            self._refuse(error.status, str(error))

    def send_400_response(self, msg: str) -> None:
        """Refuses what is not HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answers in place of the application, unless an answer has begun, and closes the
        connection. The application's log has the status where it has seen the request."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_answer(status, message))
            if self.cycle is None or self.cycle.response_complete:
                self.refused(status)
            else:
                self.cycle.scope["state"]["sent"] = status
        self.transport.close()

    def on_response_complete(self) -> None:
        """Starts to wait for the next request."""
        super().on_response_complete()
        self._note(ended=True)

    def shutdown(self) -> None:
        """Lets an answer end, and closes the connection otherwise."""
        super().shutdown()
        if self.waits:
            self.transport.close()

    def pause_writing(self) -> None:
        """Starts the time limit of a client that does not read its answer."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stops the time limit of a client that reads again."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _note(self, ended: bool = False) -> None:
        """Updates the phase."""
        state = self.conn.their_state
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            phase = "head"
        else:
            phase = "body" if state is h11.SEND_BODY else "answer"
        if phase != self.phase or ended:
            self._enter(phase)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = {"head": self.head_seconds, "body": self.body_seconds}.get(phase)
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self.transport.is_closing():
            return
        if self.phase == "body":
            self._refuse(408, f"the body did not come within {self.body_seconds:g} seconds")
        self.transport.close()


def _uncounted(status: int) -> None:
    """Counts nothing."""


class Door:
    """Accepts connections while there is room. If there is none, it closes the oldest connection
    without a complete request, of the address that has most of these."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], Connection],
        most: int,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        tls_seconds: float = 10.0,
        refused: Callable[[int], None] = _uncounted,
    ) -> None:
        """`listener` is a bound socket, `make` creates the protocol of a connection, and `most` is
        the most connections. `tls` gives the settings for the next connection (None: plain HTTP),
        whose client has `tls_seconds` to agree on them. `refused` gets the status of what is
        answered to a client that is turned away."""
        self._refused = refused
        self._listener = listener
        self._tls, self._tls_seconds = tls, tls_seconds
        self._greeted: dict[asyncio.Task[None], None] = {}  # in order of coming
        self._make = make
        self._most = most
        self._inside: dict[Connection, None] = {}  # in order of coming
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts to accept connections."""
        self._listener.setblocking(False)
        self._listener.listen(1024)
        self._task = asyncio.get_running_loop().create_task(self._take_all())

    def close(self) -> None:
        """Accepts no more connections; open ones stay."""
        if self._task is not None:
            self._task.cancel()
        for task in list(self._greeted):
            task.cancel()
        self._listener.close()

    async def _take_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # the client has left already
                self._make_room()
                logger.warning("no file descriptor for another connection")
                await asyncio.sleep(0.1)
                continue
            tls = self._tls()
            n = len(self._present()) + len(self._greeted)
            if n >= self._most and not self._make_room():
                if _turn_away(sock, plain=tls is None):
                    self._refused(503)
                continue
            if tls is None:
                await self._let_in(sock, {})
                continue
            # others do not wait for a client that is slow to agree
            seconds = {"ssl_handshake_timeout": self._tls_seconds, "ssl_shutdown_timeout": 1.0}
            task = loop.create_task(self._let_in(sock, {"ssl": tls, **seconds}))
            self._greeted[task] = None
            task.add_done_callback(lambda done: self._greeted.pop(done, None))

    async def _let_in(self, sock: socket.socket, tls: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await loop.connect_accepted_socket(self._make, sock, **tls)
        except OSError:  # errors of TLS are such, too
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise
        else:
            self._inside[protocol] = None

    def _present(self) -> list[Connection]:
        for one in [c for c in self._inside if c.transport.is_closing()]:
            del self._inside[one]
        return list(self._inside)

    def _make_room(self) -> bool:
        """Closes a connection without a complete request; False if there is none."""
        waiting = [c for c in self._present() if c.waits]
        if not waiting and self._greeted:
            oldest_task = next(iter(self._greeted))
            oldest_task.cancel()
            del self._greeted[oldest_task]
            return True
        if not waiting:
            return False
        by_address = Counter(_address(c) for c in waiting)
        most = max(by_address.values())
        oldest = next(c for c in waiting if by_address[_address(c)] == most)
        oldest.transport.abort()
        del self._inside[oldest]
        logger.warning("connections that sent no request were closed to make room for others")
        return True


def _address(connection: Connection) -> str:
    return connection.client[0] if connection.client else ""


def _turn_away(sock: socket.socket, plain: bool) -> bool:
    """Tells a client that there is no room, unless that would block or the client expects TLS. True
    if it was sent."""
    logger.warning("connections were turned away, since as many as may be are being answered")
    with sock:
        if not plain:
            return False
        try:
            sock.setblocking(False)
            sock.send(_answer(503, "all connections of this server are in use; try again later"))
        except OSError:
            return False
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1 << 16)  # with unread data, the system would drop the answer
        return True


def _answer(status: int, message: str) -> bytes:
    """An HTTP answer with an error, for connections that no application handles."""
    body = json.dumps(error_body(status, message)).encode()
    reason = HTTPStatus(status).phrase
    retry = "Retry-After: 1\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{retry}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def connection_class(
    head_seconds: float, body_seconds: float, refused: Callable[[int], None] = _uncounted
) -> type[Connection]:
    """A `Connection` class with these time limits, which tells `refused` the status of each answer
    to what no application sees."""
    parts: dict[str, Any] = {"head_seconds": head_seconds, "body_seconds": body_seconds}
    return type("TimedConnection", (Connection,), parts | {"refused": staticmethod(refused)})
