"""The application in front of replicas. It has keys, limits, files and what is kept of responses;
everything else is handed to a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.cluster.prefixes import blocks_of
from weft.cluster.routing import routed_counts
from weft.errors import WeftError
from weft.serve.batches.endpoints import add_batches, add_files
from weft.serve.endpoints import add, nearest
from weft.serve.errors import ApiError, error_response, install_handlers, shaped_error, to_json
from weft.serve.metrics import CONTENT_TYPE, HttpMetrics, Metric, exposition, joined, metric_lines
from weft.serve.page.endpoints import add_page
from weft.serve.replicas.loaded import Call, Part
from weft.serve.replicas.replicas import Replicas
from weft.serve.request_body import LARGE, RequestBody, read_body
from weft.serve.resources import Shared
from weft.serve.respond import sse
from weft.serve.responses.endpoints import add_kept_responses
from weft.serve.responses.store import Kept, KeptResponses
from weft.serve.routes import add_middleware, new_app
from weft.tables import count_text
from weft.version import __version__

_OF_ALL = {("POST", "/lora-adapters"): "name the adapter as `model` of a request instead"}
"""Requests that would change one replica alone, and what to do instead."""
_NOT_SENT = (b"authorization", b"x-api-key", b"cookie", b"content-length", b"transfer-encoding")


def create_front(replicas: Replicas, shared: Shared) -> FastAPI:
    """The ASGI application in front of `replicas`, which it closes at its end. `shared` has keys
    and counts."""

    options = replicas.options
    app = new_app(replicas.close, root=options.root_path)
    app.add_middleware(_HandOn, replicas=replicas, kept=shared.responses)
    add_middleware(app, options, shared, replicas.model_id)
    install_handlers(app)
    add_files(app, shared.batches, options.files_dir_size)
    add_batches(app, shared.batches)
    add_kept_responses(app, shared.responses)
    add_page(app, lambda: _overview(replicas))

    @add(app, "/health", "GET")
    async def health() -> dict[str, Any]:
        """200 while a replica answers requests."""
        try:
            replicas.check_health()
        except WeftError as error:
            raise ApiError(503, str(error)) from None
        return {"status": "ok", "replicas": replicas.n_running}

    @add(app, "/metrics", "GET")
    async def metrics() -> Response:
        """Counters and gauges of all replicas for Prometheus."""
        return Response(await _exposition(replicas, shared.http), media_type=CONTENT_TYPE)

    return app


def _overview(replicas: Replicas) -> str:
    return (
        f"weft {__version__} serves the model {replicas.model_id} by "
        f"{count_text(replicas.n_running, 'replica')}.\n\n"
        "The paths are those of a server without --ray.\n"
    )


class _HandOn:
    """ASGI middleware inside of all others, which hands requests to replicas."""

    def __init__(self, app: ASGIApp, *, replicas: Replicas, kept: KeptResponses) -> None:
        """`app` has the endpoints that the server owns."""
        self._app, self._replicas, self._kept = app, replicas, kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] != "http" or nearest(scope["path"]).owner == "server":
            return await self._app(scope, receive, send)
        path = scope["path"]
        try:
            instead = _OF_ALL.get((scope["method"], path))
            if instead is not None:
                raise ApiError(400, f"{path} would change one replica of several; {instead}")
            request = await read_body(scope, receive)
            if not request.whole:
                return
            before = self._goes_on_with(scope, request)
            fields = _with_conversation(request.fields, before)
            large = len(request.body) > LARGE
            blocks = await run_in_threadpool(blocks_of, fields) if large else blocks_of(fields)
            call = _call(scope, request.body, before)
            parts = self._replicas.parts(call, blocks)
        except (ApiError, WeftError) as error:
            return await error_response(error, path)(scope, receive, send)
        await self._relay(parts, scope, receive, send)

    async def _relay(
        self, parts: AsyncIterator[Part], scope: Scope, receive: Receive, send: Send
    ) -> None:
        left = asyncio.ensure_future(receive())
        media: str | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(parts, None))
                try:
                    await asyncio.wait((coming, left), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        return  # the client has left
                    part = coming.result()
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.wait((coming,))
                if part is None:
                    return
                self._note(scope, part)
                if part.head is not None:
                    media = dict(part.head.headers).get(b"content-type", b"").decode("latin-1")
                    await send({"type": "http.response.start", "status": part.head.status,
                                "headers": list(part.head.headers)})  # fmt: skip
                await send({"type": "http.response.body", "body": part.body,
                            "more_body": not part.last})  # fmt: skip
                if part.last:
                    return
        except ApiError as error:
            if media is None:
                return await error_response(error, scope["path"])(scope, receive, send)
            last = _last_event(error, scope["path"], media)
            if last is None:
                raise  # the connection breaks off, so that nobody takes the part for the whole
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            left.cancel()
            await parts.aclose()  # type: ignore[attr-defined]

    def _note(self, scope: Scope, part: Part) -> None:
        state = scope["state"]
        state["counted"] = part.counted
        for kept in part.kept:
            self._kept.take(kept)
        if part.head is not None:
            scope["route"] = SimpleNamespace(path=part.head.route)
            state["ignored"] = part.head.ignored

    def _goes_on_with(self, scope: Scope, request: RequestBody) -> list[Kept]:
        """The kept responses that a request names. Raises ApiError for one that is not kept."""
        if nearest(scope["path"]).shape != "responses":
            return []
        owner = scope["state"].get("key")
        id_, given = request.fields.get("previous_response_id"), request.fields.get("input")
        found = [self._kept.before(id_, owner)] if isinstance(id_, str) else []
        for item in given if isinstance(given, list) else ():
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                home = self._kept.home_of(item["id"], owner)
                if home is not None and home not in found:
                    found.append(home)
        return found


def _with_conversation(fields: dict[str, Any], before: list[Kept]) -> dict[str, Any]:
    """The fields of a request, with the conversation that it goes on with in front of its input."""
    if not before or not isinstance(fields.get("previous_response_id"), str):
        return fields
    given = fields.get("input")
    new = given if isinstance(given, list) else [{"role": "user", "content": given}]
    return fields | {"input": [*before[0].items, *before[0].response["output"], *new]}


def _call(scope: Scope, body: bytes, kept: list[Kept]) -> Call:
    headers = [(k, v) for k, v in scope["headers"] if k not in _NOT_SENT]
    state = {k: scope["state"][k] for k in ("key", "request_id") if k in scope["state"]}
    return Call(
        scope["method"], scope["path"], scope.get("query_string", b""),
        [*headers, (b"content-length", b"%d" % len(body))], body, state, kept,
    )  # fmt: skip


def _last_event(error: ApiError, path: str, media: str) -> bytes | None:
    """An error as the last part of a stream; None: the answer is not a stream."""
    shown = shaped_error(error, path)
    if media.startswith("application/x-ndjson"):
        return to_json(shown) + b"\n"
    if not media.startswith("text/event-stream"):
        return None
    if nearest(path).shape in ("anthropic", "responses"):  # whose events have names
        return sse({"type": "error"} | shown, "error")
    return sse(shown)


async def _exposition(replicas: Replicas, http: HttpMetrics) -> str:
    """All metrics as text; metrics of replicas have a label `replica` with its name."""
    of_replicas = joined(await replicas.metrics(), "replica")
    return exposition(None, http) + "\n".join(metric_lines(_metrics(replicas))) + "\n" + of_replicas


def _metrics(replicas: Replicas) -> Iterator[Metric]:
    options = replicas.replicas
    yield "replicas", "gauge", "Replicas that answer requests.", replicas.n_running
    yield "replicas_least", "gauge", "Replicas that are always there.", options.least
    yield "replicas_most", "gauge", "Most replicas.", options.most
    yield "replica_requests", "gauge", "Requests without a whole answer.", replicas.n_open
    again = "Requests given to a second replica after the first one died."
    yield "replica_retries_total", "counter", again, replicas.n_retried
    yield "routed_total", "counter", "Requests by why they went to their replica.", routed_counts()
