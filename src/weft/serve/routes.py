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
from fastapi.responses import JSONResponse, Response, StreamingResponse

from weft.serve.answers import Answer
from weft.serve.errors import ApiError, install_handlers
from weft.serve.guard import Guard
from weft.serve.metrics import CONTENT_TYPE, exposition
from weft.serve.prompts import Asked, token_lists
from weft.serve.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    Generation,
    TokenizeBody,
)
from weft.serve.service import Service
from weft.version import __version__

__all__ = ["create_app"]


def create_app(service: Service) -> FastAPI:
    """The ASGI application over a loaded model; closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    options = service.options
    app = FastAPI(title="weft", version=__version__, lifespan=lifespan)
    app.add_middleware(Guard, max_body=options.max_body, api_key=options.api_key)
    install_handlers(app)
    _add_generation(app, service)
    _add_embeddings(app, service)
    _add_tokens(app, service)
    _add_about(app, service)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, http: Request) -> Response:
        """An answer to a conversation."""
        make = partial(service.prompts.of_chat, body)
        return await _respond(await _answer(service, "chat", make), body, http)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, http: Request) -> Response:
        """The continuation of a text."""
        make = partial(service.prompts.of_completion, body)
        return await _respond(await _answer(service, "text", make), body, http)


async def _answer(
    service: Service, kind: Literal["chat", "text"], make: Callable[[], Asked]
) -> Answer:
    """Long texts and constraints take time: templates, tokens and grammars are another thread's."""
    loop = asyncio.get_running_loop()

    def start() -> Answer:
        return Answer(service.engine, service.tokenizer, kind, service.model_id, make(), loop)

    return await run_in_threadpool(start)


async def _respond(answer: Answer, body: Generation, http: Request) -> Response:
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
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(whole.result())
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
    async def embeddings(body: EmbeddingBody, http: Request) -> dict[str, Any]:
        """An embedding of each text, of length 1."""
        embedder = service.embedder
        width = service.n_embd
        if body.dimensions is not None and body.dimensions > width:
            raise ApiError(
                400, f"dimensions is {body.dimensions}, but the model gives {width}", "dimensions"
            )
        texts = await run_in_threadpool(token_lists, service.tokenizer, body.input)
        for number, ids in enumerate(texts):
            if not 1 <= len(ids) <= embedder.max_tokens:
                raise ApiError(
                    400,
                    f"text {number} has {len(ids)} tokens; it must be 1 to {embedder.max_tokens}",
                    "input",
                    "context_length_exceeded",
                )
        rows = await service.embed(texts, body.dimensions, http.is_disconnected)
        data = [row.astype("<f4") for row in rows]
        as_text = body.encoding_format == "base64"
        n_tokens = sum(map(len, texts))
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


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, list[int]]:
        """The tokens of a text."""

        def encode() -> list[int]:
            return service.tokenizer.encode(
                body.content, add_special=body.add_special, parse_special=body.parse_special
            )

        return {"tokens": await run_in_threadpool(encode)}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of tokens."""
        n = service.tokenizer.n_vocab
        if any(i >= n for i in body.tokens):
            raise ApiError(400, f"token ids are 0..{n - 1}", "tokens")
        return {"content": service.tokenizer.decode(body.tokens, special=body.special)}


def _add_about(app: FastAPI, service: Service) -> None:
    about = {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "weft",
    }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model."""
        return {"object": "list", "data": [about]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        """The model by its name."""
        if name != service.model_id:
            raise ApiError(
                404, f"there is no model {name!r}; this is {service.model_id}", "model",
                "model_not_found",
            )  # fmt: skip
        return about

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 while requests are served; with a note when that is without a device that failed."""
        service.check_health()
        note = service.fell_back
        return {"status": "ok"} | ({"note": note} if note else {})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and gauges for Prometheus."""
        return Response(exposition(service.engine_or_none), media_type=CONTENT_TYPE)
