"""The keys of a server, with their limits and usage."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

from weft.keys import Key, KeyRing, KeyStore, Limits, UsageWriter, Used
from weft.keys.store import today
from weft.serve.log import logger
from weft.serve.options import ServeOptions
from weft.serve.record import Tokens

__all__ = ["Users"]


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

    def admit(self, key: Key, counts: bool) -> AbstractContextManager[None]:
        """A block in which a request of the key runs. Raises LimitError if the request `counts` and
        is beyond a limit."""
        return self.limits.request(key) if counts else nullcontext()

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
