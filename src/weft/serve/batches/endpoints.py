"""The endpoints of files and batches."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import uuid4

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import Field
from starlette.datastructures import UploadFile

from weft.serve.batches.runner import BatchRunner, owner_of
from weft.serve.batches.store import ENDED, Batch, ClientFile
from weft.serve.endpoints import BATCHABLE, add
from weft.serve.errors import ApiError
from weft.serve.request_body import read_form
from weft.serve.schema import Body, Metadata

LONGEST_NAME = 255
MOST_FILES_LISTED = 10_000


def require_runner(runner: BatchRunner | None) -> BatchRunner:
    """Raises ApiError if the server keeps no files."""
    if runner is None:
        raise ApiError(
            400, "this server keeps no files; start it with --files-dir DIR", code="unsupported"
        )
    return runner


def sender(http: Request) -> str:
    """The owner of what a request sends and asks for."""
    return owner_of(http.scope["state"].get("key"))


def add_files(app: FastAPI, runner: BatchRunner | None, most_bytes: int) -> None:
    """Adds the endpoints to an application; without a runner they say how to have one.
    `most_bytes` is the most bytes of all files."""

    @add(app, "/v1/files")
    async def upload(http: Request) -> dict[str, Any]:
        """Keeps a file of requests for a batch."""
        store = require_runner(runner).store
        form = await read_form(http)
        try:
            content, purpose = form.get("file"), form.get("purpose")
            if not isinstance(content, UploadFile):
                raise ApiError(400, "file is missing; send it in multipart/form-data", "file")
            if purpose != "batch":
                raise ApiError(400, f"purpose is {purpose!r:.80}; it must be batch", "purpose")
            size = content.size or 0
            if not size:
                raise ApiError(400, "file is empty; it has a request in each line", "file")
            if store.n_bytes + size > most_bytes:
                raise ApiError(
                    413, f"the files would have more than {most_bytes} bytes; delete some",
                    "file", "files_full",
                )  # fmt: skip
            file_id = f"file-{uuid4().hex}"
            store.begin(file_id)
            try:
                await run_in_threadpool(partial(store.save, content.file, file_id))
            except BaseException:
                store.forget(file_id)
                raise
            name = (content.filename or "file.jsonl")[:LONGEST_NAME]
        finally:
            await form.close()
        name = name.encode("utf-8", "replace").decode()
        file = ClientFile(file_id, sender(http), name, "batch", size, int(time.time()))
        store.add_file(file)
        return file.as_json()

    @add(app, "/v1/files", "GET")
    async def listed(
        http: Request,
        purpose: str | None = None,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=MOST_FILES_LISTED)] = MOST_FILES_LISTED,
    ) -> dict[str, Any]:
        """The files, newest first."""
        store = require_runner(runner).store
        files = store.files(sender(http), purpose, after, limit + 1, order == "desc")
        return page([file.as_json() for file in files], limit)

    def find(file_id: str, http: Request) -> ClientFile:
        found = require_runner(runner).store.file(file_id, sender(http))
        if found is None:
            raise ApiError(404, f"there is no file {file_id[:80]}", "file_id", "file_not_found")
        return found

    @add(app, "/v1/files/{file_id}", "GET")
    async def about(file_id: str, http: Request) -> dict[str, Any]:
        """The description of a file."""
        return find(file_id, http).as_json()

    @add(app, "/v1/files/{file_id}/content", "GET")
    async def content(file_id: str, http: Request) -> FileResponse:
        """The content of a file."""
        file = find(file_id, http)
        path = require_runner(runner).store.path(file.id)
        return FileResponse(path, media_type="application/octet-stream")

    @add(app, "/v1/files/{file_id}", "DELETE")
    async def delete(file_id: str, http: Request) -> dict[str, Any]:
        """Removes a file."""
        store = require_runner(runner).store
        file = find(file_id, http)
        reader = store.reader_of(file.id)
        if reader is not None:
            raise ApiError(
                409, f"{file.id} is being read by {reader}; cancel that first", "file_id"
            )
        store.delete_file(file.id)
        return {"id": file.id, "object": "file", "deleted": True}


def page(rows: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list, of which one row more than `limit` was looked for."""
    shown = rows[:limit]
    ids = [row["id"] for row in shown]
    return {
        "object": "list", "data": shown, "has_more": len(rows) > limit,
        "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None,
    }  # fmt: skip


MOST_OPEN = 100
"""Maximum number of open batches of an owner."""
MOST_BATCHES_LISTED = 100


if TYPE_CHECKING:
    BatchUrl = str
else:
    BatchUrl = Literal[BATCHABLE]


class BatchBody(Body):
    """The body of `/v1/batches`."""

    input_file_id: Annotated[str, Field(max_length=80)]
    endpoint: BatchUrl
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


def add_batches(app: FastAPI, runner: BatchRunner | None) -> None:
    """Adds the endpoints to an application; without a runner they say how to have one."""

    @add(app, "/v1/batches")
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

    @add(app, "/v1/batches", "GET")
    async def listed(
        http: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_BATCHES_LISTED)] = 20,
    ) -> dict[str, Any]:
        """The batches, newest first."""
        batches = require_runner(runner)
        rows = batches.store.batches(sender(http), after, limit + 1)
        return page([batches.shown(row) for row in rows], limit)

    @add(app, "/v1/batches/{batch_id}", "GET")
    async def about(batch_id: str, http: Request) -> dict[str, Any]:
        """How far a batch is."""
        batch = find(batch_id, http)
        return require_runner(runner).shown(batch)

    @add(app, "/v1/batches/{batch_id}/cancel")
    async def cancel(batch_id: str, http: Request) -> dict[str, Any]:
        """Cancels a batch; what is done stays."""
        batch = find(batch_id, http)
        if batch.status in ENDED:
            raise ApiError(409, f"{batch.id} is {batch.status} already", "batch_id")
        require_runner(runner).cancel(batch)
        return require_runner(runner).shown(find(batch_id, http))
