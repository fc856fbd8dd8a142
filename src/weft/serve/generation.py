"""The endpoints `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response

from weft.serve.answers import Answer
from weft.serve.prompts import Asked
from weft.serve.respond import note, respond, start
from weft.serve.schema import ChatBody, CompletionBody, Generation
from weft.serve.service import Service

__all__ = ["add_generation"]


def add_generation(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @app.post("/v1/chat/completions")
    @app.post("/chat/completions", include_in_schema=False)
    async def chat(body: ChatBody, http: Request) -> Response:
        """An answer to messages."""
        make = partial(service.prompts.of_chat, body)
        return await _answer(service, "chat", body, http, make)

    @app.post("/v1/completions")
    @app.post("/completions", include_in_schema=False)
    async def completions(body: CompletionBody, http: Request) -> Response:
        """The continuation of a text, of token ids, or of several."""
        make = partial(service.prompts.of_completion, body)
        return await _answer(service, "text", body, http, make)


async def _answer(
    service: Service, kind: Literal["chat", "text"], body: Generation, http: Request,
    make: Callable[[], Asked],
) -> Response:  # fmt: skip
    note(http, body, service)
    texts = await start(service, make)
    usage = body.stream_options is not None and body.stream_options.include_usage
    answer = Answer(
        texts, service.tokenizer, kind, service.name_for(body.model), with_usage=usage,
        with_timings=body.timings_per_token,
    )  # fmt: skip
    return await respond(answer, http, stream=bool(body.stream))
