"""What a server is started with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import ContextError

__all__ = ["ServeOptions"]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Raises ContextError for a value out of range."""

    host: str = "127.0.0.1"
    """Loopback: only this machine. 0.0.0.0 is every network; use an API key then."""
    port: int = 8080
    """0: any free one."""
    api_key: str | None = None
    """What clients send as `Authorization: Bearer KEY`; None: all may use it."""
    alias: str | None = None
    """Name of the model for clients; None: its file name."""
    parallel: int = 8
    """Texts that are written at the same time; the others wait."""
    max_queue: int = 64
    """Requests that may wait; the next one gets 429."""
    max_body: int = 4 << 20
    """Bytes of a request's body; larger ones get 413."""
    max_connections: int = 256
    """Connections at the same time; fewer where the process may open fewer files."""
    head_timeout: float = 10.0
    """Seconds for the head of a request; also how long a connection may be idle."""
    body_timeout: float = 60.0
    """Seconds for the body of a request; a client that stops reading its answer has as many."""
    allow_hosts: tuple[str, ...] = ()
    """Names that requests may give as Host where there is no key, beside those of this machine."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may read answers in a browser; "*": all."""
    strict: bool = False
    """Fields of requests that are not known get 400, instead of a header that names them."""
    log_level: str = "info"
    """What is logged: debug, info, warning or error."""
    max_tokens: int | None = None
    """Most tokens that a request may ask for; more gets 400. None: what the context holds."""
    max_choices: int = 16
    """Most texts of one request (prompts times `n`)."""
    grace: float = 30.0
    """Seconds that running requests have to finish when the server is told to stop."""

    def __post_init__(self) -> None:
        lows = {"port": 0, "parallel": 1, "max_queue": 0, "max_body": 1, "max_choices": 1,
                "max_connections": 1}  # fmt: skip
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ContextError(f"{name} is {getattr(self, name)}; it must be {low} or more")
        if self.port > 65535:
            raise ContextError(f"port is {self.port}; ports end at 65535")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ContextError(f"max_tokens is {self.max_tokens}; it must be 1 or more")
        if not 0 <= self.grace < 1e6:
            raise ContextError(f"grace is {self.grace}; it is a number of seconds")
        for name in ("head_timeout", "body_timeout"):
            if not 0 < getattr(self, name) < 1e6:
                raise ContextError(f"{name} is {getattr(self, name)}; it is a number of seconds")
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ContextError(
                    f"{origin!r} is no origin; write scheme, name and port as a browser sends "
                    "them, e.g. https://example.com:8443, or *"
                )
        if self.api_key == "":
            raise ContextError("the API key is empty; leave it out to let everybody in")
