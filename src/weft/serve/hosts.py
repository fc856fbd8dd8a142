"""Checks the `Host` and the `Origin` of requests to a server without an API key.

A page of any site can make a browser send requests here under a name that resolves to this machine
(DNS rebinding). Such a request has this name as its `Host`, so only known names and addresses are
accepted. And a page can send forms, or bodies without a type, to any address without
asking for leave first (browsers ask before JSON only), so these must come from a page of this
server, or from no page.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from weft.serve.errors import ApiError, error_response
from weft.serve.guard import OPEN

__all__ = ["Hosts", "host_name"]

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""


class Hosts:
    """ASGI middleware that accepts the names of this machine (`localhost`, `*.localhost`), IP
    addresses, and the names of the options."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], origins: Iterable[str] = ()) -> None:
        """`names` are written as users type them; `*` accepts any. `origins` are those of other
        sites whose pages may send anything; `*` accepts any."""
        self._app = app
        self._origins = {origin.lower() for origin in origins}
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
            if scope["method"] not in _SAFE and self._is_of_another_page(dict(scope["headers"])):
                error = ApiError(
                    403,
                    "pages of other sites may not send this; start the server with --cors-origin "
                    "ORIGIN, or with --api-key",
                    code="origin_not_allowed",
                )
                return await error_response(error, scope["path"])(scope, receive, send)
        await self._app(scope, receive, send)

    def _is_of_another_page(self, headers: dict[bytes, bytes]) -> bool:
        """True for what a page of another site can send without asking."""
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind and not kind.startswith(b"multipart/"):  # JSON, or what no endpoint reads
            return False
        site = headers.get(b"sec-fetch-site")
        origin = headers.get(b"origin")
        if site in (b"same-origin", b"none") or (site is None and origin is None):
            return False
        if origin is None:
            return True
        text = origin.decode("latin-1").lower()
        if self._origins & {text, "*"}:
            return False
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return not host or text.partition("://")[2] != host

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
