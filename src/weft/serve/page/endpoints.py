"""The paths of the page: `/` for browsers, its files below `/page/`, and `/plan`."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from weft.llm import Context
from weft.records import dataclass
from weft.report import cache_data, page_html, plan_data
from weft.serve.access import TICKETS
from weft.serve.endpoints import add
from weft.serve.errors import ApiError
from weft.serve.service import Service

FOLDER = Path(__file__).resolve().parent / "static"
START = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by the suffix of the name. Other files of the folder (licences) are not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    media_type: str
    plain: bytes
    packed: bytes
    """The file packed with gzip."""
    tag: str
    """The `ETag`, which changes with the content."""


@cache
def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its path in the folder, such as `parts/view.js`."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> PageFile:
    plain = path.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return PageFile(TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0), tag)


_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.S)


class PlanPage:
    """The report of a model's plan, made when it is first asked for and kept; with the updates of
    its cache, if that is watched, made each time of a plan that is kept."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._plan: dict[str, Any] | None = None
        self._made: tuple[str, str] | None = None

    def made(self) -> tuple[str, str]:
        """The page and its Content-Security-Policy. Raises ApiError for a server without a
        context."""
        with self._lock:  # two readers do not make it twice
            service = self._service
            part = service.engine_or_none or service.embedder_or_none
            if part is None:
                raise ApiError(503, f"{service.model_id} has no context, so it has no plan")
            updates = cache_data(part.context)
            if self._made is None or updates is not None:
                self._plan = self._plan or self._data(part.context)
                title = f"{service.model_id}, as it is served"
                html = page_html(self._plan | {"cache": updates}, title)
                self._made = html, policy_of(html)
            return self._made

    def _data(self, context: Context) -> dict[str, Any]:
        service = self._service
        # without sliders, for which the page plans twenty other contexts: that would take time
        # from running texts
        return plan_data(
            context,
            kept=service.options.prefixes(),
            beside=[context.plan for context in service.draft_contexts.values()],
            sliders=False,
        )


def policy_of(html: str) -> str:
    """The policy of a page that has all it needs in itself: its own scripts may run, each by its
    hash, and nothing else, nor may it ask for anything."""
    scripts = " ".join(
        _hash(match["text"])
        for match in _SCRIPT.finditer(html)
        if "type=" not in match["attributes"]  # data
    )
    allowed = scripts or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src data: blob:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
"""The page may load files of this server, and images and sounds that a user gave it."""
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, with the tag of what is there
}


def add_page(app: FastAPI, overview: Callable[[], str]) -> None:
    """Adds the page. `overview` is what programs, which do not ask for HTML, get at `/`."""

    @add(app, "/", "GET")
    async def start(http: Request) -> Response:
        """The page for a browser; the server and its paths as plain text for others."""
        if "text/html" in http.headers.get("accept", ""):
            return await _send(http, START)
        headers = {"Vary": "Accept"}
        return Response(overview(), media_type="text/plain; charset=utf-8", headers=headers)

    @add(app, "/page/{path:path}", "GET")
    async def file(path: str, http: Request) -> Response:
        """A file of the page."""
        return await _send(http, path)


async def _send(http: Request, path: str) -> Response:
    file = (await run_in_threadpool(page_files)).get(path)
    if file is None:
        raise ApiError(404, f"the page has no file {path[:80]!r}")
    headers = _SAFE | {
        "Content-Security-Policy": POLICY,
        "ETag": file.tag,
        "Vary": "Accept, Accept-Encoding",
    }
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    content = file.plain
    if "gzip" in http.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = file.packed
    return Response(content, media_type=file.media_type, headers=headers)


def add_plan(app: FastAPI, service: Service) -> None:
    """Adds the plan of the model as a page."""
    page = PlanPage(service)

    @add(app, "/plan/ticket")
    async def ticket() -> dict[str, Any]:
        """A ticket that opens `/plan?ticket=...` once, because a link cannot send a key."""
        return {"ticket": TICKETS.new()}

    @add(app, "/plan", "GET")
    async def plan() -> Response:
        """The model's plan as a page: memory, graph, devices."""
        html, policy = await run_in_threadpool(page.made)
        headers = _SAFE | {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)
