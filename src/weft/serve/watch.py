"""Watches every request: gives it an id, and logs, counts and traces it when it has ended."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.http_metrics import HttpMetrics
from weft.serve.inside import INSIDE
from weft.serve.log import log_request
from weft.serve.record import request_id_of, route_of
from weft.serve.traces import Traces

__all__ = ["Watch"]


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

        outside = not scope.get(INSIDE)  # a line of a batch is no request over HTTP
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
