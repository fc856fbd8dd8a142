"""ASGI middleware around every application: request ids, logs, counts and traces; `HEAD`; and the
`Host` and `Origin` of requests to a server without an API key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.endpoints import find, nearest
from weft.serve.errors import ApiError, error_response
from weft.serve.internal import INSIDE
from weft.serve.log import log_request
from weft.serve.metrics import HttpMetrics
from weft.serve.record import request_id_of, route_of
from weft.serve.traces import Traces


class Watch:
    """ASGI middleware around all others. It adds the headers `x-request-id` and the one that names
    ignored fields (`state["ignored"]`)."""

    def __init__(
        self, app: ASGIApp, *, http: HttpMetrics, traces: Traces | None = None, model: str = ""
    ) -> None:
        """`model` is the name that traces have for the model."""
        self._app = app
        self._http, self._traces, self._model = http, traces, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and watches it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id_of(scope)
        began, status = time.monotonic(), 499  # stays if the client leaves before an answer

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_headers(state)]
            await send(message)

        outside = not scope.get(INSIDE)  # a line of a batch is not a request over HTTP
        asks = outside and scope["method"] == "POST"
        self._http.in_flight += outside
        self._http.n_asking += asks
        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            self._http.in_flight -= outside
            self._http.n_asking -= asks
            self._end(scope, status, began)

    def _end(self, scope: Scope, status: int, began: float) -> None:
        ended = time.monotonic()
        status = scope["state"].get("sent", status)
        if not scope.get(INSIDE):
            self._http.add(route_of(scope), scope["method"], status, ended - began)
        if self._traces is not None:
            model = scope["state"].get("model", self._model)
            self._traces.note(scope, status, began, ended, model)
        log_request(scope, status, ended - began)


def _headers(state: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", state["request_id"].encode())]
    names = _names(state.get("ignored", ()))
    return [*headers, (b"x-weft-ignored", names)] if names else headers


def _names(names: Any) -> bytes:
    """The first few names in the form of a header."""
    plain = [name for name in names if name.isascii() and name.isprintable() and len(name) <= 64]
    more = len(names) - len(plain[:16])
    return ", ".join([*plain[:16], *([f"and {more} more"] if more else [])]).encode()


class HeadAsGet:
    """ASGI middleware that answers `HEAD` as `GET`, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or "HEAD" in nearest(scope["path"]).method:
            return await self._app(scope, receive, send)

        async def without_body(message: Message) -> None:
            scope["method"] = "HEAD"
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"
        try:
            await self._app(scope, receive, without_body)
        finally:
            scope["method"] = "HEAD"


_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


class Below:
    """ASGI middleware for a server that a proxy has below a path. The proxy may leave the path in
    requests or take it away: below `/api`, `/api/tags` is an endpoint, and `/tags` is none."""

    def __init__(self, app: ASGIApp, *, root: str) -> None:
        """`root` is the path, such as `/llm`."""
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on with its path below `root`."""
        if scope["type"] == "http":
            path: str = scope["path"]
            if path == self._root:  # links of the page are relative to a folder
                return await RedirectResponse(f"{path}/")(scope, receive, send)
            n = len(self._root)
            inner = path[n:] if path.startswith(f"{self._root}/") else path
            if inner != path and (find(inner) is not None or find(path) is None):
                raw: bytes = scope.get("raw_path") or path.encode()
                raw = raw.removeprefix(self._root.encode())
                scope = {**scope, "path": inner, "raw_path": raw}
        await self._app(scope, receive, send)


class Hosts:
    """ASGI middleware that accepts the names of this machine (`localhost`, `*.localhost`), IP
    addresses, and the names of the options."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], origins: Iterable[str] = ()) -> None:
        """`names` are written as users type them; `*` accepts any. `origins` are other
        sites whose pages may send anything; `*` accepts any."""
        self._app = app
        self._origins = {origin.lower() for origin in origins}
        self._names = {host_name(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 403."""
        if scope["type"] == "http" and nearest(scope["path"]).access != "open":
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
