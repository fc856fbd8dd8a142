"""The endpoints `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.serve.anthropic.format import MessageWriter
from weft.serve.anthropic.schema import CountBody, MessagesBody
from weft.serve.anthropic.translate import begun_of, chat_of
from weft.serve.endpoints import add
from weft.serve.log import say_tokens
from weft.serve.prompts import Asked
from weft.serve.respond import note, respond, start
from weft.serve.service import Service


def add_anthropic(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @add(app, "/v1/messages")
    async def messages(body: MessagesBody, http: Request) -> Response:
        """An answer to messages, in the form of Anthropic's API."""
        note(http, body, service)
        texts = await start(service, partial(_asked, service, body))
        stops = body.stop_sequences or ()
        name = service.name_for(body.model)
        writer = MessageWriter(texts, name, thinks=body.thinks, stops=stops)
        return await respond(writer, http, stream=body.stream, ping=writer.ping)

    @add(app, "/v1/messages/count_tokens")
    async def count(body: CountBody, http: Request) -> dict[str, int]:
        """The number of tokens of messages, in the form of Anthropic's API."""
        note(http, body, service)
        n = await run_in_threadpool(_count, service, body)
        say_tokens(http.scope["state"], n, 0)
        return {"input_tokens": n}


def _asked(service: Service, body: MessagesBody) -> Asked:
    chat = chat_of(body, service.options.max_tokens)
    return service.prompts.of_chat(chat, begun=begun_of(body))


def _count(service: Service, body: CountBody) -> int:
    chat = chat_of(body)
    return service.prompts.count_chat(chat, begun=begun_of(body))
