"""What an unloaded model leaves: nothing of its application."""

from __future__ import annotations

import weakref

from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from weft.serve.many.loader import give_back_memory


def made() -> weakref.ref[FastAPI]:
    """An application whose endpoint knows it, as those of a model know the model."""
    app = FastAPI()

    @app.get("/title")
    async def title(http: Request, again: int = 1) -> str:
        return app.title * again

    assert TestClient(app).get("/title?again=2").json() == app.title * 2
    return weakref.ref(app)


def test_applications_are_freed() -> None:
    found = [made() for _ in range(3)]
    give_back_memory()
    assert [ref() for ref in found] == [None] * 3
