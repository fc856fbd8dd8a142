"""Errors in the format of Anthropic's API."""

from __future__ import annotations

from typing import Any

from weft.serve.errors import ApiError

__all__ = ["message_error"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error(error: ApiError) -> dict[str, Any]:
    """The body of an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    text = str(error)
    if error.tokens is not None:  # agents look for these words and make the conversation shorter
        text = f"prompt is too long: {error.tokens[0]} tokens > {error.tokens[1]} maximum; {text}"
    return {"type": "error", "error": {"type": kind, "message": text}}
