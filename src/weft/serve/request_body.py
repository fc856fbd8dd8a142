"""Reads the body of a request: a form with a file, or the fields of any body with the model that
they name.
"""

from __future__ import annotations

import json
import logging
import re
from email.message import Message as Headers
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from weft.extras import how_to_install
from weft.records import dataclass
from weft.serve.errors import ApiError

LARGE = 1 << 16
"""Bytes from which a body is read in another thread, so that other requests go on."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request whose body has been read."""

    model: str | None
    """The model that the request names, or None."""
    fields: dict[str, Any]
    """The fields of a body that is a JSON object."""
    body: bytes
    whole: bool
    """False if the client left before the end of its body."""


async def read_body(scope: Scope, receive: Receive) -> RequestBody:
    """Reads the body of a request, whose size others limit, and finds the model that it names.

    Raises ApiError for a body that is not JSON, and for a model that is not a text."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return RequestBody(None, {}, b"", False)
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    kind = next((v for k, v in scope["headers"] if k == b"content-type"), b"").decode("latin-1")
    fields: dict[str, Any] = {}
    model: Any = None
    if kind.lower().startswith("multipart/form-data"):
        model = _of_form(kind, body)
    elif body and scope["method"] not in ("GET", "HEAD"):
        large = len(body) > LARGE
        fields = await run_in_threadpool(_of_json, body) if large else _of_json(body)
        model = fields.get("model", fields.get("name"))
        if model is not None and not isinstance(model, str):
            raise ApiError(400, f"model is {json.dumps(model)[:60]}; it must be a text", "model")
    if model is None:
        model = parse_qs(scope["query_string"].decode("latin-1")).get("model", [None])[0]
    return RequestBody(model or None, fields, body, True)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Gives a body that has been read once more, then what else comes from the client."""
    first = True

    async def again() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _of_json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):  # no UTF-8, a number too long, or nested too deeply
        raise ApiError(
            400, "the body is JSON nested too deeply, with a number too long, or not UTF-8; send "
            "a plainer one",
        ) from None  # fmt: skip
    return data if isinstance(data, dict) else {}


def _of_form(kind: str, body: bytes) -> str | None:
    """The field `model` of a form with files."""
    header = Headers()
    header["content-type"] = kind
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        return None
    for part in body.split(b"--" + boundary.encode("latin-1", "replace")):
        head, blank, value = part.partition(b"\r\n\r\n")
        if blank and re.search(rb'[;\s]name="?model"?\s*(;|\r|$)', head):
            return value.removesuffix(b"\r\n").decode("utf-8", "replace")
    return None


MOST_FIELDS = 32
"""Maximum number of fields of a form besides its file."""
LONGEST_FIELD = 1 << 16
"""Maximum bytes of a field that is not a file; files are bounded by the size of the body."""


async def read_form(http: Request) -> FormData:
    """The fields and at most one file of a body. Raises ApiError for a body that is not a form."""
    kind = http.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise ApiError(
            400, "the body is no form with a file; send one, as multipart/form-data", "file"
        )
    if find_spec("python_multipart") is None:
        raise ApiError(
            501, f"the server needs python-multipart to read files; {how_to_install('serve')}",
            "file", "unsupported",
        )  # fmt: skip
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the answer says it
    try:
        return await http.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD)
    except HTTPException as error:
        raise ApiError(400, f"the form cannot be read: {error.detail}") from None
