"""The application: its middleware, its endpoints, and those about the server and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.middleware.cors import CORSMiddleware

from weft.serve.anthropic.endpoints import add_anthropic
from weft.serve.batches.endpoints import add_batches, add_files
from weft.serve.endpoints import add, nearest
from weft.serve.errors import ApiError, Json, install_handlers
from weft.serve.guard import Guard
from weft.serve.llama.endpoints import add_llama
from weft.serve.metrics import CONTENT_TYPE, exposition
from weft.serve.middleware import Below, HeadAsGet, Hosts, Watch
from weft.serve.model_card import model_fields
from weft.serve.ollama.endpoints import add_ollama
from weft.serve.openai.endpoints import add_openai
from weft.serve.openai.speech import add_speech
from weft.serve.openai.transcriptions import add_transcriptions
from weft.serve.options import ServeOptions
from weft.serve.page.endpoints import add_page, add_plan
from weft.serve.resources import Shared
from weft.serve.responses.endpoints import add_kept_responses, add_responses
from weft.serve.schema import AdaptersBody
from weft.serve.service import Service
from weft.version import __version__


def create_app(service: Service, shared: Shared | None = None, *, guarded: bool = True) -> FastAPI:
    """The ASGI application of a loaded model; it closes the service when it ends. `shared` is what
    it has in common with others (None: the parts that the options name); who gives it closes it.
    Without `guarded`, another application around it checks keys, hosts and sizes.
    Raises the errors of `Shared.of`."""
    own = Shared.of(service.options) if shared is None else None
    shared = own or shared or Shared()
    options = service.options
    closes = [service.close, *([] if own is None else [own.close])]
    app = new_app(*closes, root=options.root_path)
    if guarded:
        add_middleware(app, options, shared, service.model_id)
    install_handlers(app)
    add_openai(app, service)
    add_responses(app, service, shared.responses)
    add_anthropic(app, service)
    add_transcriptions(app, service)
    add_speech(app, service)
    add_llama(app, service)
    add_ollama(app, service)
    if guarded:
        add_kept_responses(app, shared.responses)
        add_files(app, shared.batches, options.files_dir_size)
        add_batches(app, shared.batches)
    add_plan(app, service)
    _add_about(app, service, shared)
    add_page(app, partial(_overview, app, service))
    return app


def new_app(*closes: Callable[[], object], root: str = "") -> FastAPI:
    """An application that calls these functions at its end, below the path `root`. FastAPI's pages
    are off, because they load scripts from other sites."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for close in closes:
            await run_in_threadpool(close)

    return FastAPI(
        title="weft", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        default_response_class=Json, servers=[{"url": root}] if root else None,
        redirect_slashes=not root,  # they would lead to paths without `root`
    )  # fmt: skip


def add_middleware(app: FastAPI, options: ServeOptions, shared: Shared, model: str = "") -> None:
    """Adds what looks at every request first: the log, hosts, origins, keys and sizes. `model` is
    the name for which usage counts where requests do not choose one."""
    app.add_middleware(HeadAsGet)
    # the form around a file has a few bytes, too
    larger = dict.fromkeys(nearest("/v1/files").paths, options.max_file + (1 << 16))
    app.add_middleware(
        Guard, max_body=options.max_body, users=shared.users, model=model,
        larger={} if options.files_dir is None else larger,
    )  # fmt: skip
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=options.cors_origins, allow_methods=["*"],
            allow_headers=["*"], expose_headers=["X-Weft-Ignored", "X-Request-Id", "Retry-After"],
        )  # fmt: skip
    if not options.needs_key:
        names = (options.host, *options.allow_hosts)
        app.add_middleware(Hosts, names=names, origins=options.cors_origins)
    app.add_middleware(Watch, http=shared.http, traces=shared.traces, model=model)
    if options.root_path:
        app.add_middleware(Below, root=options.root_path)


def _add_about(app: FastAPI, service: Service, shared: Shared) -> None:
    about = {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "weft",
        "max_model_len": service.n_ctx,  # as vLLM has it
        "meta": service.about_text(),
        **service.vectors.about_model(),
        **model_fields(service.model_id, service.created),
    }

    def all_models() -> list[dict[str, Any]]:
        names = service.aliases
        aliases = [about | {"id": name, "display_name": name} for name in names]
        return [about, *aliases, *service.adapters.as_models(about)]

    @add(app, "/v1/models", "GET")
    async def models() -> dict[str, Any]:
        """The model that is served, with its control vectors, and its adapters, as a list."""
        return {"object": "list", "data": all_models()}

    @add(app, "/v1/models/{name}", "GET")
    async def model(name: str) -> dict[str, Any]:
        """The model or an adapter, by its name."""
        for one in all_models():
            if one["id"] == name:
                return one
        raise ApiError(
            404, f"there is no model {name!r}; this is {service.model_id}", "model",
            "model_not_found",
        )  # fmt: skip

    @add(app, "/lora-adapters", "GET")
    async def adapters() -> list[dict[str, Any]]:
        """The adapters, with the scales of requests that name none."""
        return service.adapters.listed()

    @add(app, "/lora-adapters")
    async def set_adapters(body: AdaptersBody) -> dict[str, bool]:
        """Sets these scales; adapters that are left out have scale 0."""
        service.adapters.set(body.lora)
        return {"success": True}

    @add(app, "/health", "GET")
    @add(app, "/v1/health", "GET")
    async def health() -> dict[str, str]:
        """200 while requests are served, with a note if a device has failed."""
        service.check_health()
        note = service.fell_back
        return {"status": "ok"} | ({"note": note} if note else {})

    @add(app, "/metrics", "GET")
    async def metrics() -> Response:
        """Counters and gauges for Prometheus."""
        text = exposition(service.engine_or_none, shared.http)
        return Response(text, media_type=CONTENT_TYPE)


def _refused(service: Service) -> Iterator[str]:
    """The beginnings of paths that this model or this server cannot answer."""
    if service.engine_or_none is None:
        yield from ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/messages", "/completion")
        yield from ("/infill", "/apply-template", "/api/chat", "/api/generate", "/slots")
    if service.embedder_or_none is None:
        yield from ("/v1/embeddings", "/embedding", "/api/embed")
    if not service.ranks:
        yield "/v1/rerank"
    if not service.card.infills:
        yield "/infill"
    if not service.modalities["audio"]:
        yield "/v1/audio"
    if service.options.files_dir is None:
        yield from ("/v1/files", "/v1/batches")


def _overview(app: FastAPI, service: Service) -> str:
    lines = [f"weft {__version__} serves the model {service.model_id}.", ""]
    refused = tuple(_refused(service))
    rows = [
        (method.upper(), path, about["description"].split("\n")[0])
        for path, methods in app.openapi()["paths"].items()
        for method, about in methods.items()
        if not path.startswith(refused)
    ]
    width = max(len(path) for _, path, _ in rows)
    lines += [f"{method:6} {path:{width}} {what}" for method, path, what in rows]
    note = "Paths outside /api, except /plan, are there with /v1 and without."
    return "\n".join([*lines, "", note, ""])
