"""The application of a server with several models."""

from __future__ import annotations

from fastapi import FastAPI

from weft.errors import AbortedError
from weft.free_memory import available_bytes
from weft.serve.batches.endpoints import add_batches, add_files
from weft.serve.errors import install_handlers
from weft.serve.many.catalog import Catalog, Entry
from weft.serve.many.dispatch import Dispatch
from weft.serve.many.endpoints import add_fleet
from weft.serve.many.fleet import Fleet, ManyOptions
from weft.serve.many.loader import Loaded
from weft.serve.many.planned import Recipe
from weft.serve.resources import Shared
from weft.serve.responses.endpoints import add_kept_responses
from weft.serve.routes import add_middleware, create_app, new_app
from weft.serve.service import Service


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
            if fleet.loader.closing:
                raise AbortedError("the server is stopping")

        arguments = recipe.arguments(entry) | {"progress": progress}
        service = Service(entry.path, recipe.options_of(entry), **arguments)
        shared = Shared(responses=fleet.responses)
        return Loaded(service, create_app(service, shared, guarded=False))

    fleet = Fleet(catalog, options, recipe.options, budget=budget, plan=recipe.plan, load=load)
    return fleet


def create_many_app(fleet: Fleet, shared: Shared) -> FastAPI:
    """The ASGI application of a fleet, which it closes at its end. `shared` has keys and counts."""

    app = new_app(fleet.close, root=fleet.options.root_path)
    app.add_middleware(Dispatch, fleet=fleet)
    add_middleware(app, fleet.options, shared)
    install_handlers(app)
    add_files(app, shared.batches, fleet.options.files_dir_size)
    add_batches(app, shared.batches)
    add_fleet(app, fleet, shared)
    add_kept_responses(app, fleet.responses)
    return app
