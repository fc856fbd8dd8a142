"""The endpoints about all models: lists, loading and unloading, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from weft.errors import WeftError
from weft.serve.endpoints import add
from weft.serve.errors import ApiError, without_folders
from weft.serve.internal import get
from weft.serve.many.fleet import Fleet
from weft.serve.many.loader import Place
from weft.serve.many.planned import card_of
from weft.serve.metrics import CONTENT_TYPE, Metric, exposition, joined, metric_lines
from weft.serve.model_card import ModelCard, model_fields
from weft.serve.ollama.endpoints import OllamaRoute, add_library, expires, loaded_row
from weft.serve.page.endpoints import add_page
from weft.serve.resources import Shared
from weft.serve.schema import Body
from weft.version import __version__


class ModelBody(Body):
    """The body of `/models/load` and `/models/unload`."""

    model: str


def add_fleet(app: FastAPI, fleet: Fleet, shared: Shared) -> None:
    """Adds the endpoints to an application, whose counts of requests `shared` has."""
    cards = _Cards(fleet)
    _add_models(app, fleet)
    _add_state(app, fleet, shared)
    _add_ollama(app, fleet, cards)


class _Cards:
    """The cards of models, read once for each version of a file."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, tuple[float, ModelCard]] = {}

    def of(self, place: Place) -> ModelCard:
        """The card of a model. Raises WeftError for a broken file."""
        entry = place.entry
        time = _time_of(entry.path)
        known = self._known.get(entry.name)
        if known is None or known[0] != time:
            known = self._known[entry.name] = (time, card_of(entry))
        return known[1]


def _add_models(app: FastAPI, fleet: Fleet) -> None:
    @add(app, "/v1/models", "GET")
    async def models() -> dict[str, Any]:
        """All models, with their states and the bytes that they need."""
        return {"object": "list", "data": [_about(p) for p in fleet.places.values()]}

    @add(app, "/models/load")
    async def load(body: ModelBody) -> dict[str, bool]:
        """Loads a model."""
        place = fleet.place_of(body.model)
        place.error = None
        async with fleet.lease(place):
            return {"success": True}

    @add(app, "/models/unload")
    async def unload(body: ModelBody) -> dict[str, bool]:
        """Unloads a model as soon as its requests have ended."""
        place = fleet.place_of(body.model)
        if not await fleet.unload(place):
            raise ApiError(400, f"{place.entry.name} is not loaded", "model")
        return {"success": True}

    @add(app, "/v1/models/{name:path}", "GET")
    async def model(name: str) -> dict[str, Any]:
        """One model, with its state and the bytes that it needs."""
        place = fleet.place_of(name)
        try:
            await fleet.loader.plan(place)
        except (WeftError, ApiError) as error:
            said = without_folders(str(error), place.entry.path.parent)
            return _about(place) | {"error": said}
        return _about(place)


def _about(place: Place) -> dict[str, Any]:
    entry, planned = place.entry, place.planned
    status: dict[str, Any] = {"value": place.state}
    if place.error is not None and place.state == "unloaded":
        status |= {"failed": True, "error": str(place.error)}
    about: dict[str, Any] = {
        "id": entry.name,
        "object": "model",
        "created": int(_time_of(entry.path)),
        "owned_by": "weft",
        "aliases": list(entry.settings.aliases),
        "loaded": place.state == "loaded",
        "status": status,
        "requests": place.leases,
        "planned_bytes": None if planned is None else planned.total,
        **model_fields(entry.name, int(_time_of(entry.path))),
    }
    if place.loaded is not None and place.state == "loaded":
        about["meta"] = place.loaded.service.about_text()
    if planned is not None:
        about["planned"] = {
            "weights": planned.weights, "cache": planned.cache, "compute": planned.compute,
        }  # fmt: skip
    return about


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _add_state(app: FastAPI, fleet: Fleet, shared: Shared) -> None:
    def overview() -> str:
        lines = [f"weft {__version__} serves {len(fleet.places)} models:", ""]
        lines += [f"{place.state:10} {name}" for name, place in fleet.places.items()]
        return "\n".join([*lines, "", "Requests name one as their model.", ""])

    add_page(app, overview)

    @add(app, "/health", "GET")
    async def health() -> dict[str, Any]:
        """200 while requests are served."""
        if fleet.loader.closing:
            raise ApiError(503, "the server is stopping; try another one")
        places = fleet.places.values()
        loaded = [p for p in places if p.loaded is not None and p.state == "loaded"]
        notes = {
            p.entry.name: p.loaded.service.fell_back
            for p in loaded
            if p.loaded is not None and p.loaded.service.fell_back
        }
        about = {"status": "ok", "models_loaded": len(loaded), "models": len(places)}
        return about | ({"notes": notes} if notes else {})

    @add(app, "/metrics", "GET")
    async def metrics(http: Request) -> Response:
        """Counters and gauges of all loaded models for Prometheus."""
        wanted = http.query_params.get("model")
        places = list(fleet.places.values()) if wanted is None else [fleet.place_of(wanted)]
        texts = {}
        for place in places:
            if place.loaded is not None and place.state == "loaded":
                texts[place.entry.name] = await get(place.loaded.app, "/metrics")
        own = "\n".join(metric_lines(_metrics(fleet)))
        text = f"{own}\n{exposition(None, shared.http)}{joined(texts)}"
        return Response(text, media_type=CONTENT_TYPE)


def _add_ollama(app: FastAPI, fleet: Fleet, cards: _Cards) -> None:
    router = APIRouter(route_class=OllamaRoute)

    def readable() -> list[tuple[str, ModelCard]]:
        found = []
        for place in fleet.places.values():
            with suppress(WeftError, OSError):
                card = cards.of(place)
                names = (place.entry.name, *place.entry.settings.aliases)
                found += [(name, card) for name in names]
        return found

    def loaded() -> list[dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        rows = []
        for place in fleet.places.values():
            if place.loaded is not None and place.state == "loaded":
                left = None if place.keep_alive is None else place.keep_alive
                if place.timer is not None and not place.timer.cancelled():
                    left = max(place.timer.when() - now, 0.0)
                rows.append(loaded_row(place.loaded.service, expires(left)))
        return rows

    add_library(router, readable, lambda name: cards.of(fleet.place_of(name)), loaded)
    app.include_router(router)


def _metrics(fleet: Fleet) -> Iterator[Metric]:
    loaded = [p for p in fleet.places.values() if p.state == "loaded"]
    yield "models", "gauge", "Models that can be loaded.", len(fleet.places)
    yield "models_loaded", "gauge", "Models that are loaded.", len(loaded)
    yield "models_bytes", "gauge", "Planned bytes of loaded models.", fleet.loader.nbytes
    if fleet.loader.budget is not None:
        yield "models_bytes_limit", "gauge", "Most bytes of loaded models.", fleet.loader.budget
    yield "models_waiting", "gauge", "Requests that wait for a model.", fleet.n_waiting
    yield "model_loads_total", "counter", "Models loaded.", fleet.loader.n_loads
    yield "model_unloads_total", "counter", "Models unloaded.", fleet.loader.n_unloads
