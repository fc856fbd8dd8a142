"""Which `Host` a request may name, where no key says who sends it.

A page of any site can have a browser send requests here, under a name that it makes point at this
machine (DNS rebinding). Such a request has that name in `Host`; an address is nobody's to give.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from weft.serve.errors import ApiError, error_response
from weft.serve.guard import OPEN

__all__ = ["Hosts", "host_name"]


class Hosts:
    """ASGI middleware. Lets through this machine's own names (`localhost`, `*.localhost`),
    addresses written as such, and the names it was given."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str]) -> None:
        """`names`: as users type them; `*`: any."""
        self._app = app
        self._names = {host_name(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request on, or refuses it with 403."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = next((value for name, value in scope["headers"] if name == b"host"), None)
            # only HTTP/1.0, which browsers do not speak, leaves it out
            if given is not None and not self._knows(host_name(given.decode("latin-1"))):
                error = ApiError(
                    403,
                    f"this server does not answer to {given.decode('latin-1')!r}; start it with "
                    "--allow-host NAME, or with --api-key",
                    code="host_not_allowed",
                )
                return await error_response(error)(scope, receive, send)
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
    """The name or address of `NAME`, `NAME:PORT`, `[ADDRESS]:PORT`, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    single = colon and ":" not in name and port.isdigit()
    return (name if single else host).rstrip(".")
