"""Runs the application with uvicorn."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from weft.errors import ContextError
from weft.serve.connections import Connection, Door, connection_class, most_connections
from weft.serve.log import logger
from weft.serve.options import ServeOptions
from weft.serve.resources import Resources

LAST_SECONDS = 1.0
"""Maximum number of seconds from the second signal to the end of the process."""


class Served(Protocol):
    """A model, or several, behind a server."""

    @property
    def options(self) -> ServeOptions:
        """The options of the server."""

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""

    def close(self, grace: float = 0.0) -> None:
        """Ends all texts; running ones have `grace` seconds."""


class _Server(uvicorn.Server):
    """Calls `ready` when it listens; on a signal it lets the engine end its texts first."""

    def __init__(
        self, config: uvicorn.Config, service: Served, resources: Resources,
        ready: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._resources = resources
        self._hurries = False
        self._service = service
        self._ready = ready
        self._door: Door | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        await super().startup([])
        self._loop = asyncio.get_running_loop()
        most = most_connections(self._service.options.max_connections)
        for listener in sockets or ():
            self._door = Door(
                listener, self._connection, most, self._resources.tls_context,
                self._service.options.head_timeout, self._resources.shared.http.refuse,
            )  # fmt: skip
            self._door.open()
        self._resources.start(self.config.app, lambda: self._service.n_waiting)  # type: ignore[arg-type]
        if most < self._service.options.max_connections:
            logger.warning(
                "only %d connections at a time: the system lets this process open no more files; "
                "raise that with ulimit -n", most,
            )  # fmt: skip
        self._ready()

    def _connection(self) -> Connection:
        kind = self.config.http_protocol_class
        assert issubclass(kind, Connection)
        return kind(self.config, self.server_state, {})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening and waits for open answers, whose texts the engine ends in time."""
        if self._door is not None:
            self._door.close()
        await self._resources.stop()
        close = partial(self._service.close, self._service.options.grace)
        closing = asyncio.get_running_loop().run_in_executor(None, close)
        await super().shutdown([])
        await closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal gives texts their time to end, the second ends them at once."""
        again = self.should_exit
        super().handle_exit(sig, frame)
        if not again and self._loop:
            self._loop.call_soon_threadsafe(self._say_stop, sig)
        if again and not self._hurries:
            self._hurries = self.force_exit = True
            threading.Thread(target=self._service.close, daemon=True).start()
            last = threading.Timer(LAST_SECONDS, os._exit, [128 + sig])
            last.daemon = True  # the timer ends the process if some thread never ends
            last.start()

    def _say_stop(self, sig: int) -> None:
        """Says that the server stops, and how long requests have if any is open. Who typed Ctrl-C
        knows, except why it takes long."""
        left = ""
        if not all(task.done() for task in self.server_state.tasks):
            seconds = self._service.options.grace
            left = f"; open requests have {seconds:g} seconds (a second signal ends them at once)"
        if left or sig != signal.SIGINT:
            logger.info("%s: stops%s", signal.Signals(sig).name, left)


def run_server(
    service: Served,
    app: ASGIApp,
    resources: Resources,
    sock: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM. Open requests then have `options.grace` seconds to finish; a
    second signal ends them at once. `app` is the application of `service`, `sock` a result of
    `take_address`. `ready` is called with the URL when the server listens, at a Unix socket with
    nginx's form, `http://unix:PATH:`."""
    options = service.options
    config = uvicorn.Config(
        app,
        http=connection_class(
            options.head_timeout, options.body_timeout, resources.shared.http.refuse
        ),
        loop="asyncio",  # uvloop leaves TLS handshakes of accepted sockets waiting
        ws="none",
        lifespan="off",  # `shutdown` closes the service
        log_config=None,
        access_log=False,
        timeout_keep_alive=round(options.head_timeout) or 1,
        # limits the time of clients that do not read their answers
        timeout_graceful_shutdown=round(options.grace) + 5,
        server_header=False,
    )
    url = _url(sock, "http" if options.ssl_cert_file is None else "https", options.root_path)
    with sock:
        _Server(config, service, resources, lambda: ready(url)).run(sockets=[sock])


def _url(sock: socket.socket, scheme: str, root: str) -> str:
    """Where clients find the server."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return f"{scheme}://unix:{sock.getsockname()}:{root}"
    host, port = sock.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{port}{root}"


def take_address(options: ServeOptions) -> socket.socket:
    """Binds a socket to the address, so that no other process can. It does not listen yet, so
    clients are refused. The file of a Unix socket goes when the socket is closed. Raises
    ContextError if the address cannot be used."""
    if options.uds is not None:
        return _SocketFile(options.uds)
    host, port = options.host, options.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ContextError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port or "
            "--host"
        ) from None
    return sock


class _SocketFile(socket.socket):
    """A bound Unix socket, whose file goes when it is closed."""

    def __init__(self, path: Path) -> None:
        """Binds it, in place of the file of a socket at which nobody listens any more. Raises
        ContextError for a path that cannot be used."""
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            raise _refused(path, "this system has no Unix sockets; leave it out")
        super().__init__(family, socket.SOCK_STREAM)
        self._path, self._file = path, None
        n = len(os.fsencode(path))
        try:
            _remove_left(path)
            self.bind(os.fspath(path))
            self._file = _identity(path)
        except OSError as error:
            self.close()
            if n > _LONGEST_PATH:
                raise _refused(
                    path, f"the path has {n} bytes; a socket's may have {_LONGEST_PATH}"
                ) from None
            raise _refused(path, f"{error.strerror or error}; choose another path") from None
        except ContextError:
            self.close()
            raise

    def close(self) -> None:
        """Closes it and removes its file, unless that is another one by now."""
        super().close()
        with suppress(OSError):
            if self._file is not None and _identity(self._path) == self._file:
                self._path.unlink()


_LONGEST_PATH = 103 if sys.platform == "darwin" else 107
"""Maximum bytes of the path of a socket."""


def _refused(path: Path, why: str) -> ContextError:
    return ContextError(f"{path}: {why}", argument="uds")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_left(path: Path) -> None:
    """Removes the file of a socket that a server has left, as one that was killed. Raises
    ContextError for any other file, and where a server listens."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _refused(path, "there is a file that is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise _refused(path, "a server listens there; stop it, or choose another path")
