"""Routes of Ollama's API: bodies are JSON whatever their type."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from weft.serve.errors import SHAPES, ApiError

__all__ = ["OllamaRoute"]


def _error(error: ApiError) -> dict[str, Any]:
    """An error in Ollama's form."""
    return {"error": str(error)}


SHAPES["/api"] = _error


class OllamaRoute(APIRoute):
    """A route whose bodies need no `Content-Type`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that answers a request."""
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            return await handler(_as_json(request))

        return answered


def _as_json(request: Request) -> Request:
    """Takes a body without a type for JSON, as curl -d sends it. Not that of a web page, which has
    an `Origin`: a page of another site may send such bodies without asking."""
    headers = request.scope["headers"]
    names = {name for name, _ in headers}
    if b"origin" in names or b"sec-fetch-site" in names:
        return request
    kept = [(name, value) for name, value in headers if name != b"content-type"]
    scope = {**request.scope, "headers": [*kept, (b"content-type", b"application/json")]}
    return Request(scope, request.receive)
