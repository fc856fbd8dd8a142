"""What is checked before a request's body is read: its size, and who sends it."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.errors import ApiError, error_response

__all__ = ["Guard"]

OPEN = frozenset(("/health",))
"""Paths that need no key: what watches a server has none."""


class Guard:
    """ASGI middleware. Bodies are counted as they come, whatever their header says."""

    def __init__(self, app: ASGIApp, *, max_body: int, api_key: str | None) -> None:
        self._app = app
        self._max_body = max_body
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request on, or refuses it with 401 or 413."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name: value for name, value in scope["headers"]}
        try:
            if scope["path"] not in OPEN:
                self._check_key(headers.get(b"authorization", b""))
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length) > self._max_body:
                raise self._too_large()
        except ApiError as error:
            return await error_response(error)(scope, receive, send)

        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body:
                raise self._too_large()
            return message

        async def watched(message: Message) -> None:
            if taken <= self._max_body:  # else it is what the application makes of the error above
                await send(message)

        try:
            await self._app(scope, counted, watched)
        except ApiError:
            if taken <= self._max_body:
                raise
        if taken > self._max_body:
            await error_response(self._too_large())(scope, receive, send)

    def _check_key(self, given: bytes) -> None:
        """Compares in constant time, so that time says nothing about the key."""
        if self._key is None:
            return
        scheme, _, key = given.partition(b" ")
        if not hmac.compare_digest(key.strip(), self._key) or scheme.lower() != b"bearer":
            raise ApiError(
                401, "send this server's key as `Authorization: Bearer KEY`", code="invalid_api_key"
            )

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body has more than {self._max_body} bytes; send less", code="body_too_large"
        )
