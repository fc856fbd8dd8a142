"""Who may use a server: keys with their limits and usage, tickets, and paths that need no key."""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from urllib.parse import parse_qs

from starlette.types import Scope

from weft.keys import KeyRing, KeyStore, Limits, UsageWriter, Used
from weft.keys.store import today
from weft.serve.endpoints import find
from weft.serve.log import logger
from weft.serve.options import ServeOptions
from weft.serve.record import Tokens


class Users:
    """The keys of a server, with their limits and usage."""

    def __init__(self, options: ServeOptions) -> None:
        """Raises FormatError if the file of keys or `api_key_file` cannot be used."""
        store = None if options.keys is None else KeyStore(options.keys)
        self.ring = KeyRing(options.api_key, options.api_key_file, store)
        self.limits = Limits(store)
        self._usage: UsageWriter | None = None
        if options.keys is not None:
            self._usage = UsageWriter(KeyStore(options.keys), logger.error)

    async def use(self, key: str, model: str, n_requests: int, tokens: Tokens) -> None:
        """Returns when the usage of a request is on disk, or cannot be written."""
        if self._usage is not None:
            used = Used(key, today(), model, n_requests, *tokens)
            await asyncio.shield(asyncio.wrap_future(self._usage.add(used)))

    def close(self) -> None:
        """Writes all usage and closes the file of keys."""
        if self._usage is not None:
            self._usage.close()
        if self.ring.store is not None:
            self.ring.store.close()


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
    """True for a request that is answered without a key; see `Endpoint.access`. A ticket is used
    up."""
    endpoint = find(scope["path"])
    access = "key" if endpoint is None else endpoint.access
    if access == "open":
        return True
    if access == "key" or scope["method"] not in ("GET", "HEAD"):
        return False
    if access == "files":
        return True
    if access == "browser":
        return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
    query: bytes = scope["query_string"]
    ticket = parse_qs(query.decode("latin-1")).get("ticket", [""])[0]
    return bool(ticket) and TICKETS.take(ticket)
