"""The paths of the page: `/` for browsers, its files below `/page/`, and `/plan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.serve.errors import ApiError
from weft.serve.open_paths import TICKETS
from weft.serve.page.files import START, PageFile, page_files
from weft.serve.page.plan import PlanPage
from weft.serve.service import Service

__all__ = ["POLICY", "add_page", "add_plan"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src data: blob:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
"""What the page may load: files of this server, and images and sounds that a user gave it."""
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, with the tag of what is there
}


def add_page(app: FastAPI, overview: Callable[[], str]) -> None:
    """Adds the page. `overview` is what programs, which do not ask for HTML, get at `/`."""

    @app.get("/", include_in_schema=False)
    async def start(http: Request) -> Response:
        """The page for a browser; the server and its paths as plain text for others."""
        if "text/html" in http.headers.get("accept", ""):
            return await _send(http, START)
        headers = {"Vary": "Accept"}
        return Response(overview(), media_type="text/plain; charset=utf-8", headers=headers)

    @app.get("/page/{path:path}", include_in_schema=False)
    async def file(path: str, http: Request) -> Response:
        """A file of the page."""
        return await _send(http, path)


async def _send(http: Request, path: str) -> Response:
    file = (await run_in_threadpool(page_files)).get(path)
    if file is None:
        raise ApiError(404, f"the page has no file {path[:80]!r}")
    return _answer(http, file)


def _answer(http: Request, file: PageFile) -> Response:
    headers = _SAFE | {
        "Content-Security-Policy": POLICY,
        "ETag": file.tag,
        "Vary": "Accept, Accept-Encoding",
    }
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    packed = "gzip" in http.headers.get("accept-encoding", "")
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(
        file.packed if packed else file.plain, media_type=file.media_type, headers=headers
    )


def add_plan(app: FastAPI, service: Service) -> None:
    """Adds the plan of the model as a page."""
    page = PlanPage(service)

    @app.post("/plan/ticket", include_in_schema=False)
    async def ticket() -> dict[str, Any]:
        """A ticket that opens `/plan?ticket=...` once, because a link cannot send a key."""
        return {"ticket": TICKETS.new()}

    @app.get("/plan")
    async def plan() -> Response:
        """The model's plan as a page: memory, graph, devices."""
        html, policy = await run_in_threadpool(page.made)
        headers = _SAFE | {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)
