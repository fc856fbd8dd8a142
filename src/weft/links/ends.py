"""The two ends of a link: `connect`, and a `Listener` that hands out links."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Self

from weft.errors import LinkError
from weft.links.addresses import Address, is_loopback
from weft.links.handshake import greet_client, greet_server
from weft.links.keys import NO_KEY
from weft.links.link import Limits, Link
from weft.links.stream import TimedOut

HANDSHAKE_S = 15.0
"""Number of seconds that a connection and its handshake may take; a busy worker takes several."""
HALF_OPEN = 32
"""Maximum number of connections whose handshake is under way; beyond it the oldest is closed."""
_ANSWER_S = 5.0
"""Number of seconds within which the system of the other machine answers."""
_READY = 64
"""Maximum number of links that nobody has accepted yet."""


def connect(
    address: tuple[str, int],
    *,
    key: bytes | None = None,
    timeout: float = HANDSHAKE_S,
    facts: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Link:
    """A link to the listener at `address`, which proves that it knows `key`, as this side does.

    `facts` are compared with the other side's, and so is weft's version. `timeout` bounds
    the whole of it, in seconds. Raises LinkError, naming the address."""
    at = Address(*address)
    if key is None and not is_loopback(at.host):
        raise LinkError(
            f"{at} is another machine, and a link to it needs the key of its worker: give "
            "--machine-key-file FILE, or WEFT_MACHINE_KEY"
        )
    until = time.monotonic() + timeout
    try:
        sock = socket.create_connection(at, wait := min(timeout, _ANSWER_S))
    except TimeoutError:
        raise LinkError(f"{at} did not answer within {wait:g} s") from None
    except OSError as error:
        raise LinkError(f"cannot connect to {at}: {error.strerror or error}") from error
    return _greet(greet_server, sock, str(at), key, facts, until, limits, timeout)


def _greet(
    greet: Callable[..., Link],
    sock: socket.socket,
    peer: str,
    key: bytes | None,
    facts: Mapping[str, str] | None,
    until: float,
    limits: Limits | None,
    timeout: float,
) -> Link:
    try:
        sock.settimeout(timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return greet(sock, peer, NO_KEY if key is None else key, facts or {}, until, limits)
    except (TimedOut, TimeoutError):
        sock.close()
        raise LinkError(f"{peer} did not finish the handshake within {timeout:g} s") from None
    except LinkError as error:
        sock.close()
        raise LinkError(str(error) if peer in str(error) else f"{peer}: {error}") from error
    except OSError as error:
        sock.close()
        raise LinkError(f"{peer}: the handshake failed: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise


def bound_socket(at: Address) -> socket.socket:
    """A socket that listens. Raises LinkError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    try:
        return socket.create_server(at, family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise LinkError(f"cannot listen on {at}: {error}") from error


class Listener:
    """Waits for connections and makes links of the connections that prove the key.

    Each handshake has a thread and `timeout` seconds, so strangers hold up nobody. `on_refused`
    is told, from such a thread, why a connection came to nothing."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        key: bytes | None = None,
        timeout: float = HANDSHAKE_S,
        facts: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        on_refused: Callable[[str], None] | None = None,
        sock: socket.socket | None = None,
    ) -> None:
        """Listens at once; port 0 takes a free one. `sock` is a socket that listens already, on
        `host`. Raises LinkError where the address cannot be had, or is more than loopback and there
        is no key."""
        if key is None and not is_loopback(host):
            raise LinkError(
                f"a listener on {host} can be reached from other machines and needs a key: "
                "`weft worker --make-key FILE` makes one; give it with --machine-key-file FILE"
            )
        self._key, self._timeout, self._facts, self._limits = key, timeout, facts, limits
        self._on_refused = on_refused or (lambda why: None)
        self._sock = sock or bound_socket(Address(host, port))
        self.address = Address(host, int(self._sock.getsockname()[1]))
        """The address of the listener, with the port that it got."""
        self._ready: queue.Queue[Link | None] = queue.Queue(_READY)
        self._half_open: OrderedDict[int, socket.socket] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        name = f"weft-listener-{self.address.port}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def accept(self, timeout: float | None = None) -> Link:
        """The next link; raises `TimedOut` after `timeout` seconds, LinkError once closed."""
        try:
            link = None if self._closed else self._ready.get(timeout=timeout)
        except queue.Empty:
            raise TimedOut(f"nobody connected to {self.address} in {timeout:g} s") from None
        if link is None:
            raise LinkError(f"the listener on {self.address} is closed")
        return link

    def _run(self) -> None:
        while True:
            try:
                sock, at = self._sock.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # e.g. no more file descriptors, for now
                continue
            peer = str(Address(*at[:2]))
            with self._lock:
                self._half_open[id(sock)] = sock
                oldest = None
                if len(self._half_open) > HALF_OPEN:
                    oldest = self._half_open.popitem(last=False)[1]
            if oldest is not None:
                _shut(oldest)
            threading.Thread(target=self._make, args=(sock, peer), daemon=True).start()

    def _make(self, sock: socket.socket, peer: str) -> None:
        until = time.monotonic() + self._timeout
        try:
            link = _greet(
                greet_client, sock, peer, self._key, self._facts, until, self._limits, self._timeout
            )
        except LinkError as error:
            self._on_refused(str(error))
            return
        finally:
            with self._lock:
                self._half_open.pop(id(sock), None)
        try:
            if self._closed:
                raise queue.Full
            self._ready.put_nowait(link)
        except queue.Full:
            link.close("the listener takes no more connections")

    def close(self) -> None:
        """Takes no more connections, closes links that wait for `accept`, and wakes it."""
        if self._closed:
            return
        self._closed = True
        _shut(self._sock)
        self._sock.close()
        self._thread.join(1.0)
        with self._lock:
            for sock in self._half_open.values():
                _shut(sock)
        try:
            while (link := self._ready.get_nowait()) is not None:
                link.close("the listener was closed")
        except queue.Empty:
            self._ready.put_nowait(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
