"""The endpoints of batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from pydantic import AfterValidator, Field

from weft.serve.batches.files import page, require_runner, sender
from weft.serve.batches.runner import BatchRunner
from weft.serve.batches.store import ENDED, Batch
from weft.serve.errors import ApiError
from weft.serve.schema import Body

__all__ = ["add_batches"]

MOST_OPEN = 100
"""Most batches of an owner that have not ended."""
MOST_LISTED = 100


def _is_metadata(values: dict[str, Any]) -> dict[str, Any]:
    if len(values) > 16:
        raise ValueError(f"metadata has {len(values)} keys; it may have 16")
    for key, value in values.items():
        if not isinstance(value, str) or len(value) > 512 or len(key) > 64:
            raise ValueError("metadata has keys of 64 characters and texts of 512 at most")
    return values


class BatchBody(Body):
    """The body of `/v1/batches`."""

    input_file_id: Annotated[str, Field(max_length=80)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[str, Any], AfterValidator(_is_metadata)] | None = None


def add_batches(app: FastAPI, runner: BatchRunner | None) -> None:
    """Adds the endpoints to an application; without a runner they say how to have one."""

    @app.post("/v1/batches")
    @app.post("/batches", include_in_schema=False)
    async def create(body: BatchBody, http: Request) -> dict[str, Any]:
        """Starts a batch over a file."""
        batches, owner = require_runner(runner), sender(http)
        file = batches.store.file(body.input_file_id, owner)
        if file is None or file.purpose != "batch":
            raise ApiError(
                400, f"input_file_id {body.input_file_id!r} is no file of purpose batch",
                "input_file_id", "file_not_found",
            )  # fmt: skip
        if batches.store.n_open(owner) >= MOST_OPEN:
            raise ApiError(
                429, f"{MOST_OPEN} batches have not ended; wait for one, or cancel it",
                code="too_many_batches", retry_after=60,
            )  # fmt: skip
        batch = batches.store.add_batch(owner, body.model_dump(), body.metadata)
        batches.wake()
        return batch.as_json()

    def find(batch_id: str, http: Request) -> Batch:
        found = require_runner(runner).store.batch(batch_id, sender(http))
        if found is None:
            raise ApiError(404, f"there is no batch {batch_id[:80]}", "batch_id", "not_found")
        return found

    @app.get("/v1/batches")
    @app.get("/batches", include_in_schema=False)
    async def listed(
        http: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
    ) -> dict[str, Any]:
        """The batches, newest first."""
        batches = require_runner(runner)
        rows = batches.store.batches(sender(http), after, limit + 1)
        return page([batches.shown(row) for row in rows], limit)

    @app.get("/v1/batches/{batch_id}")
    @app.get("/batches/{batch_id}", include_in_schema=False)
    async def about(batch_id: str, http: Request) -> dict[str, Any]:
        """How far a batch is."""
        batch = find(batch_id, http)
        return require_runner(runner).shown(batch)

    @app.post("/v1/batches/{batch_id}/cancel")
    @app.post("/batches/{batch_id}/cancel", include_in_schema=False)
    async def cancel(batch_id: str, http: Request) -> dict[str, Any]:
        """Cancels a batch; what is done stays."""
        batch = find(batch_id, http)
        if batch.status in ENDED:
            raise ApiError(409, f"{batch.id} is {batch.status} already", "batch_id")
        require_runner(runner).cancel(batch)
        return require_runner(runner).shown(find(batch_id, http))
