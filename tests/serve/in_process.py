"""A server in a thread of this process: the command `weft serve` itself, on a socket, without the
seconds that a new process takes to start. Tests of signals, of limits of a process and of its end
need a process (`server.py`)."""

from __future__ import annotations

import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.serve.server import DEMO, ROOT, SAMPLE, Reached
from weft.cli import mistakes, serve
from weft.cli.app import app
from weft.cli.mistakes import exit_code
from weft.serve import run
from weft.serve.log import _LOGS

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
    """A thread of this process."""

    def __init__(self, *words: str | int | Path, **how: Any) -> None:
        super().__init__(*words, **how)  # type: ignore[arg-type]
        self._code: int | None = None
        self._running: Any = None
        self._thread = threading.Thread(target=self._run, name="weft serve", daemon=True)

    def _run(self) -> None:
        try:
            self._code = exit_code(lambda: app(self.words, "weft", standalone_mode=False))
        finally:
            self.take_line("")

    def start(self) -> None:
        """Starts the thread, and waits until the server listens."""
        _logs.expect()
        try:
            with self._started():
                self._thread.start()
                self.reach()
            _logs.add(self)
        except BaseException:
            _logs.remove(self)
            raise

    @contextmanager
    def _started(self) -> Iterator[None]:
        """What belongs to a process, for the time in which the server starts; nothing else runs in
        this one meanwhile."""
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
            stack.enter_context(mock.patch.dict(os.environ, self.environ))
            if not self.environ.get("WEFT_API_KEY"):
                os.environ.pop("WEFT_API_KEY", None)
            yield

    def stop(self) -> None:
        """Asks it to end, as a first signal does."""
        self._running.should_exit = True

    def wait(self, seconds: float = 60) -> int:
        """Waits for its end; returns the exit code."""
        self._thread.join(seconds)
        assert self._code is not None, "the server still runs"
        return self._code

    def end(self) -> None:
        """Stops the server, and checks its exit code."""
        self.stop()
        try:
            assert self.wait() == 0
        finally:
            _logs.remove(self)


class _Logs:
    """The logs of this process, which every server that starts takes for itself: the servers that
    run share them, and what was there before the first comes back after the last."""

    def __init__(self) -> None:
        self._states: dict[Server | None, dict[logging.Logger, _State]] = {}

    def expect(self) -> None:
        """Notes what was there before a server."""
        if not self._states:
            self._states[None] = self._now()

    def add(self, server: Server) -> None:
        """Notes what a server has set that has started."""
        self._states[server] = self._now()
        self._apply()

    def remove(self, server: Server) -> None:
        """Leaves out a server that has ended, or did not start."""
        ended = self._states.pop(server, {})
        self._apply()
        for state in ended.values():
            for handler in state.handlers:
                handler.close()
        if len(self._states) == 1:
            self._states.clear()

    def _now(self) -> dict[logging.Logger, _State]:
        logs = [logging.getLogger(name) for name in _LOGS]
        return {log: _State(log.handlers[:], log.propagate, log.level) for log in logs}

    def _apply(self) -> None:
        before, *running = self._states.values()
        for log, state in (running or [before])[-1].items():
            several = [handler for one in running for handler in one[log].handlers]
            log.handlers[:] = several if running else state.handlers
            log.propagate = state.propagate
            log.setLevel(state.level)


class _State(NamedTuple):
    handlers: list[logging.Handler]
    propagate: bool
    level: int


_logs = _Logs()
