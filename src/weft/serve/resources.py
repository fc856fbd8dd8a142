"""The resources of a server besides its models: keys, counts, traces, files, certificate, log."""

from __future__ import annotations

import asyncio
import signal
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from starlette.types import ASGIApp

from weft.errors import ContextError, WeftError
from weft.serve.access import Users
from weft.serve.batches.runner import BatchRunner, Room
from weft.serve.batches.store import FileStore
from weft.serve.log import logger, start_log
from weft.serve.metrics import HttpMetrics
from weft.serve.options import ServeOptions
from weft.serve.responses.store import KeptResponses
from weft.serve.traces import Traces


class Tls:
    """The settings that new connections use: TLS 1.2 or newer, HTTP/1.1."""

    def __init__(self, key: Path, certificate: Path) -> None:
        """Reads both files, in PEM format. Raises ContextError if that fails or they do not belong
        together."""
        self._key, self._certificate = key, certificate
        self.context = self._read()
        """The settings of new connections."""

    def reload(self) -> None:
        """Reads the files again. Open connections keep what they have. Raises ContextError if that
        fails; new connections get the old certificate then."""
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        for flag, path in (("--ssl-key-file", self._key), ("--ssl-cert-file", self._certificate)):
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise ContextError(f"{flag} {path}: {error.strerror or error}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # a key with a password is refused: nobody is there to type it
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (ssl.SSLError, _PasswordError) as error:
            why = str(error) if isinstance(error, _PasswordError) else error.reason or str(error)
            raise ContextError(
                f"--ssl-cert-file {self._certificate} with --ssl-key-file {self._key}: "
                f"{why.lower().replace('_', ' ')}; both are PEM files, of one another"
            ) from None
        return context


class _PasswordError(Exception):
    pass


def _no_password() -> str:
    raise _PasswordError("the key has a password; write it without one")


@dataclass(slots=True)
class Shared:
    """The parts of a server that its applications share."""

    users: Users | None = None
    """The keys; None: everybody may use the server."""
    http: HttpMetrics = field(default_factory=HttpMetrics)
    traces: Traces | None = None
    batches: BatchRunner | None = None
    """The runner of batches; None: the server keeps no files."""
    responses: KeptResponses = field(default_factory=KeptResponses)
    """The kept responses, which outlive the models that wrote them."""

    @staticmethod
    def of(options: ServeOptions) -> Shared:
        """Raises FormatError for files that cannot be used, and WeftError if an extra is
        missing."""
        traces = Traces() if options.otel else None
        users = Users(options) if options.needs_key else None
        batches = None
        if options.files_dir is not None:
            store = FileStore(options.files_dir)
            batches = BatchRunner(store, users, most_bytes=options.files_dir_size)
        return Shared(users=users, traces=traces, batches=batches)

    def reload(self) -> None:
        """Reads the keys again. Raises FormatError if that fails; they are as before then."""
        if self.users is not None:
            self.users.ring.reload()

    def close(self) -> None:
        """Writes usage, sends traces, and lets others use the folder of files."""
        if self.users is not None:
            self.users.close()
        if self.traces is not None:
            self.traces.close()
        if self.batches is not None:
            self.batches.store.close()


class Resources:
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

    def __exit__(self, *error: object) -> None:
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
