"""One model of a server and its state."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import field
from typing import Literal

from starlette.types import ASGIApp

from weft.records import dataclass
from weft.serve.errors import ApiError
from weft.serve.many.catalog import Entry
from weft.serve.memory import PlannedBytes
from weft.serve.service import Service

__all__ = ["Loaded", "Place", "State"]

State = Literal["unloaded", "loading", "loaded", "unloading"]


@dataclass(slots=True, eq=False)
class Loaded:
    """A loaded model: what its requests are handed to."""

    service: Service
    app: ASGIApp


@dataclass(slots=True, eq=False)
class Place:
    """A model and its state. The event loop alone changes it."""

    entry: Entry
    keep_alive: float | None
    """Seconds after the last request until it is unloaded; None: when another needs room."""
    planned: PlannedBytes | None = None
    """What it needs; None: not known yet."""
    state: State = "unloaded"
    loaded: Loaded | None = None
    leases: int = 0
    """Number of requests that are using it."""
    last_used: float = 0.0
    """When its last lease ended, by the clock of the event loop."""
    leaves: bool = False
    """True if it makes room for another model as soon as its requests have ended."""
    told: bool = False
    """True if it leaves because somebody has asked for that."""
    error: ApiError | None = None
    """Why it cannot be loaded; None: nothing is known against it."""
    error_until: float = 0.0
    """When a request may try again."""
    waiting: deque[asyncio.Future[Loaded]] = field(default_factory=deque)
    """Requests that wait for it, in order of arrival."""
    timer: asyncio.TimerHandle | None = None
    n_loads: int = 0

    @property
    def idle(self) -> bool:
        """True if it is loaded and no request uses it."""
        return self.state == "loaded" and not self.leases

    @property
    def wanted(self) -> bool:
        """True if a request waits for it."""
        return any(not future.done() for future in self.waiting)

    def stop_timer(self) -> None:
        """Forgets when it was to be unloaded."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
