"""The endpoints of a server: one row for each path and method.

Handlers are added by their rows (`add`), and everything that decides by the path of a request asks
for the row: the form of its errors, who answers it, whether it needs a key, what is logged and
traced, and what lines of batches may ask. docs/add-an-endpoint.md says how a row is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, FastAPI

from weft.records import dataclass

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path and a method that a server answers."""

    path: str
    """The path as FastAPI writes it. A listed path that takes a key and is not Ollama's is there
    with `/v1` and without."""
    method: str = "POST"
    """The method, or several with a space between."""
    shape: Literal["openai", "anthropic", "responses", "ollama"] = "openai"
    """The API whose form errors and streams have."""
    streams: bool = False
    """True if the answer may be a stream."""
    batchable: bool = False
    """True if lines of a batch may name the path as their `url`."""
    row: str = ""
    """The field of a dataset's row (`weft.ray`) that is sent here; empty: no field is."""
    owner: Literal["model", "models", "server"] = "model"
    """The application that answers: a loaded model's; a server's of several models, about all of
    them; or always the server's in front of models."""
    access: Literal["key", "open", "files", "browser", "ticket"] = "key"
    """The proof that a request needs where a server has keys: a key; none; none for GET; none for
    GET by a browser; or a ticket in place of a key."""
    operation: str = ""
    """The name of the operation in traces, where the texts of a request do not tell it."""
    polled: bool = False
    """True if programs ask all the time: requests are logged at level debug, and not traced."""
    listed: bool = True
    """True if the overview of the server and `/openapi.json` show the endpoint."""
    others: tuple[str, ...] = ()
    """Other paths of the same endpoint."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths; the first is `path`."""
        if not self.listed or self.shape == "ollama" or self.access != "key":
            return (self.path, *self.others)
        bare = self.path.removeprefix("/v1")
        return (self.path, *self.others, f"/v1{bare}" if bare == self.path else bare)


ENDPOINTS = (
    # the OpenAI API, and ranks as Jina, Cohere and text-embeddings-inference have them
    Endpoint("/v1/chat/completions", streams=True, batchable=True, row="messages"),
    Endpoint(
        "/v1/completions", streams=True, batchable=True, row="prompt", operation="text_completion"
    ),
    Endpoint("/v1/embeddings", batchable=True, row="input", operation="embeddings"),
    Endpoint("/v1/rerank", others=("/v2/rerank", "/v1/reranking", "/reranking")),
    Endpoint("/v1/audio/transcriptions", streams=True),
    Endpoint("/v1/audio/translations", streams=True),
    Endpoint("/v1/audio/speech", streams=True),
    Endpoint("/v1/models", "GET", owner="models"),
    Endpoint("/v1/models/{name}", "GET", owner="models"),
    Endpoint("/v1/models/{name:path}", "GET", owner="models"),
    # OpenAI's Responses API
    Endpoint("/v1/responses", shape="responses", streams=True, batchable=True),
    Endpoint("/v1/responses/input_tokens", shape="responses"),
    Endpoint("/v1/responses/{response_id}", "GET", shape="responses", owner="server"),
    Endpoint("/v1/responses/{response_id}", "DELETE", shape="responses", owner="server"),
    Endpoint("/v1/responses/{response_id}/input_items", "GET", shape="responses", owner="server"),
    Endpoint("/v1/responses/{response_id}/cancel", shape="responses", owner="server"),
    # files and batches
    Endpoint("/v1/files", owner="server"),
    Endpoint("/v1/files", "GET", owner="server"),
    Endpoint("/v1/files/{file_id}", "GET", owner="server"),
    Endpoint("/v1/files/{file_id}", "DELETE", owner="server"),
    Endpoint("/v1/files/{file_id}/content", "GET", owner="server"),
    Endpoint("/v1/batches", owner="server"),
    Endpoint("/v1/batches", "GET", owner="server"),
    Endpoint("/v1/batches/{batch_id}", "GET", owner="server"),
    Endpoint("/v1/batches/{batch_id}/cancel", owner="server"),
    # Anthropic's API
    Endpoint("/v1/messages", shape="anthropic", streams=True),
    Endpoint("/v1/messages/count_tokens", shape="anthropic"),
    # Ollama's API
    Endpoint("/api/chat", shape="ollama", streams=True),
    Endpoint("/api/generate", shape="ollama", streams=True),
    Endpoint("/api/embed", shape="ollama", operation="embeddings"),
    Endpoint("/api/embeddings", shape="ollama", operation="embeddings"),
    Endpoint("/api/version", "GET", shape="ollama", owner="models", others=("/version",)),
    Endpoint("/api/tags", "GET", shape="ollama", owner="models"),
    Endpoint("/api/show", shape="ollama", owner="models"),
    Endpoint("/api/ps", "GET", shape="ollama", owner="models"),
    Endpoint("/api/pull", shape="ollama", owner="models", listed=False),
    Endpoint("/api/push", shape="ollama", owner="models", listed=False),
    Endpoint("/api/create", shape="ollama", owner="models", listed=False),
    Endpoint("/api/copy", shape="ollama", owner="models", listed=False),
    Endpoint("/api/delete", "DELETE", shape="ollama", owner="models", listed=False),
    Endpoint("/api/blobs/{digest}", "HEAD POST", shape="ollama", owner="models", listed=False),
    # llama.cpp's server
    Endpoint("/completion", streams=True),
    Endpoint("/infill", streams=True),
    Endpoint("/tokenize"),
    Endpoint("/detokenize"),
    Endpoint("/apply-template"),
    Endpoint("/embedding", operation="embeddings"),
    Endpoint("/props", "GET"),
    Endpoint("/slots", "GET"),
    Endpoint("/lora-adapters", "GET"),
    Endpoint("/lora-adapters"),
    Endpoint("/models/load", owner="models"),
    Endpoint("/models/unload", owner="models"),
    # the server itself, and its page
    Endpoint(
        "/health",
        "GET",
        owner="server",
        access="open",
        polled=True,
        others=("/ping",),  # vLLM's
    ),
    Endpoint("/v1/health", "GET", listed=False),
    Endpoint("/metrics", "GET", owner="server", polled=True),
    Endpoint("/openapi.json", "GET", owner="models", listed=False),
    Endpoint("/", "GET", owner="server", access="browser", listed=False),
    Endpoint("/page/{path:path}", "GET", owner="server", access="files", listed=False),
    Endpoint("/plan", "GET", access="ticket"),
    Endpoint("/plan/ticket", listed=False),
)
BATCHABLE = tuple(endpoint.path for endpoint in ENDPOINTS if endpoint.batchable)
"""The paths that lines of batches may ask."""

_ROWS = {(endpoint.method, endpoint.path): endpoint for endpoint in ENDPOINTS}
_PLAIN: dict[str, Endpoint] = {}
_PATTERNS: list[tuple[re.Pattern[str], Endpoint]] = []
_FOLDERS: dict[str, Endpoint] = {}
"""The first endpoint below each folder of paths."""
for _endpoint in ENDPOINTS:
    for _path in _endpoint.paths:
        if "{" in _path:
            _pattern = re.sub(r"\{\w+:path\}", ".*", _path)
            _PATTERNS.append((re.compile(re.sub(r"\{\w+\}", "[^/]+", _pattern), re.S), _endpoint))
        else:
            _PLAIN.setdefault(_path, _endpoint)
        while _path := _path.rpartition("/")[0]:
            _FOLDERS.setdefault(_path, _endpoint)
_UNKNOWN = Endpoint("")


def find(path: str) -> Endpoint | None:
    """The endpoint at a path, whatever its method; None if there is none."""
    plain = _PLAIN.get(path)
    if plain is not None:
        return plain
    return next((endpoint for form, endpoint in _PATTERNS if form.fullmatch(path)), None)


def nearest(path: str) -> Endpoint:
    """The endpoint at a path. For a path without one, the first endpoint below its longest folder
    that has any, so that unknown paths get errors of the API that they seem to mean."""
    endpoint = find(path)
    while endpoint is None and path:
        endpoint = _FOLDERS.get(path)
        path = path.rpartition("/")[0]
    return endpoint or _UNKNOWN


def add(
    app: FastAPI | APIRouter, path: str, method: str = "POST", **options: Any
) -> Callable[[_Handler], _Handler]:
    """A decorator that adds a handler for an endpoint of the table, at all its paths. `options` are
    those of `FastAPI.add_api_route`."""
    endpoint = _ROWS[method, path]

    def decorate(handler: _Handler) -> _Handler:
        for one in reversed(endpoint.paths):
            app.add_api_route(
                one, handler, methods=method.split(),
                include_in_schema=endpoint.listed and one == path, **options,
            )  # fmt: skip
        return handler

    return decorate
