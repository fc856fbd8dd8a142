"""Checks the `Host` of requests to a server without an API key.

A page of any site can make a browser send requests here under a name that resolves to this machine
(DNS rebinding). Such a request has this name as its `Host`, so only known names and addresses are
accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from weft.serve.errors import ApiError, error_response
from weft.serve.guard import OPEN

__all__ = ["Hosts", "host_name"]


class Hosts:
    """ASGI middleware that accepts the names of this machine (`localhost`, `*.localhost`), IP
    addresses, and the names of the options."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str]) -> None:
        """`names` are written as users type them; `*` accepts any."""
        self._app = app
        self._names = {host_name(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 403."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            host = next((value for name, value in scope["headers"] if name == b"host"), None)
            # only HTTP/1.0, which browsers do not use, allows requests without it
            if host is not None and not self._knows(host_name(host.decode("latin-1"))):
                error = ApiError(
                    403,
                    f"this server does not answer to {host.decode('latin-1')!r}; start it with "
                    "--allow-host NAME, or with --api-key",
                    code="host_not_allowed",
                )
                return await error_response(error, scope["path"])(scope, receive, send)
        await self._app(scope, receive, send)

    def _knows(self, name: str) -> bool:
        if name == "localhost" or name.endswith(".localhost") or self._names & {name, "*"}:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def host_name(host: str) -> str:
    """The name or address in `NAME`, `NAME:PORT` or `[ADDRESS]:PORT`, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    single = colon and ":" not in name and port.isdigit()
    return (name if single else host).rstrip(".")
