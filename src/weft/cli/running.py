"""Requests to a server that runs, for `weft ps` and `weft stop`."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from weft.errors import WeftError

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="OLLAMA_HOST", metavar="URL",
        help="The server; default: http://127.0.0.1:8080.",
    ),
]  # fmt: skip
Key = Annotated[
    str | None, typer.Option("--api-key", envvar="WEFT_API_KEY", help="Key of the server.")
]
_SECONDS = 30.0
_MOST = 16 << 20
"""Maximum number of bytes of an answer."""


def ask(url: str, key: str | None, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer of the server at `url` to a request; a `body` is posted.

    Raises WeftError if there is no server, or if it refuses."""
    full = url if re.match(r"https?://", url) else f"http://{url}"
    parts = urlsplit(full)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        connection = make(parts.hostname or "127.0.0.1", parts.port, timeout=_SECONDS)
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read(_MOST)
        connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise WeftError(
            f"there is no server at {full} ({error}); weft serve starts one, --url names another"
        ) from None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if answer.status != 200 or not isinstance(said, dict):
        why = said.get("error") if isinstance(said, dict) else None
        why = why.get("message") if isinstance(why, dict) else why
        raise WeftError(f"the server at {full} answers {answer.status}: {why or 'not in its form'}")
    return said
