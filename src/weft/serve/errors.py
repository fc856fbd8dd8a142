"""Errors as the OpenAI API words them: a status and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from weft.errors import AbortedError, BusyError, DeviceError, ProgramError, WeftError

__all__ = ["ApiError", "Json", "error_body", "error_response", "install_handlers", "of_exception",
           "to_json"]  # fmt: skip

RETRY_AFTER = 1
"""Seconds after which a refused client may come again: a text ends every few of them."""


class ApiError(Exception):
    """A request that is refused."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


_CONSTRAINTS = ("grammar", "json_schema", "regex")
"""Fields whose errors come from what compiles them, with the field in front."""
_OURS = (DeviceError, ProgramError, AbortedError)
"""What no request can be blamed for."""
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_exception(error: BaseException) -> ApiError:
    """What a client is told of an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, _OURS):
        return ApiError(500, str(error))
    if isinstance(error, WeftError):
        field = str(error).partition(": ")[0]
        return ApiError(400, str(error), field if field in _CONSTRAINTS else None)
    return ApiError(500, "the server failed on this request; its log says more")


def error_response(error: BaseException) -> JSONResponse:
    """An exception as an answer."""
    api = of_exception(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if api.status == 429 else None
    if api.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = error_body(api.status, str(api), api.param, api.code)
    return Json(body, api.status, headers)


class Json(JSONResponse):
    """JSON whatever clients have sent: half a character is a question mark."""

    def render(self, content: Any) -> bytes:
        """The bytes of an answer."""
        return to_json(content)


def to_json(content: Any) -> bytes:
    """As UTF-8, which has no lone surrogates."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


def install_handlers(app: FastAPI) -> None:
    """Makes every error of the app one of these."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(_not_json(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        text = _in_words(request, error)
        return Json(error_body(error.status_code, text), error.status_code, error.headers)

    for kind in (ApiError, WeftError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _not_json(error: RequestValidationError) -> ApiError:
    """What FastAPI finds before a body is read as one of ours: that it is none."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not JSON: {why} at character {first['loc'][-1]}")
    return ApiError(
        400, "the body is no JSON object; send one, with Content-Type: application/json"
    )


_ABSENT = {"/responses": "/v1/chat/completions", "/completion": "/v1/completions"}
"""What other servers have, and what there is here instead."""


def _in_words(request: Request, error: HTTPException) -> str:
    """What is wrong with a path or a method."""
    path = request.url.path
    if error.status_code == 404:
        instead = _ABSENT.get(path.removeprefix("/v1"))
        there = f"use {instead}" if instead else "GET / lists what there is"
        return f"there is no {path[:80]} here; {there}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return f"{path} does not take {request.method[:20]}; send {allowed}"
    if error.status_code == 400:  # what FastAPI says of JSON that Python cannot take
        return "the body is JSON nested too deeply, or with a number too long; send a plainer one"
    return str(error.detail)
