"""Routes of Ollama's API: errors are `{"error": TEXT}`, and bodies are JSON whatever their type."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

from weft.serve.errors import Json, error_response, not_json, of_exception
from weft.serve.log import logger

__all__ = ["OllamaRoute", "error_answer"]


class OllamaRoute(APIRoute):
    """A route whose errors have Ollama's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that answers a request."""
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handler(_as_json(request))
            except RequestValidationError as error:
                return error_answer(not_json(error))
            except Exception as error:
                if of_exception(error).status >= 500:
                    logger.error("%s: %s", request.url.path, error, exc_info=error)
                return error_answer(error)

        return answered


def error_answer(error: BaseException) -> Response:
    """The answer for an exception."""
    like = error_response(error)
    headers = {k: v for k, v in like.headers.items() if k in ("retry-after", "www-authenticate")}
    return Json({"error": str(of_exception(error))}, like.status_code, headers)


def _as_json(request: Request) -> Request:
    """Takes a body without a type for JSON, as curl -d sends it. Not that of a web page, which has
    an `Origin`: a page of another site may send such bodies without asking."""
    headers = request.scope["headers"]
    names = {name for name, _ in headers}
    if b"origin" in names or b"sec-fetch-site" in names:
        return request
    kept = [(name, value) for name, value in headers if name != b"content-type"]
    scope = request.scope | {"headers": [*kept, (b"content-type", b"application/json")]}
    return Request(scope, request.receive)
