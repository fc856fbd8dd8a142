"""The endpoints."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from weft.llm.compute.embed import Pair
from weft.llm.compute.rerank import best_first, pair_ids
from weft.serve.answers import Answer
from weft.serve.errors import ApiError, Json, install_handlers
from weft.serve.guard import Guard
from weft.serve.hosts import Hosts
from weft.serve.log import RequestLog, say_tokens
from weft.serve.metrics import CONTENT_TYPE, exposition
from weft.serve.prompts import Asked, require_whole, texts_of, token_lists
from weft.serve.schema import (
    AdaptersBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    Generation,
    Part,
    RerankBody,
    TokenizeBody,
)
from weft.serve.service import Service
from weft.version import __version__

__all__ = ["create_app"]

LONGEST_TOKENIZED = 1 << 20
"""Most characters that /tokenize accepts."""
SHORT = 1 << 14
"""Number of characters that are tokenized in some ten milliseconds."""


def create_app(service: Service) -> FastAPI:
    """The ASGI application of a loaded model; it closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    options = service.options
    # FastAPI's pages are off, because they load scripts from other sites
    app = FastAPI(
        title="weft", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        default_response_class=Json,
    )  # fmt: skip
    app.add_middleware(Guard, max_body=options.max_body, api_key=options.api_key)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=options.cors_origins, allow_methods=["*"],
            allow_headers=["*"], expose_headers=["X-Weft-Ignored", "Retry-After"],
        )  # fmt: skip
    if options.api_key is None:
        app.add_middleware(Hosts, names=(options.host, *options.allow_hosts))
    app.add_middleware(RequestLog)
    install_handlers(app)
    _add_generation(app, service)
    _add_embeddings(app, service)
    _add_rerank(app, service)
    _add_tokens(app, service)
    _add_about(app, service)
    return app


def _note(http: Request, body: Part, service: Service) -> None:
    """Notes unknown fields for a header, or refuses them if the server is strict."""
    ignored = body.ignored()
    if ignored and service.options.strict:
        name = ignored[0]
        raise ApiError(
            400, f"{name[:80]} is not known here; leave it out", name, "unknown_parameter"
        )
    http.state.ignored = ignored


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    @app.post("/chat/completions", include_in_schema=False)
    async def chat(body: ChatBody, http: Request) -> Response:
        """An answer to messages."""
        _note(http, body, service)
        make = partial(service.prompts.of_chat, body)
        return await _respond(await _answer(service, "chat", body.model, make), body, http)

    @app.post("/v1/completions")
    @app.post("/completions", include_in_schema=False)
    async def completions(body: CompletionBody, http: Request) -> Response:
        """The continuation of a text, of token ids, or of several."""
        _note(http, body, service)
        make = partial(service.prompts.of_completion, body)
        return await _respond(await _answer(service, "text", body.model, make), body, http)


async def _answer(
    service: Service, kind: Literal["chat", "text"], model: str | None, make: Callable[[], Asked]
) -> Answer:
    """Creates an answer in another thread, because templates, tokens and grammars take time."""
    loop = asyncio.get_running_loop()

    def start() -> Answer:
        name = service.name_for(model)
        return Answer(service.engine, service.tokenizer, kind, name, make(), loop)

    return await run_in_threadpool(start)


async def _respond(answer: Answer, body: Generation, http: Request) -> Response:
    answer.on_end = partial(say_tokens, http.scope["state"])
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            answer.stream(usage), media_type="text/event-stream", headers=headers
        )
    whole = asyncio.create_task(answer.whole())
    left = asyncio.create_task(_client_left(http))
    try:
        await asyncio.wait((whole, left), return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            return Response(status_code=499)  # the client has left
        return Json(whole.result())
    finally:
        answer.cancel()
        whole.cancel()
        left.cancel()


async def _client_left(http: Request) -> None:
    """Returns when the client closes the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post("/v1/embeddings")
    @app.post("/embeddings", include_in_schema=False)
    async def embeddings(body: EmbeddingBody, http: Request) -> dict[str, Any]:
        """An embedding of each text, of length 1."""
        _note(http, body, service)
        if service.embedder.pooling == "rank":
            raise ApiError(
                400, f"{service.model_id} ranks documents; ask /v1/rerank", "model", "unsupported"
            )
        width = service.n_embd
        if body.dimensions is not None and body.dimensions > width:
            raise ApiError(
                400, f"dimensions is {body.dimensions}, but the model gives {width}", "dimensions"
            )
        texts = await run_in_threadpool(_embedding_texts, service, body)
        rows = await service.embed(texts, body.dimensions, http.is_disconnected)
        data = [row.astype("<f4") for row in rows]
        as_text = body.encoding_format == "base64"
        n_tokens = sum(map(len, texts))
        say_tokens(http.scope["state"], n_tokens, 0)
        return {
            "object": "list",
            "model": service.model_id,
            "data": [
                {
                    "object": "embedding",
                    "index": i,
                    "embedding": base64.b64encode(row.tobytes()).decode()
                    if as_text
                    else row.tolist(),
                }
                for i, row in enumerate(data)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


def _embedding_texts(service: Service, body: EmbeddingBody) -> list[list[int]]:
    """The token ids of each text. Raises ApiError if one is too long or empty."""
    most = service.embedder.max_tokens
    for text in texts_of(body.input):
        service.prompts.require_short(text or "", "input", most)
    texts = token_lists(service.tokenizer, body.input, "input")
    for number, ids in enumerate(texts):
        if not 1 <= len(ids) <= most:
            raise ApiError(
                400, f"text {number} of input has {len(ids)} tokens; it must be 1 to {most}",
                "input", "context_length_exceeded",
            )  # fmt: skip
    return texts


def _add_rerank(app: FastAPI, service: Service) -> None:
    @app.post("/v1/rerank", response_model=None)
    @app.post("/rerank", include_in_schema=False, response_model=None)
    @app.post("/v1/reranking", include_in_schema=False, response_model=None)
    @app.post("/reranking", include_in_schema=False, response_model=None)
    async def rerank(body: RerankBody, http: Request) -> dict[str, Any] | list[dict[str, Any]]:
        """The indexes and scores of documents, those that answer a query best first."""
        _note(http, body, service)
        texts = body.documents or body.texts
        if texts is None:
            raise ApiError(400, "documents is missing; it must be a list of texts", "documents")
        pairs = await run_in_threadpool(_pairs, service, body.query, texts)
        rows = best_first(await service.rank(pairs, http.is_disconnected), body.top_n)
        n_tokens = sum(map(len, pairs))
        say_tokens(http.scope["state"], n_tokens, 0)
        if body.documents is None:
            shown = [{"text": texts[row.index]} if body.return_text else {} for row in rows]
            return [row.as_json("score") | more for row, more in zip(rows, shown, strict=True)]
        return {
            "model": body.model or service.model_id,
            "object": "list",
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "results": [row.as_json() for row in rows],
        }


def _pairs(service: Service, query: str, texts: list[str]) -> list[Pair]:
    """The token ids of each document with the query. Raises ApiError if the model does not rank, or
    a text is too long."""
    if not service.ranks:
        raise ApiError(
            400, f"{service.model_id} has no classifier, so it cannot rank; serve a reranker",
            "model", "unsupported",
        )  # fmt: skip
    most = service.embedder.max_tokens
    service.prompts.require_short(query, "query", most)
    for text in texts:
        service.prompts.require_short(text, "documents", most)
    pairs = [pair_ids(service.tokenizer, query, text) for text in texts]
    for number, ids in enumerate(pairs):
        if len(ids) > most:
            raise ApiError(
                400, f"document {number} and the query have {len(ids)} tokens; the model reads "
                f"{most} at once: shorten it, or start the server with a larger --ubatch-size",
                "documents", "context_length_exceeded",
            )  # fmt: skip
    return pairs


def _add_tokens(app: FastAPI, service: Service) -> None:
    turn = asyncio.Lock()

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody, http: Request) -> dict[str, list[int]]:
        """The tokens of a text."""
        _note(http, body, service)
        require_whole(body.content, "content")
        if len(body.content) > LONGEST_TOKENIZED:
            raise ApiError(
                400, f"content has {len(body.content)} characters; it may have "
                f"{LONGEST_TOKENIZED}: send it in parts", "content",
            )  # fmt: skip
        encode = partial(
            service.tokenizer.encode, body.content,
            add_special=body.add_special, parse_special=body.parse_special,
        )  # fmt: skip
        if len(body.content) <= SHORT:
            return {"tokens": await run_in_threadpool(encode)}
        async with turn:  # long texts one by one, so that they slow down others less
            return {"tokens": await run_in_threadpool(encode)}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody, http: Request) -> dict[str, str]:
        """The text of tokens."""
        _note(http, body, service)
        n = service.tokenizer.n_vocab
        if any(i >= n for i in body.tokens):
            raise ApiError(400, f"tokens has an id over {n - 1}, the last of this model", "tokens")
        decode = partial(service.tokenizer.decode, body.tokens, special=body.special)
        return {"content": await run_in_threadpool(decode)}


def _add_about(app: FastAPI, service: Service) -> None:
    about = {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "weft",
        **service.vectors.about_model(),
    }

    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        """The server and its paths, as plain text."""
        return Response(_overview(app, service), media_type="text/plain; charset=utf-8")

    @app.get("/v1/models")
    @app.get("/models", include_in_schema=False)
    async def models() -> dict[str, Any]:
        """The model that is served, with its control vectors, and its adapters, as a list."""
        return {"object": "list", "data": [about, *service.adapters.as_models(about)]}

    @app.get("/v1/models/{name}")
    @app.get("/models/{name}", include_in_schema=False)
    async def model(name: str) -> dict[str, Any]:
        """The model or an adapter, by its name."""
        for one in (about, *service.adapters.as_models(about)):
            if one["id"] == name:
                return one
        raise ApiError(
            404, f"there is no model {name!r}; this is {service.model_id}", "model",
            "model_not_found",
        )  # fmt: skip

    @app.get("/lora-adapters")
    async def adapters() -> list[dict[str, Any]]:
        """The adapters, with the scales of requests that name none."""
        return service.adapters.listed()

    @app.post("/lora-adapters")
    async def set_adapters(body: AdaptersBody) -> dict[str, bool]:
        """Sets these scales; adapters that are left out have scale 0."""
        service.adapters.set(body.lora)
        return {"success": True}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 while requests are served, with a note if a device has failed."""
        service.check_health()
        note = service.fell_back
        return {"status": "ok"} | ({"note": note} if note else {})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and gauges for Prometheus."""
        return Response(exposition(service.engine_or_none), media_type=CONTENT_TYPE)


def _overview(app: FastAPI, service: Service) -> str:
    lines = [f"weft {__version__} serves the model {service.model_id}.", ""]
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            method = ", ".join(sorted(route.methods or ()))
            what = route.description.split("\n")[0]
            lines.append(f"{method:5} {route.path:22} {what}")
    return "\n".join([*lines, "", "The paths under /v1 are there without /v1, too.", ""])
