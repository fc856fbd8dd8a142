"""The endpoints of Ollama's API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from fastapi.routing import APIRoute
from numpy.typing import NDArray

from weft.serve.endpoints import ENDPOINTS, add
from weft.serve.errors import ApiError, Json
from weft.serve.model_card import ModelCard
from weft.serve.ollama.format import (
    NDJSON,
    Kind,
    OllamaAnswer,
    details_of,
    line,
    listed,
    loaded_answer,
    same_name,
    shown_model,
    tagged,
)
from weft.serve.ollama.schema import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    PullRequest,
    ShowRequest,
    Writing,
)
from weft.serve.ollama.translate import chat_of, completion_of, wants_template
from weft.serve.prompts import Asked
from weft.serve.respond import embedded, note, respond, start
from weft.serve.schema import ChatBody
from weft.serve.service import Service
from weft.version import __version__


class OllamaRoute(APIRoute):
    """A route whose bodies need no `Content-Type`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that answers a request."""
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            return await handler(_as_json(request))

        return answered


def _as_json(request: Request) -> Request:
    """Takes a body without a type for JSON, as curl -d sends it, unless a web page sends it (which
    has an `Origin`): a page of another site may send such bodies without asking."""
    headers = request.scope["headers"]
    names = {name for name, _ in headers}
    if b"origin" in names or b"sec-fetch-site" in names:
        return request
    kept = [(name, value) for name, value in headers if name != b"content-type"]
    scope = {**request.scope, "headers": [*kept, (b"content-type", b"application/json")]}
    return Request(scope, request.receive)


OLLAMA_VERSION = "0.14.0"
"""A version of Ollama that has all that is served here, and that clients accept."""
FOREVER = "2318-01-01T00:00:00Z"
"""The time at which a model that stays is unloaded, because clients expect a time."""


def add_ollama(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""
    router = APIRouter(route_class=OllamaRoute)
    _add_writing(router, service)
    _add_embeddings(router, service)

    def card_of(name: str) -> ModelCard:
        if not any(same_name(name, own) for own in (service.model_id, *service.aliases)):
            raise ApiError(404, f"model {name!r:.80} not found; this is {service.model_id}")
        return service.card

    names = (service.model_id, *service.aliases)
    add_library(
        router, lambda: [(name, service.card) for name in names], card_of,
        lambda: [loaded_row(service, FOREVER)],
    )  # fmt: skip
    app.include_router(router)


def _add_writing(router: APIRouter, service: Service) -> None:
    @add(router, "/api/chat")
    async def chat(body: ChatRequest, http: Request) -> Response:
        """An answer to messages, in Ollama's form."""
        if not body.messages:
            return Json(loaded_answer("chat", body.model))
        made, ignored = chat_of(body)
        note(http, body, service, ignored)
        make = partial(service.prompts.of_chat, made)
        return await _answer(service, "chat", body, http, make)

    @add(router, "/api/generate")
    async def generate(body: GenerateRequest, http: Request) -> Response:
        """An answer to a prompt, or its continuation, in Ollama's form."""
        if not body.prompt and not body.suffix and not body.images:
            return Json(loaded_answer("generate", body.model))
        made, ignored = completion_of(body)
        note(http, body, service, ignored)

        def make() -> Asked:
            if isinstance(made, ChatBody):
                return _continuing(service.prompts.of_chat(made), body, service)
            return service.prompts.of_completion(made)

        return await _answer(service, "generate", body, http, make)


async def _answer(
    service: Service, kind: Kind, body: Writing, http: Request, make: Callable[[], Asked]
) -> Response:
    began = perf_counter()
    texts = await start(service, make)
    with_context = isinstance(body, GenerateRequest) and wants_template(body) and not body.images
    answer = OllamaAnswer(
        texts, service.tokenizer, kind, body.model, began, with_context=with_context,
        load_seconds=http.scope["state"].get("load_seconds", 0.0),
    )  # fmt: skip
    return await respond(answer, http, stream=body.stream is not False, media_type=NDJSON)


def _continuing(asked: Asked, body: GenerateRequest, service: Service) -> Asked:
    """Puts the tokens of earlier prompts and answers, the `context` of a body, in front."""
    if not body.context:
        return asked
    last = service.tokenizer.n_vocab - 1
    if max(body.context) > last:
        raise ApiError(
            400, f"context has the token {max(body.context)}; the last is {last}", "context"
        )
    prefix = service.tokenizer.vocab.prefix
    request = asked.requests[0]
    ids = request.prompt
    ids = ids[len(prefix) :] if prefix and ids[: len(prefix)] == prefix else ids
    return replace(asked, requests=[replace(request, prompt=(*body.context, *ids))])


def _add_embeddings(router: APIRouter, service: Service) -> None:
    @add(router, "/api/embed")
    async def embed(body: EmbedRequest, http: Request) -> dict[str, Any]:
        """Embeddings of texts, of length 1, in Ollama's form."""
        began = perf_counter()
        note(http, body, service)
        rows: list[NDArray[np.float32]] = []
        n_tokens = 0
        if body.input != []:
            rows, n_tokens = await embedded(
                service, http, body.input, "input", body.dimensions, cut=body.truncate
            )
        load = http.scope["state"].get("load_seconds", 0.0)
        return {
            "model": body.model, "embeddings": [row.tolist() for row in rows],
            "total_duration": round((perf_counter() - began + load) * 1e9),
            "load_duration": round(load * 1e9),
            "prompt_eval_count": n_tokens,
        }  # fmt: skip

    @add(router, "/api/embeddings")
    async def embeddings(body: EmbeddingsRequest, http: Request) -> dict[str, Any]:
        """The embedding of one text, of length 1, in Ollama's older form."""
        note(http, body, service)
        rows, _ = await embedded(service, http, body.prompt, "prompt", cut=True)
        return {"embedding": rows[0].tolist()}


def add_library(
    router: APIRouter,
    cards: Callable[[], Iterable[tuple[str, ModelCard]]],
    card_of: Callable[[str], ModelCard],
    loaded: Callable[[], list[dict[str, Any]]],
) -> None:
    """Adds the endpoints about the models of a server. `cards` gives all models by
    their names, `card_of` the model of a name, and `loaded` the rows of `/api/ps`."""

    @add(router, "/api/version", "GET")
    async def about_version() -> dict[str, str]:
        """The version of this server."""
        return {"version": OLLAMA_VERSION, "weft": __version__}

    @add(router, "/api/tags", "GET")
    async def tags() -> dict[str, Any]:
        """The models whose files can be read, in Ollama's form."""
        return {"models": await run_in_threadpool(lambda: [listed(*each) for each in cards()])}

    @add(router, "/api/show")
    async def show(body: ShowRequest) -> dict[str, Any]:
        """A model as its file describes it, in Ollama's form. It is not loaded for this."""
        name = body.model or body.name or ""
        return await run_in_threadpool(lambda: shown_model(card_of(name)))

    @add(router, "/api/ps", "GET")
    async def running() -> dict[str, Any]:
        """The loaded models and their memory, in Ollama's form."""
        return {"models": loaded()}

    @add(router, "/api/pull")
    async def pull(body: PullRequest) -> Response:
        """Says that a model is here; others are not fetched."""
        try:
            await run_in_threadpool(card_of, body.model or body.name or "")
        except ApiError:
            await refuse()
        done = {"status": "success"}
        return Json(done) if body.stream is False else Response(line(done), media_type=NDJSON)

    async def refuse() -> None:
        """Refused: models are files that the server is started with."""
        raise ApiError(
            501, "this server does not fetch, make, copy or delete models; put their files into "
            "its folder, or start it with another MODEL", code="unsupported",
        )  # fmt: skip

    for endpoint in ENDPOINTS:
        if endpoint.shape == "ollama" and not endpoint.listed and endpoint.path != "/api/pull":
            add(router, endpoint.path, endpoint.method)(refuse)


def loaded_row(service: Service, expires_at: str) -> dict[str, Any]:
    """A loaded model in the list of `/api/ps`."""
    card, memory = service.card, service.memory()
    return {
        "name": tagged(card.name),
        "model": tagged(card.name),
        "size": memory.total,
        "digest": card.digest,
        "details": details_of(card),
        "expires_at": expires_at,
        "size_vram": memory.on_devices,
        "context_length": service.n_ctx,
    }


def expires(seconds: float | None) -> str:
    """The time `seconds` from now, as RFC 3339; None: never."""
    if seconds is None:
        return FOREVER
    at = datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC)
    return at.isoformat().replace("+00:00", "Z")
