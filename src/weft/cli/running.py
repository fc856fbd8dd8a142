"""Requests to a server that runs, for `weft ps` and `weft stop`."""

from __future__ import annotations

import json
import re
import socket
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from weft.errors import WeftError

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="OLLAMA_HOST", metavar="URL",
        help="The server; default: http://127.0.0.1:8080. A socket: http://unix:PATH:.",
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
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection, root = _connection(full)
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", f"{root}{path}", data, headers)
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


def _connection(url: str) -> tuple[HTTPConnection, str]:
    """A connection to the server at a URL, and the path below which it is."""
    unix = re.fullmatch(r"http://unix:(?P<path>[^:]+):?(?P<root>/.*)?", url)
    if unix is not None:
        return _UnixConnection(unix["path"]), _root(unix["root"] or "")
    parts = urlsplit(url)
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    host = parts.hostname or "127.0.0.1"
    return make(host, parts.port, timeout=_SECONDS), _root(parts.path)


def _root(path: str) -> str:
    """The path of a server, also where the one of its API is given."""
    return path.rstrip("/").removesuffix("/v1")


class _UnixConnection(HTTPConnection):
    """A connection to a server at a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connects. Raises OSError."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise
