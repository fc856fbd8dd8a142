"""The endpoints `/v1/responses` and `/v1/responses/input_tokens`, which need a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.serve.errors import ApiError
from weft.serve.log import say_tokens
from weft.serve.prompts import Asked
from weft.serve.respond import note, respond, start
from weft.serve.responses.kept import Kept, KeptResponses, owner_of
from weft.serve.responses.schema import CountBody, ResponsesBody
from weft.serve.responses.translate import chat_of, items_of
from weft.serve.responses.written import ResponseWriter, new_id
from weft.serve.service import Service

__all__ = ["add_responses"]

Items = list[dict[str, Any]]
_T = TypeVar("_T")
_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of the chat API, and the fields here that say the same."""


def add_responses(app: FastAPI, service: Service, kept: KeptResponses) -> None:
    """Adds the endpoints to an application; responses go to `kept`."""

    @app.post("/v1/responses")
    @app.post("/responses", include_in_schema=False)
    async def create(body: ResponsesBody, http: Request) -> Response:
        """A response to items: OpenAI's newer API, with answers that it keeps."""
        note(http, body, service)
        owner = owner_of(http)
        before, new = _conversation(body, kept, owner)
        texts = await start(service, partial(_asked, service, body, before, new))
        writer = ResponseWriter(texts, service.tokenizer, body, service.name_for(body.model), owner)
        if body.store is not False:
            writer.keep = lambda response: kept.put(response, new, before, owner)
        kept.running[writer.id] = writer
        return await respond(writer, http, stream=bool(body.stream))

    @app.post("/v1/responses/input_tokens")
    @app.post("/responses/input_tokens", include_in_schema=False)
    async def count(body: CountBody, http: Request) -> dict[str, Any]:
        """The number of tokens of the input of a response."""
        note(http, body, service)
        before, new = _conversation(body, kept, owner_of(http))
        n = await run_in_threadpool(_count, service, body, before, new)
        say_tokens(http.scope["state"], n, 0)
        return {"object": "response.input_tokens", "input_tokens": n}


def _conversation(body: CountBody, kept: KeptResponses, owner: object) -> tuple[Kept | None, Items]:
    """What `previous_response_id` names, and the new items."""
    id_ = body.previous_response_id
    before = None if id_ is None else kept.get(id_, owner)
    new = items_of(body.input, lambda id_: kept.item(id_, owner))
    return before, [item | {"id": item.get("id") or new_id("item")} for item in new]


def _items(before: Kept | None, new: Items) -> Items:
    return new if before is None else [*before.items, *before.response["output"], *new]


def _asked(service: Service, body: ResponsesBody, before: Kept | None, new: Items) -> Asked:
    return _renamed(lambda: service.prompts.of_chat(chat_of(body, _items(before, new))))


def _count(service: Service, body: CountBody, before: Kept | None, new: Items) -> int:
    return _renamed(lambda: service.prompts.count_chat(chat_of(body, _items(before, new))))


def _renamed(make: Callable[[], _T]) -> _T:
    """What `make` gives; errors name the fields of this API."""
    try:
        return make()
    except ApiError as error:
        name = _NAMES.get(error.param or "")
        if name is None:
            raise
        text = str(error)
        if text.startswith(f"{error.param} "):
            text = name + text[len(error.param or "") :]
        raise ApiError(
            error.status, text, name, error.code, tokens=error.tokens
        ) from None  # fmt: skip
