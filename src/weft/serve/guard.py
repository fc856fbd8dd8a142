"""Checks the size of a request and its API key before the body is read, and counts what it uses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.keys import Key, LimitError
from weft.serve.access import Users, opens
from weft.serve.errors import ApiError, error_response
from weft.serve.internal import INSIDE
from weft.serve.record import Tokens, n_ended, tokens_of


class Guard:
    """ASGI middleware that checks keys, their limits, and sizes. It counts the bytes of a body as
    they arrive, whatever the header says. What a request used is on disk before the end of its
    answer is sent."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int,
        users: Users | None,
        model: str = "",
        larger: Mapping[str, int] | None = None,
    ) -> None:
        """`model` is the name for which usage counts. `larger` are paths whose bodies may have more
        bytes."""
        self._app = app
        self._max_body = max_body
        self._larger = larger or {}
        self._users = users
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 401, 413 or 429."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        with ExitStack() as admitted:
            try:
                if not scope.get(INSIDE):
                    self._admit(scope, admitted)
                body = _Body(self._most(scope), scope, receive, send)
            except ApiError as error:
                return await error_response(error, scope["path"])(scope, receive, send)
            usage = _Usage(self._users, self._model, state, body.send)
            try:
                await self._app(scope, body.receive, usage.send)
            except ApiError:
                if not body.is_too_large:
                    raise
            finally:
                await usage.write()
        if body.is_too_large:
            await error_response(body.error(), scope["path"])(scope, receive, send)

    def _admit(self, scope: Scope, admitted: ExitStack) -> None:
        """Checks the key of a request and its limits, which count until `admitted` ends. Raises
        ApiError."""
        key = self._known(scope)
        if key is None or self._users is None:
            return
        scope["state"]["key"] = key.name
        if scope["method"] != "POST":
            return
        try:
            admitted.enter_context(self._users.limits.request(key))
        except LimitError as error:
            raise ApiError(429, str(error), code=error.name, retry_after=error.seconds) from None

    def _most(self, scope: Scope) -> int:
        return sys.maxsize if scope.get(INSIDE) else self._larger.get(scope["path"], self._max_body)

    def _known(self, scope: Scope) -> Key | None:
        """The key of a request; None: it needs none. Raises ApiError for a missing or wrong one."""
        if self._users is None or opens(scope):
            return None
        headers = dict(scope["headers"])
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if not scheme:
            scheme, secret = b"bearer", headers.get(b"x-api-key", b"")  # Anthropic's header
        key = self._users.ring.find(secret.strip())
        why = "send this server's key as `Authorization: Bearer KEY`"
        if secret.strip() and scheme.lower() == b"bearer":
            if key is not None and not key.why_refused:
                return key
            why = "this server does not know this key" if key is None else key.why_refused
        raise ApiError(401, why, code="invalid_api_key")


class _Body:
    """Counts the bytes of a body."""

    def __init__(self, most: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError if the header says that there are more bytes than `most`."""
        self._most, self._receive, self._send = most, receive, send
        self._n_received = 0
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise self.error()

    @property
    def is_too_large(self) -> bool:
        """True if more bytes have come than may."""
        return self._n_received > self._most

    async def receive(self) -> Message:
        """The next part. Raises ApiError if it is too much."""
        message = await self._receive()
        self._n_received += len(message.get("body", b""))
        if self.is_too_large:
            raise self.error()
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the answer, unless it is the application's answer to the error."""
        if not self.is_too_large:
            await self._send(message)

    def error(self) -> ApiError:
        """The refusal of a body that is too large."""
        return ApiError(
            413, f"the body has more than {self._most} bytes; send less", code="body_too_large"
        )


class _Usage:
    """Writes what a request uses: when a text ends and before the end of its answer is sent."""

    def __init__(self, users: Users | None, model: str, state: dict[str, Any], send: Send) -> None:
        self._users, self._model = users, model
        self._state, self._send = state, send
        self._written: Tokens | None = None
        self._n_ended = 0

    async def send(self, message: Message) -> None:
        """Sends a part of the answer, after what it tells of is written."""
        if message["type"] == "http.response.body":
            ended = n_ended(self._state) > self._n_ended
            if ended or not message.get("more_body", False):
                await self.write()
        await self._send(message)

    async def write(self) -> None:
        """Writes what was used since the last time."""
        key, tokens = self._state.get("key"), tokens_of(self._state)
        if self._users is None or key is None or tokens is None or tokens == self._written:
            return
        new = tokens.minus(self._written or Tokens())
        n_requests = 0 if self._written else 1
        self._written, self._n_ended = tokens, n_ended(self._state)
        model = self._state.get("model", self._model)
        await self._users.use(key, model, n_requests, new)
