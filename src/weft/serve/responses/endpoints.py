"""The endpoints `/v1/responses` and those below it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.serve.endpoints import add
from weft.serve.errors import ApiError
from weft.serve.log import say_tokens
from weft.serve.prompts import Asked
from weft.serve.respond import note, respond, start
from weft.serve.responses.format import ResponseWriter, new_id
from weft.serve.responses.schema import CountBody, ResponsesBody
from weft.serve.responses.store import Items, Kept, KeptResponses, owner_of
from weft.serve.responses.translate import chat_of, items_of
from weft.serve.service import Service

_T = TypeVar("_T")
_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of the chat API, and the fields here that say the same."""


def add_responses(app: FastAPI, service: Service, kept: KeptResponses) -> None:
    """Adds the endpoints to an application; responses go to `kept`."""

    @add(app, "/v1/responses")
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
        return await respond(writer, http, stream=bool(body.stream), ping=writer.ping)

    @add(app, "/v1/responses/input_tokens")
    async def count(body: CountBody, http: Request) -> dict[str, Any]:
        """The number of tokens of the input of a response."""
        note(http, body, service)
        before, new = _conversation(body, kept, owner_of(http))
        n = await run_in_threadpool(_count, service, body, before, new)
        say_tokens(http.scope["state"], n, 0)
        return {"object": "response.input_tokens", "input_tokens": n}


def _conversation(body: CountBody, kept: KeptResponses, owner: object) -> tuple[Kept | None, Items]:
    """The response that `previous_response_id` names, and the new items."""
    id_ = body.previous_response_id
    before = None if id_ is None else kept.before(id_, owner)
    new = items_of(body.input, lambda id_: kept.item(id_, owner))
    return before, [item | {"id": item.get("id") or new_id("item")} for item in new]


def _items(before: Kept | None, new: Items) -> Items:
    return new if before is None else [*before.items, *before.response["output"], *new]


def _asked(service: Service, body: ResponsesBody, before: Kept | None, new: Items) -> Asked:
    return _renamed(lambda: service.prompts.of_chat(chat_of(body, _items(before, new))))


def _count(service: Service, body: CountBody, before: Kept | None, new: Items) -> int:
    return _renamed(lambda: service.prompts.count_chat(chat_of(body, _items(before, new))))


def _renamed(make: Callable[[], _T]) -> _T:
    """The result of `make`, whose errors name the fields of this API."""
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


def add_kept_responses(app: FastAPI, kept: KeptResponses) -> None:
    """Adds the endpoints to an application."""

    @add(app, "/v1/responses/{response_id}", "GET")
    async def retrieve(response_id: str, http: Request, stream: bool = False) -> dict[str, Any]:
        """A response that was stored."""
        if stream:
            raise ApiError(400, "a stored response comes whole; leave stream out", "stream")
        writer = kept.written_now(response_id, owner_of(http))
        if writer is not None:
            return writer.so_far()
        return kept.get(response_id, owner_of(http)).response

    @add(app, "/v1/responses/{response_id}", "DELETE")
    async def delete(response_id: str, http: Request) -> dict[str, Any]:
        """Deletes a response that was stored."""
        kept.delete(response_id, owner_of(http))
        return {"id": response_id, "object": "response", "deleted": True}

    @add(app, "/v1/responses/{response_id}/input_items", "GET")
    async def input_items(
        response_id: str, http: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The items that a stored response answers, the newest first."""
        items = kept.get(response_id, owner_of(http)).items
        return _page(items if order == "asc" else items[::-1], limit, after)

    @add(app, "/v1/responses/{response_id}/cancel")
    async def cancel(response_id: str, http: Request) -> dict[str, Any]:
        """Ends a response that is being written, as it is; one that has ended stays."""
        writer = kept.written_now(response_id, owner_of(http))
        if writer is None:
            return kept.get(response_id, owner_of(http)).response
        writer.cancel()
        return writer.so_far()


def _page(items: Items, limit: int, after: str | None) -> dict[str, Any]:
    """A list of items behind the one called `after`."""
    if after is not None:
        at = next((i for i, item in enumerate(items) if item.get("id") == after), None)
        if at is None:
            raise ApiError(400, f"after names no item of this response: {after[:80]!r}", "after")
        items = items[at + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
