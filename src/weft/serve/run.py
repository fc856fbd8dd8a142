"""uvicorn around the application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import uvicorn

from weft.errors import ContextError
from weft.serve.options import ServeOptions
from weft.serve.routes import create_app
from weft.serve.service import Service

__all__ = ["run_server", "take_address"]


class _Server(uvicorn.Server):
    """Says when it listens; told to stop, it lets the engine end its texts first."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening and waits for open answers, which the engine ends in time."""
        close = partial(self._service.close, self._service.options.grace)
        closing = asyncio.get_running_loop().run_in_executor(None, close)
        await super().shutdown(sockets)
        await closing


def run_server(
    service: Service,
    ready: Callable[[str], None] = lambda url: None,
    sock: socket.socket | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; requests at hand then have `options.grace` seconds to finish,
    and a second signal ends them at once. `ready` is called with the URL when it listens. `sock`:
    that of `take_address`, else it is taken now.

    Raises ContextError for an address that cannot be had."""
    options = service.options
    sock = take_address(options) if sock is None else sock
    host, port = sock.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        # for clients that do not read what they asked for
        timeout_graceful_shutdown=round(options.grace) + 5,
        server_header=False,
    )
    with sock:
        _Server(config, service, lambda: ready(f"http://{name}:{port}")).run(sockets=[sock])


def take_address(options: ServeOptions) -> socket.socket:
    """A socket at the address, which nobody else can have then; it does not listen yet, so clients
    are refused. Raises ContextError for an address that cannot be had."""
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
