"""Errors as the OpenAI API words them: a status and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from weft.errors import AbortedError, BusyError, DeviceError, ProgramError, WeftError

__all__ = ["ApiError", "error_body", "error_response", "install_handlers", "of_exception"]

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
        too_long = "but the context holds" in str(error)
        return ApiError(400, str(error), code="context_length_exceeded" if too_long else None)
    return ApiError(500, "the server failed on this request; its log says more")


def error_response(error: BaseException) -> JSONResponse:
    """An exception as an answer."""
    api = of_exception(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if api.status == 429 else None
    if api.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = error_body(api.status, str(api), api.param, api.code)
    return JSONResponse(body, api.status, headers)


def install_handlers(app: FastAPI) -> None:
    """Makes every error of the app one of these."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(_first_problem(error))

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code,
                            error.headers)  # fmt: skip

    for kind in (ApiError, WeftError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _first_problem(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}")
    param = ".".join(where) or None
    if param is None and first["type"] in ("model_attributes_type", "dict_type"):
        return ApiError(
            400, "the body is no JSON object; send one, with Content-Type: application/json"
        )
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not known here; leave it out", param, "unknown_parameter")
    return ApiError(400, f"{param or 'the body'}: {first['msg']}", param)
