"""The endpoints about responses that are kept, which need no model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request

from weft.serve.errors import ApiError
from weft.serve.responses.kept import Items, KeptResponses, owner_of

__all__ = ["add_kept_responses"]


def add_kept_responses(app: FastAPI, kept: KeptResponses) -> None:
    """Adds the endpoints to an application."""

    @app.get("/v1/responses/{response_id}")
    @app.get("/responses/{response_id}", include_in_schema=False)
    async def retrieve(response_id: str, http: Request, stream: bool = False) -> dict[str, Any]:
        """A response that was stored."""
        if stream:
            raise ApiError(400, "a stored response comes whole; leave stream out", "stream")
        writer = kept.written_now(response_id, owner_of(http))
        if writer is not None:
            return writer.so_far()
        return kept.get(response_id, owner_of(http)).response

    @app.delete("/v1/responses/{response_id}")
    @app.delete("/responses/{response_id}", include_in_schema=False)
    async def delete(response_id: str, http: Request) -> dict[str, Any]:
        """Deletes a response that was stored."""
        kept.delete(response_id, owner_of(http))
        return {"id": response_id, "object": "response", "deleted": True}

    @app.get("/v1/responses/{response_id}/input_items")
    @app.get("/responses/{response_id}/input_items", include_in_schema=False)
    async def input_items(
        response_id: str, http: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The items that a stored response answers, the newest first."""
        items = kept.get(response_id, owner_of(http)).items
        return _page(items if order == "asc" else items[::-1], limit, after)

    @app.post("/v1/responses/{response_id}/cancel")
    @app.post("/responses/{response_id}/cancel", include_in_schema=False)
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
