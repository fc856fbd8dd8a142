"""What a server has besides its models: keys, certificate and log, which SIGHUP reads again."""

from __future__ import annotations

import asyncio
import signal
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp

from weft.errors import WeftError
from weft.serve.batches.room import Room
from weft.serve.log import logger, start_log
from weft.serve.options import ServeOptions
from weft.serve.shared import Shared
from weft.serve.tls import Tls

__all__ = ["House"]


class House:
    """Opened before a model is loaded, so that mistakes are told at once, and closed after the last
    request."""

    def __init__(self, options: ServeOptions) -> None:
        """Raises ContextError or FormatError for files that cannot be used, and WeftError for an
        extra that is missing."""
        self._options = options
        start_log(options.log_level, options.log_format, options.log_file)
        self._tls: Tls | None = None
        if options.ssl_key_file is not None and options.ssl_cert_file is not None:
            self._tls = Tls(options.ssl_key_file, options.ssl_cert_file)
        self._reloads = options.needs_key or self._tls is not None
        self.shared = Shared.of(options)
        self._others: list[tuple[str, Callable[[], object]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shared.close()

    def start(self, app: ASGIApp, n_waiting: Callable[[], int]) -> None:
        """Starts what runs beside requests: batches, answered by `app`, and the signal for
        `reload`. `n_waiting` says how many texts wait for a slot."""
        batches, options = self.shared.batches, self._options
        if batches is not None:
            most = options.batch_parallel or max(1, options.parallel // 2)
            room = Room(options.parallel, most, self.shared.http, n_waiting)
            batches.start(app, room, most)
        self.reload_at_signal()

    async def stop(self) -> None:
        """Stops batches; they go on after a restart."""
        if self.shared.batches is not None:
            await self.shared.batches.stop()

    def tls_context(self) -> ssl.SSLContext | None:
        """The settings of TLS for the next connection; None: plain HTTP."""
        return None if self._tls is None else self._tls.context

    def also_reload(self, what: str, reload: Callable[[], object]) -> None:
        """Has `reload` called, too, when keys and certificate are read again. `what` is its name in
        the log."""
        self._others.append((what, reload))
        self._reloads = True

    def reload(self) -> None:
        """Reads keys and certificate again. What cannot be read stays as it was, and is logged."""
        parts: list[tuple[str, Callable[[], object]]] = [("keys", self.shared.reload)]
        if self._tls is not None:
            parts.append(("certificates", self._tls.reload))
        for what, read in (*parts, *self._others):
            try:
                read()
            except WeftError as error:
                logger.error("%s: as before, because they cannot be read again: %s", what, error)
            else:
                logger.info("%s: read again", what)

    def reload_at_signal(self) -> None:
        """Lets SIGHUP call `reload`, if there is anything to read again; else it ends the process
        as ever. Called in the event loop; does nothing outside the main thread and on Windows."""
        main = threading.current_thread() is threading.main_thread()
        if self._reloads and main and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
