"""A server in a thread of this process: `weft serve` itself, on a socket, without the seconds that
a new process takes to start. Signals, limits of a process and its end need one (`server.py`)."""

from __future__ import annotations

import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from tests.serve.server import DEMO, ROOT, SAMPLE, Reached, words_of

__all__ = ["DEMO", "ROOT", "SAMPLE", "Server"]


class _Written(io.TextIOBase):
    """Takes what the server writes to stderr, and notes whole lines."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._server.take_line(line + "\n")
        return len(text)


class Server(Reached):
    """Started by `with`; stopped, and its exit code checked, at the end."""

    def __init__(
        self,
        model: Path,
        *options: str | int | Path,
        key: str | None = None,
        sent_key: str | None = None,
        environ: dict[str, str] | None = None,
        several: bool = False,
    ) -> None:
        """`key` is the server's only key, `sent_key` one of several that requests are sent with.
        With `several`, `model` is a folder of models."""
        super().__init__(sent_key or key)
        self._words = words_of(model, options, several)
        self._environ = {"WEFT_API_KEY": key or ""} | (environ or {})
        self._code: int | None = None
        self._running: Any = None
        self._thread = threading.Thread(target=self._run, name="weft serve", daemon=True)

    @classmethod
    def many(cls, folder: Path, *options: str | int | Path) -> Server:
        """A server of all models of a folder."""
        return cls(folder, *options, several=True)

    def _run(self) -> None:
        from weft.cli.app import app
        from weft.cli.mistakes import exit_code

        try:
            self._code = exit_code(lambda: app(self._words, "weft", standalone_mode=False))
        finally:
            self.take_line("")

    def __enter__(self) -> Server:
        self._logs = ExitStack()
        self._logs.enter_context(_logs_as_before())
        try:
            with self._started():
                self._thread.start()
                self.reach()
        except BaseException:
            self._logs.close()
            raise
        return self

    @contextmanager
    def _started(self) -> Iterator[None]:
        """What belongs to a process, for the time in which the server starts; nothing else runs in
        this one meanwhile."""
        from weft.cli import mistakes, serve
        from weft.serve import run

        started = self

        class Known(run._Server):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                started._running = self

        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("default")
            for what, name, value in (
                (warnings, "showwarning", mistakes.show_warning),
                (run, "_Server", Known),
                (serve, "calm_collector", lambda: None),  # other tests go on in this process
            ):
                stack.enter_context(mock.patch.object(what, name, value))
            stack.enter_context(mock.patch("sys.stderr", _Written(self)))
            environ = dict(self._environ)
            stack.enter_context(mock.patch.dict(os.environ, environ))
            if not environ["WEFT_API_KEY"]:
                del os.environ["WEFT_API_KEY"]
            yield

    def stop(self) -> None:
        """Asks it to end, as a first signal does."""
        self._running.should_exit = True

    def wait(self, seconds: float = 60) -> int:
        """Waits for its end; returns the exit code."""
        self._thread.join(seconds)
        assert self._code is not None, "the server still runs"
        return self._code

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        self.stop()
        try:
            assert self.wait() == 0
        finally:
            self._logs.close()
        self.check_lines()


@contextmanager
def _logs_as_before() -> Iterator[None]:
    """The logs, which servers set, are those of before again at the end."""
    from weft.serve.log import _LOGS

    logs = [logging.getLogger(name) for name in _LOGS]
    before = [(list(log.handlers), log.propagate, log.level) for log in logs]
    yield
    for log, (handlers, propagate, level) in zip(logs, before, strict=True):
        log.handlers[:] = handlers
        log.propagate = propagate
        log.setLevel(level)
