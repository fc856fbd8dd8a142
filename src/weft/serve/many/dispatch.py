"""Hands each request to the application of the model that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from html import escape
from time import perf_counter
from typing import Any
from urllib.parse import quote

from fastapi.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.serve.endpoints import find, nearest
from weft.serve.errors import ApiError, Json, error_response
from weft.serve.many.fleet import Fleet
from weft.serve.many.loader import Loaded, Place
from weft.serve.many.settings import parse_duration
from weft.serve.ollama.format import loaded_answer
from weft.serve.request_body import RequestBody, read_body, replayed


class Dispatch:
    """ASGI middleware inside of all others."""

    def __init__(self, app: ASGIApp, *, fleet: Fleet) -> None:
        """`app` has the endpoints that are not owned by one model."""
        self._app = app
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] != "http" or getattr(find(scope["path"]), "owner", "") != "model":
            return await self._app(scope, receive, send)
        try:
            request = await read_body(scope, receive)
            if not request.whole:
                return
            place = self._place(scope, request)
            seconds = self._keep_alive(scope, request)
            if seconds == 0 and _only_loads(scope, request):
                await self._fleet.unload(place)
                kind: Any = scope["path"].removeprefix("/api/")
                answer = loaded_answer(kind, request.model or place.entry.name, "unload")
                return await Json(answer)(scope, receive, send)
        except ApiError as error:
            accept = dict(scope["headers"]).get(b"accept", b"")
            if scope["path"] == "/plan" and b"text/html" in accept:
                return await _plans(error, self._fleet.places)(scope, receive, send)
            return await error_response(error, scope["path"])(scope, receive, send)
        await self._hand_on(place, seconds, request, scope, receive, send)

    async def _hand_on(
        self, place: Place, seconds: float | str | None, request: RequestBody, scope: Scope,
        receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        lease = self._fleet.lease(place)
        began = None if place.state == "loaded" else perf_counter()
        try:
            loaded = await _unless_left(lease.__aenter__(), receive)
        except ApiError as error:
            return await error_response(error, scope["path"])(scope, receive, send)
        if loaded is None:
            return  # the client has left
        try:
            if not isinstance(seconds, str):
                self._fleet.set_keep_alive(place, seconds)
            scope["state"]["model"] = place.entry.name  # for usage and traces
            if began is not None:
                scope["state"]["load_seconds"] = perf_counter() - began
            await loaded.app(scope, replayed(request.body, receive), send)
        finally:
            await lease.__aexit__(None, None, None)

    def _place(self, scope: Scope, request: RequestBody) -> Place:
        """The model of a request. One that names none, and sends nothing, is about the model that
        was used last."""
        fleet = self._fleet
        if request.model is not None:
            return fleet.place_of(request.model)
        if len(fleet.places) == 1:
            return next(iter(fleet.places.values()))
        loaded = [p for p in fleet.places.values() if p.state == "loaded"]
        if not request.body:
            if loaded:
                return max(loaded, key=lambda p: (p.leases > 0, p.last_used))
            raise ApiError(
                400, f"{scope['path'][:80]} is about one model, and none is loaded; add "
                "?model=NAME", "model",
            )  # fmt: skip
        names = ", ".join(fleet.places)[:400]
        raise ApiError(400, f"model is missing; there are {names}", "model")

    def _keep_alive(self, scope: Scope, request: RequestBody) -> float | str | None:
        """The seconds that an Ollama client asks for; empty: it asks for nothing."""
        value = request.fields.get("keep_alive")
        if value is None or nearest(scope["path"]).shape != "ollama":
            return ""
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ApiError(400, f"keep_alive is {value!r:.60}; {error}", "keep_alive") from None


def _plans(error: ApiError, names: Iterable[str]) -> Response:
    """A page for a browser that has asked for the plan of no model, with links to all plans."""
    links = (f'<li><a href="plan?model={quote(n, safe="")}">{escape(n)}</a>' for n in names)
    page = (
        '<!doctype html><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><title>Plans</title>'
        f"<h1>Plans</h1><p>{escape(str(error))}<ul>{''.join(links)}</ul>"
    )
    headers = {"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"}
    return HTMLResponse(page, error.status, headers)


def _only_loads(scope: Scope, request: RequestBody) -> bool:
    """True for a request to Ollama's API that writes nothing."""
    needed = {"/api/generate": ("prompt", "suffix", "images"), "/api/chat": ("messages",)}
    names = needed.get(scope["path"])
    return names is not None and not any(request.fields.get(name) for name in names)


async def _unless_left(lease: Any, receive: Receive) -> Loaded | None:
    """The result of `lease`; None if the client leaves before."""
    waits = asyncio.ensure_future(lease)
    left = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((waits, left), return_when=asyncio.FIRST_COMPLETED)
        if waits.done():
            loaded: Loaded = waits.result()
            return loaded
        return None
    finally:
        left.cancel()
        if not waits.done():
            waits.cancel()
            await asyncio.wait((waits,))
