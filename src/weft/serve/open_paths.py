"""What needs no key beside what programs that watch the server ask for: the page for browsers,
which asks its user for the key, and links that carry a ticket instead of a key."""

from __future__ import annotations

import secrets
from time import monotonic
from urllib.parse import parse_qs

from starlette.types import Scope

__all__ = ["TICKETS", "Tickets", "opens"]

_SECONDS = 60.0
_MOST = 64


class Tickets:
    """Words that open a page once, for a minute. The last 64 are known."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def new(self) -> str:
        """A new ticket."""
        now = monotonic()
        self._ends = {t: end for t, end in self._ends.items() if end > now}
        while len(self._ends) >= _MOST:
            del self._ends[next(iter(self._ends))]
        ticket = secrets.token_urlsafe(24)
        self._ends[ticket] = now + _SECONDS
        return ticket

    def take(self, ticket: str) -> bool:
        """True if the ticket is good; it is not good again."""
        return self._ends.pop(ticket, 0.0) > monotonic()


TICKETS = Tickets()
"""The tickets of this process, since a key opens all of its models."""


def opens(scope: Scope) -> bool:
    """True for a request that is answered without a key: for the page and its files, and for the
    plan with a ticket, which is used up."""
    path: str = scope["path"]
    if scope["method"] not in ("GET", "HEAD"):
        return False
    if path.startswith("/page/"):
        return True
    if path == "/":
        return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
    if path != "/plan":
        return False
    query: bytes = scope["query_string"]
    ticket = parse_qs(query.decode("latin-1")).get("ticket", [""])[0]
    return bool(ticket) and TICKETS.take(ticket)
