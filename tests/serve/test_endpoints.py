"""The table of endpoints: handlers and rows are the same, and each path finds its row."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from tests.serve.talkers import talker
from weft.serve import ServeOptions, Service, create_app
from weft.serve.access import opens
from weft.serve.endpoints import BATCHABLE, ENDPOINTS, add, find, nearest
from weft.serve.errors import ApiError, shaped_error
from weft.serve.many import Catalog, Fleet, ManyOptions, create_many_app
from weft.serve.resources import Shared

DOCS = Path(__file__).parents[2] / "docs"


ONE_OR_MANY = {
    "/v1/models/{name}": "one", "/v1/models/{name:path}": "many", "/models/load": "many",
    "/models/unload": "many",
}  # fmt: skip
"""The rows that only a server of one model, or of several, has a handler for."""


def rows(*owners: str, without: str) -> set[tuple[str, str]]:
    """Paths and methods of the rows of these owners that both kinds of servers answer, or the other
    kind than `without`. FastAPI adds `/openapi.json` itself."""
    return {
        (path, method)
        for one in ENDPOINTS for path in one.paths for method in one.method.split()
        if one.owner in owners and ONE_OR_MANY.get(one.path) != without and path != "/openapi.json"
    }  # fmt: skip


def test_each_row_has_a_handler_in_both_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever adds a handler without a row gets a KeyError; here is the other direction."""
    added: set[tuple[str, str]] = set()
    original = APIRouter.add_api_route

    def noted(self: APIRouter, path: str, endpoint: Any, **options: Any) -> None:
        added.update((path, method) for method in options["methods"])
        original(self, path, endpoint, **options)

    monkeypatch.setattr(APIRouter, "add_api_route", noted)
    with closing(Service(talker(tmp_path), ServeOptions(parallel=1))) as service:
        create_app(service)
        assert added == rows("model", "models", "server", without="many")
        added.clear()
        create_app(service, Shared(), guarded=False)  # a model beside others
        assert added >= rows("model", without="one")
    added.clear()
    options: Any = {"budget": None, "plan": None, "load": None}
    create_many_app(Fleet(Catalog(()), ManyOptions(), ServeOptions(), **options), Shared())
    assert added == rows("models", "server", without="one")


def test_a_handler_needs_a_row() -> None:
    with pytest.raises(KeyError, match="/v1/none"):
        add(FastAPI(), "/v1/none")


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/", "server"), ("/page/a/b.js", "server"), ("/health", "server"), ("/metrics", "server"),
        ("/v1/files", "server"), ("/files/x/content", "server"), ("/v1/files/a/b/c", "server"),
        ("/batches/x/cancel", "server"), ("/v1/responses/resp_1", "server"),
        ("/responses/resp_1/input_items", "server"), ("/v1/responses/resp_1/a/b", "model"),
        ("/v1/responses", "model"), ("/responses/input_tokens", "model"),
        ("/openapi.json", "models"), ("/v1/models", "models"), ("/models/a/b", "models"),
        ("/models/load", "models"), ("/api/tags", "models"), ("/api/pull", "models"),
        ("/api/blobs/sha256:1", "models"), ("/api/chat", "model"), ("/api/nothing", "model"),
        ("/v1/chat/completions", "model"), ("/plan", "model"), ("/v1/health", "model"),
        ("/health/x", "model"), ("/nothing", "model"), ("", "model"), ("nothing", "model"),
    ],
)  # fmt: skip
def test_who_answers_a_path(path: str, owner: str) -> None:
    assert nearest(path).owner == owner


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages", "anthropic"), ("/messages", "anthropic"), ("/v1/messages/x", "anthropic"),
        ("/v1/messagesx", "openai"), ("/api/chat", "ollama"), ("/api/nothing", "ollama"),
        ("/apix", "openai"), ("/v1/nothing", "openai"), ("/responses", "responses"),
        ("/v1/responses/x/y/z", "responses"), ("/", "openai"), ("//", "openai"),
    ],
)  # fmt: skip
def test_the_form_of_a_path(path: str, shape: str) -> None:
    assert nearest(path).shape == shape
    body = shaped_error(ApiError(404, "no"), path)
    assert ("type" in body, body["error"] == "no") == (shape == "anthropic", shape == "ollama")


@pytest.mark.parametrize(
    ("method", "path", "accept", "is_open"),
    [
        ("GET", "/health", "", True), ("POST", "/health", "", True),
        ("GET", "/v1/health", "", False), ("GET", "/metrics", "", False),
        ("GET", "/", "text/html", True), ("GET", "/", "*/*", False),
        ("POST", "/", "text/html", False), ("GET", "/plan", "text/html", False),
        ("HEAD", "/page/x", "", True), ("POST", "/page/x", "", False), ("GET", "/page", "", False),
        ("POST", "/v1/chat/completions", "", False), ("GET", "/nothing", "", False),
    ],
)  # fmt: skip
def test_what_needs_no_key(method: str, path: str, accept: str, is_open: bool) -> None:
    headers = [(b"accept", accept.encode())]
    scope = {"method": method, "path": path, "headers": headers, "query_string": b""}
    assert opens(scope) is is_open


def test_traces_name_embeddings_at_all_their_paths() -> None:
    for path in ("/v1/embeddings", "/embeddings", "/api/embed", "/api/embeddings", "/embedding"):
        endpoint = find(path)
        assert endpoint is not None and endpoint.operation == "embeddings"


def test_batches_and_pages() -> None:
    assert BATCHABLE == (
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
    )  # fmt: skip
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert not [one.path for one in ENDPOINTS if one.listed and one.path.split("{")[0] not in text]
