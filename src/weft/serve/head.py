"""`HEAD` for every path that has `GET`, which RFC 9110 asks for: clients and load balancers send it
to see whether a server is there."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HeadAsGet"]

_OWN = "/api/blobs/"
"""Paths that take `HEAD` themselves."""


class HeadAsGet:
    """ASGI middleware that answers `HEAD` as `GET`, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(_OWN):
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
