"""Errors: a status and a body in the format of the API that the path of a request belongs to."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from weft.errors import AbortedError, BusyError, DeviceError, ProgramError, WeftError
from weft.llm.planning.options import LLM_OPTIONS
from weft.llm.sampling.trial import NoCompilerError
from weft.serve.endpoints import nearest

RETRY_AFTER = 1
"""Seconds after which a refused client should try again."""


def without_folders(text: str, *known: str | os.PathLike[str]) -> str:
    """An error for a client: files have their names, but not the folders of this machine. `known`
    are folders that may have spaces."""
    for folder in known:
        text = text.replace(f"{os.fspath(folder)}{os.sep}", "")
    return _FOLDERS.sub("", text)


class ApiError(Exception):
    """A request that is refused."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = RETRY_AFTER,
        tokens: tuple[int, int] | None = None,
    ) -> None:
        """`retry_after` is the seconds after which a client with status 429 should try again;
        `tokens` is the length of a prompt that is too long, and the maximum length."""
        super().__init__(message)
        self.tokens = tokens
        self.retry_after = retry_after
        self.status = status
        self.param = param
        self.code = code


_FOLDERS = re.compile(r"""(?:(?<=[\s'"(:=])|^)(?:[A-Za-z]:)?[/\\](?:[^/\\\s'":]+[/\\])+""")
_CONSTRAINTS = ("grammar", "json_schema", "regex")
"""Fields whose errors come from a compiler."""
_OURS = (DeviceError, ProgramError, AbortedError)
"""Errors that are not the fault of a request."""
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error of the OpenAI API."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def message_error(error: ApiError) -> dict[str, Any]:
    """The body of an error of Anthropic's API."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    text = str(error)
    if error.tokens is not None:  # agents look for these words and make the conversation shorter
        text = f"prompt is too long: {error.tokens[0]} tokens > {error.tokens[1]} maximum; {text}"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    return {"type": "error", "error": {"type": kind, "message": text, **details}}


def of_exception(error: BaseException) -> ApiError:
    """The error that a client gets for an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
    if isinstance(error, _OURS):
        return ApiError(500, str(error))
    if isinstance(error, NoCompilerError):  # this server lacks something, whatever is asked
        return ApiError(501, without_folders(error.told(_name)))
    if isinstance(error, WeftError):
        field = error.argument
        return ApiError(400, error.told(_name), field if field in _CONSTRAINTS else None)
    return ApiError(500, "the server failed on this request; its log says more")


def _name(argument: str) -> str:
    """The name of an argument for a client, with the flag of one that only the server can have."""
    option = LLM_OPTIONS.get(argument)
    return argument if option is None or not option.flags else f"{argument} ({option.flags[0]})"


def error_response(error: BaseException, path: str = "") -> JSONResponse:
    """The answer for an exception at `path`."""
    api = of_exception(error)
    headers = {"Retry-After": str(api.retry_after)} if api.status in (429, 503) else None
    if api.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return Json(shaped_error(api, path), api.status, headers)


def shaped_error(error: ApiError, path: str) -> dict[str, Any]:
    """The body of an error at `path`, in the form of its API."""
    shape = nearest(path).shape
    if shape == "anthropic":
        return message_error(error)
    if shape == "ollama":
        return {"error": str(error)}
    body = error_body(error.status, str(error), error.param, error.code)
    if error.tokens is not None:  # as in llama.cpp, whose clients read them
        body["error"] |= {"n_prompt_tokens": error.tokens[0], "n_ctx": error.tokens[1]}
    return body


class Json(JSONResponse):
    """A JSON answer, in which a lone surrogate becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """Encodes an answer."""
        return to_json(content)


def to_json(content: Any) -> bytes:
    """Encodes JSON as UTF-8; a lone surrogate becomes a question mark."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


def install_handlers(app: FastAPI) -> None:
    """Installs handlers that give every error of the app this format."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, request.url.path)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(not_json(error), request.url.path)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        api = ApiError(error.status_code, _in_words(request, error))
        return Json(shaped_error(api, request.url.path), error.status_code, error.headers)

    for kind in (ApiError, WeftError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def not_json(error: RequestValidationError) -> ApiError:
    """The error for a body that FastAPI cannot parse as a JSON object, or for an address."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not JSON: {why} at character {first['loc'][-1]}")
    if first["loc"][0] == "query":
        name, value = str(first["loc"][-1]), str(first["input"])[:60]
        return ApiError(400, f"{name} is {value!r} in the address: {first['msg']}", name)
    return ApiError(
        400, "the body is no JSON object; send one, with Content-Type: application/json"
    )


_ABSENT = {
    "/edits": "/v1/chat/completions",
    "/responses/compact": "/v1/responses, and ask for a summary",
}
"""Paths of other servers, and the paths here that serve instead."""


def _in_words(request: Request, error: HTTPException) -> str:
    """Says what is wrong with a path or a method."""
    path = request.url.path
    instead = _ABSENT.get(path.removeprefix("/v1"))
    if error.status_code == 404 or instead:
        there = f"use {instead}" if instead else "GET / lists what there is"
        return f"there is no {path[:80]} here; {there}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return f"{path} does not take {request.method[:20]}; send {allowed}"
    if error.status_code == 400:  # FastAPI refuses JSON that Python cannot parse like this
        return (
            "the body is JSON nested too deeply, or with a number too long, or it is no UTF-8 (or "
            "compressed); send a plainer one"
        )
    return str(error.detail)
