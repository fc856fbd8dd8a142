"""The application of a server with several models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from weft.errors import AbortedError
from weft.llm.cache.memory import available_bytes
from weft.serve.batches import add_batches, add_files
from weft.serve.errors import Json, install_handlers
from weft.serve.many.catalog import Catalog, Entry
from weft.serve.many.dispatch import Dispatch
from weft.serve.many.endpoints import add_fleet
from weft.serve.many.fleet import Fleet
from weft.serve.many.options import ManyOptions
from weft.serve.many.place import Loaded
from weft.serve.many.planned import Recipe
from weft.serve.responses import add_kept_responses
from weft.serve.routes import add_middleware, create_app
from weft.serve.service import Service
from weft.serve.shared import Shared
from weft.version import __version__

__all__ = ["create_many_app", "make_fleet"]


def make_fleet(catalog: Catalog, options: ManyOptions, recipe: Recipe) -> Fleet:
    """The fleet of a server. Without a limit of memory, the models may take what the system has
    now, less what texts may take beside the caches."""
    budget = options.memory
    if budget is None:
        available = available_bytes()
        budget = None if available is None else max(available - recipe.options.cache_ram, 1)
    fleet: Fleet

    def load(entry: Entry) -> Loaded:
        def progress(done: int, total: int) -> None:
            if fleet.closing:
                raise AbortedError("the server is stopping")

        arguments = recipe.arguments(entry) | {"progress": progress}
        service = Service(entry.path, recipe.options_of(entry), **arguments)
        shared = Shared(responses=fleet.responses)
        return Loaded(service, create_app(service, shared, guarded=False))

    fleet = Fleet(catalog, options, recipe.options, budget=budget, plan=recipe.plan, load=load)
    return fleet


def create_many_app(fleet: Fleet, shared: Shared) -> FastAPI:
    """The ASGI application of a fleet, which it closes at its end. `shared` has keys and counts."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(fleet.close)

    app = FastAPI(
        title="weft", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        default_response_class=Json,
    )  # fmt: skip
    app.add_middleware(Dispatch, fleet=fleet)
    add_middleware(app, fleet.options, shared)
    install_handlers(app)
    add_files(app, shared.batches, fleet.options.files_dir_size)
    add_batches(app, shared.batches)
    add_fleet(app, fleet, shared)
    add_kept_responses(app, fleet.responses)
    return app
