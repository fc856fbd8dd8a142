"""The options of a server with several models."""

from __future__ import annotations

from weft.errors import ContextError
from weft.records import dataclass

__all__ = ["ManyOptions"]


@dataclass(frozen=True, slots=True)
class ManyOptions:
    """The options beside those of `ServeOptions`. Raises ContextError for a value out of range."""

    memory: int | None = None
    """Most bytes of all loaded models, as planned; None: what the system has at the start."""
    most: int | None = None
    """Most models that are loaded at the same time; None: as many as fit."""
    keep_alive: float | None = None
    """Seconds after its last request until a model is unloaded; None: when another needs room."""
    wait: float = 600.0
    """Most seconds that a request waits for its model to be loaded."""
    max_waiting: int = 256
    """Most requests that wait for models to be loaded; further ones get 503."""

    def __post_init__(self) -> None:
        for name, low in (("memory", 1), ("most", 1), ("keep_alive", 0), ("max_waiting", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ContextError(f"is {value}; it must be {low} or more", argument=name)
        if not 0 < self.wait < 1e6:
            raise ContextError(f"is {self.wait}; it is a number of seconds", argument="wait")
